"""What the server counts, as Prometheus reads it (text format 0.0.4)."""

import threading
from collections.abc import Callable

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ABOUT = {
    "regard_requests_total": ("counter", "Requests by endpoint and status."),
    "regard_request_seconds": ("histogram", "From a request's head to the last byte of its answer."),
    "regard_tokens_total": ("counter", "Tokens written."),
    "regard_steps_total": ("counter", "Decoding steps."),
    "regard_cancelled_total": ("counter", "Texts given up because their client left or their time was over."),
    "regard_refused_total": ("counter", "Texts refused because too many were waiting."),
    "regard_failures_total": ("counter", "Errors of the server's own."),
    "regard_running": ("gauge", "Texts being written."),
    "regard_waiting": ("gauge", "Texts waiting."),
}
Labels = tuple[tuple[str, str], ...]


class Metrics:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: dict[str, dict[Labels, float]] = {name: {} for name, (kind, _) in ABOUT.items() if kind == "counter"}
        self.seconds: dict[Labels, list[float]] = {}
        self.gauges: dict[str, dict[Labels, Callable[[], float]]] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        with self.lock:
            counts, key = self.counts[name], tuple(sorted(labels.items()))
            counts[key] = counts.get(key, 0) + amount

    def value(self, name: str, **labels: str) -> float:
        with self.lock:
            return self.counts[name].get(tuple(sorted(labels.items())), 0)

    def watch(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """What is asked when the figures are."""
        self.gauges.setdefault(name, {})[tuple(sorted(labels.items()))] = read

    def time(self, seconds: float, **labels: str) -> None:
        with self.lock:
            found = self.seconds.setdefault(tuple(sorted(labels.items())), [0.0] * (len(BOUNDS) + 2))
            for place, bound in enumerate(BOUNDS):
                found[place] += seconds <= bound
            found[-2] += 1
            found[-1] += seconds

    def text(self) -> str:
        lines: list[str] = []
        with self.lock:
            for name, (kind, about) in ABOUT.items():
                lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
                if kind == "counter":
                    lines += [f"{name}{shown(labels)} {value:g}" for labels, value in sorted(self.counts[name].items())]
                elif kind == "gauge":
                    lines += [f"{name}{shown(labels)} {read():g}" for labels, read in sorted(self.gauges.get(name, {}).items())]
                else:
                    for labels, (*buckets, number, total) in sorted(self.seconds.items()):
                        lines += [
                            f"{name}_bucket{shown((*labels, ('le', bound)))} {value:g}"
                            for bound, value in zip([*map(str, BOUNDS), "+Inf"], [*buckets, number])
                        ]
                        lines += [f"{name}_sum{shown(labels)} {total:.6f}", f"{name}_count{shown(labels)} {number:g}"]
        return "\n".join(lines) + "\n"


def shown(labels: Labels) -> str:
    def safe(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{safe(value)}"' for name, value in labels) + "}" if labels else ""
