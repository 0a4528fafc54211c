"""What the processes tell one another: JSON or numbers, over gloo, so that no device is waited for; and who does what."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from regard.distributed.interrupts import largest, meeting
from regard.distributed.rank import count, first, local_rank, rank

Item = TypeVar("Item")


def total(x: Any) -> Any:
    """The sum over all processes of a number, an array or a tensor of any device."""
    if count() == 1:
        return x
    import numpy as np
    import torch
    import torch.distributed as dist

    with meeting():
        if isinstance(x, torch.Tensor):
            found = x.clone()
            dist.all_reduce(found)
            return found
        array = np.array(x)
        dist.all_reduce(torch.from_numpy(array))
        return array if isinstance(x, np.ndarray) else array.item()


def highest(x: int) -> int:
    if count() == 1:
        return x
    with meeting():
        return largest(x)


def gathered(x: Any) -> list[Any]:
    """What each process has, as JSON can say it, in their order."""
    if count() == 1:
        return [x]
    import torch
    import torch.distributed as dist

    data = torch.frombuffer(bytearray(json.dumps(x).encode()), dtype=torch.uint8)
    sizes = torch.zeros(count(), dtype=torch.long)
    sizes[rank()] = len(data)
    with meeting():
        sizes = total(sizes)
        mine = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        mine[: len(data)] = data
        parts = [torch.empty_like(mine) for _ in range(count())]
        dist.all_gather(parts, mine)
    return [json.loads(part[:size].numpy().tobytes()) for part, size in zip(parts, sizes)]


def told(x: Item) -> Item:
    """What the first process has, as JSON can say it."""
    return gathered(x if first() else None)[0]


def told_each(items: Iterable[Item]) -> Iterator[Item]:
    """What the first process finds, one by one: only one of them can read standard input."""
    if count() == 1:
        yield from items
        return
    found = iter(items) if first() else iter(())
    while (item := told(next(found, None))) is not None:
        yield item


def wait() -> None:
    """For all others."""
    total(0)


@contextmanager
def turn() -> Iterator[None]:
    """The first process of a machine does this before the others of it, which then find what it left in the cache."""
    if count() > 1 and local_rank():
        wait()
    yield
    if count() > 1 and not local_rank():
        wait()
    wait()


@contextmanager
def one_by_one() -> Iterator[None]:
    """The processes of a machine do this one after another, where it takes much of its memory."""
    for number in range(highest(local_rank()) + 1):
        if number == local_rank():
            yield
        wait()


def share(items: Iterable[Item]) -> Iterator[Item]:
    """Every n-th of the items, for work that is divided; `total` of arrays that are zero elsewhere puts it together again."""
    return islice(items, rank(), None, count())


def filled(found: Sequence[Item | None]) -> list[Item]:
    """A list of which each process has filled its own places, as JSON can say it."""
    if count() == 1:
        return list(found)  # type: ignore[arg-type]
    whole: list[Any] = [None] * len(found)
    for places in gathered([[place, item] for place, item in enumerate(found) if item is not None]):
        for place, item in places:
            whole[place] = item
    return whole
