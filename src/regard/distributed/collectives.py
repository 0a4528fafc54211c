"""Collectives over JSON values and numbers, and work that one signal interrupts on all ranks.

Values travel over gloo, so that no GPU has to be synchronised. Inside `interruptible`, every collective first asks whether any
rank was interrupted, so that all ranks leave at the same collective.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any, Protocol, TypeVar

from regard.distributed.rank import is_main, local_rank, rank, world_size
from regard.errors import Interrupted

Item = TypeVar("Item")
Summable = TypeVar("Summable")
_scope: "InterruptScope | None" = None


def all_reduce_sum(x: Summable) -> Summable:
    """Return the sum over all ranks of a number, a NumPy array, or a tensor on any device."""
    if world_size() == 1:
        return x
    import numpy as np
    import torch
    import torch.distributed as dist

    with _collective():
        if isinstance(x, torch.Tensor):
            tensor = x.clone()
            dist.all_reduce(tensor)
            return tensor  # type: ignore[return-value]
        array = np.array(x)
        dist.all_reduce(torch.from_numpy(array))
        return array if isinstance(x, np.ndarray) else array.item()  # type: ignore[return-value]


def all_reduce_max(x: int) -> int:
    """Return the maximum over all ranks."""
    if world_size() == 1:
        return x
    with _collective():
        return _all_reduce_max(x)


def all_gather(x: Item) -> list[Item]:
    """Return the JSON value of every rank, in rank order."""
    if world_size() == 1:
        return [x]
    import torch
    import torch.distributed as dist

    data = torch.frombuffer(bytearray(json.dumps(x).encode()), dtype=torch.uint8)
    sizes = torch.zeros(world_size(), dtype=torch.long)
    sizes[rank()] = len(data)
    with _collective():
        sizes = all_reduce_sum(sizes)
        padded = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        padded[: len(data)] = data
        parts = [torch.empty_like(padded) for _ in range(world_size())]
        dist.all_gather(parts, padded)
    return [json.loads(part[:size].numpy().tobytes()) for part, size in zip(parts, sizes)]


def broadcast(x: Item) -> Item:
    """Return rank 0's JSON value."""
    return all_gather(x if is_main() else None)[0]  # type: ignore[return-value]


def broadcast_each(items: Iterable[Item]) -> Iterator[Item]:
    """Yield rank 0's items one by one: only one process can read standard input."""
    if world_size() == 1:
        yield from items
        return
    source = iter(items) if is_main() else iter(())
    while (item := broadcast(next(source, None))) is not None:
        yield item


def barrier() -> None:
    """Wait for all ranks."""
    all_reduce_sum(0)


@contextmanager
def local_first() -> Iterator[None]:
    """Run the block on each machine's first rank before its other ranks, which then find the results in the cache."""
    if world_size() > 1 and local_rank():
        barrier()
    yield
    if world_size() > 1 and not local_rank():
        barrier()
    barrier()


@contextmanager
def one_local_rank_at_a_time() -> Iterator[None]:
    """Run the block on one rank of each machine after another, where it takes much of the machine's memory."""
    for number in range(all_reduce_max(local_rank()) + 1):
        if number == local_rank():
            yield
        barrier()


def shard(items: Iterable[Item]) -> Iterator[Item]:
    """Return this rank's items: every `world_size`-th one.

    `all_reduce_sum` over arrays that are zero elsewhere, or `merge_shards`, puts the results together.
    """
    return islice(items, rank(), None, world_size())


def merge_shards(items: Sequence[Item | None]) -> list[Item]:
    """Return a list of JSON values of which every rank has filled in its own entries."""
    if world_size() == 1:
        return list(items)  # type: ignore[arg-type]
    merged: list[Any] = [None] * len(items)
    own: list[Any] = [[index, item] for index, item in enumerate(items) if item is not None]
    for entries in all_gather(own):
        for index, item in entries:
            merged[index] = item
    return merged


class SignalState(Protocol):
    """A signal handler (training/signals.py): it keeps the first signal's number and, if `immediate`, raises it."""

    number: int | None
    immediate: bool

    def raising(self) -> AbstractContextManager[None]: ...
    def deferring(self) -> AbstractContextManager[None]: ...


class InterruptScope:
    """Work of all ranks that a signal to any of them interrupts."""

    def __init__(self, signals: SignalState):
        self.signals, self.announced, self.in_collective = signals, False, False

    def raise_if_any_rank_interrupted(self) -> None:
        if number := _all_reduce_max(self.signals.number or 0):
            self.announced = True
            raise Interrupted(number)


@contextmanager
def interruptible(signals: SignalState) -> Iterator[None]:
    """Let a signal to any rank interrupt the block: on that rank at once, on the others at their next collective."""
    global _scope
    if world_size() == 1:
        with signals.raising():
            yield
        return
    _scope = scope = InterruptScope(signals)
    try:
        with signals.raising():
            yield
            signals.immediate = False  # a later signal is handled after the block
            scope.raise_if_any_rank_interrupted()
    except Interrupted as interruption:
        if not scope.announced:
            _all_reduce_max(interruption.number)  # the others are waiting in raise_if_any_rank_interrupted
        raise
    finally:
        _scope = None


@contextmanager
def _collective() -> Iterator[None]:
    """Defer signals during a collective; inside `interruptible`, first ask whether any rank was interrupted before it."""
    scope = _scope
    if scope is None or scope.in_collective:
        yield
        return
    with scope.signals.deferring():
        scope.in_collective = True
        try:
            scope.raise_if_any_rank_interrupted()
            yield
        finally:
            scope.in_collective = False


def _all_reduce_max(x: int) -> int:
    """Return the maximum over all ranks, without asking about interruptions."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor(x)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return int(tensor)
