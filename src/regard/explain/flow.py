"""The greatest flow through a network (Dinic 1970), for attention flow."""

from collections import deque

MIN_CAPACITY = 1e-12


class FlowNetwork:
    """Edges with capacities between numbered nodes."""

    def __init__(self, nodes: int):
        self.out: list[list[int]] = [[] for _ in range(nodes)]
        self.to: list[int] = []
        self.capacity: list[float] = []

    def add(self, a: int, b: int, capacity: float) -> None:
        """An edge, and behind it (at the odd number) the way back, for what is taken back."""
        if capacity > MIN_CAPACITY:
            self.out[a].append(len(self.to))
            self.out[b].append(len(self.to) + 1)
            self.to += [b, a]
            self.capacity += [capacity, 0.0]

    def flow(self, source: int, sink: int) -> float:
        """How much can flow from one node to another at once; the network itself is left as it was."""
        left, total = list(self.capacity), 0.0
        while (levels := self.levels(source, sink, left)) is not None:
            following = [0] * len(self.out)
            while (sent := self.send(source, sink, left, levels, following)) > MIN_CAPACITY:
                total += sent
        return total

    def levels(self, source: int, sink: int, left: list[float]) -> list[int] | None:
        """How many edges each node is away from the source; None where the sink cannot be reached."""
        found = [-1] * len(self.out)
        found[source] = 0
        waiting = deque([source])
        while waiting:
            node = waiting.popleft()
            for edge in self.out[node]:
                if left[edge] > MIN_CAPACITY and found[self.to[edge]] < 0:
                    found[self.to[edge]] = found[node] + 1
                    waiting.append(self.to[edge])
        return found if found[sink] >= 0 else None

    def send(self, source: int, sink: int, left: list[float], levels: list[int], following: list[int]) -> float:
        """Send what goes along one path of rising levels; `following` is the next edge of each node to be tried."""
        path: list[int] = []
        node = source
        while node != sink:
            edges = self.out[node]
            while following[node] < len(edges):
                edge = edges[following[node]]
                if left[edge] > MIN_CAPACITY and levels[self.to[edge]] == levels[node] + 1:
                    break
                following[node] += 1
            else:
                if not path:
                    return 0.0
                node = self.to[path.pop() ^ 1]  # a dead end: go back, and elsewhere
                following[node] += 1
                continue
            path.append(edge)
            node = self.to[edge]
        sent = min(left[edge] for edge in path)
        for edge in path:
            left[edge] -= sent
            left[edge ^ 1] += sent
        return sent
