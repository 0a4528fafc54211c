"""What the processes tell one another: JSON or numbers, over gloo, so that no device is waited for; and who does what."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from regard.distributed.interrupts import all_reduce_max_raw, collective_section
from regard.distributed.rank import is_main, local_rank, rank, world_size

Item = TypeVar("Item")


def all_reduce_sum(x: Any) -> Any:
    """The sum over all processes of a number, an array or a tensor of any device."""
    if world_size() == 1:
        return x
    import numpy as np
    import torch
    import torch.distributed as dist

    with collective_section():
        if isinstance(x, torch.Tensor):
            found = x.clone()
            dist.all_reduce(found)
            return found
        array = np.array(x)
        dist.all_reduce(torch.from_numpy(array))
        return array if isinstance(x, np.ndarray) else array.item()


def all_reduce_max(x: int) -> int:
    if world_size() == 1:
        return x
    with collective_section():
        return all_reduce_max_raw(x)


def all_gather(x: Any) -> list[Any]:
    """What each process has, as JSON can say it, in their order."""
    if world_size() == 1:
        return [x]
    import torch
    import torch.distributed as dist

    data = torch.frombuffer(bytearray(json.dumps(x).encode()), dtype=torch.uint8)
    sizes = torch.zeros(world_size(), dtype=torch.long)
    sizes[rank()] = len(data)
    with collective_section():
        sizes = all_reduce_sum(sizes)
        mine = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        mine[: len(data)] = data
        parts = [torch.empty_like(mine) for _ in range(world_size())]
        dist.all_gather(parts, mine)
    return [json.loads(part[:size].numpy().tobytes()) for part, size in zip(parts, sizes)]


def broadcast(x: Item) -> Item:
    """What the first process has, as JSON can say it."""
    return all_gather(x if is_main() else None)[0]


def broadcast_each(items: Iterable[Item]) -> Iterator[Item]:
    """What the first process finds, one by one: only one of them can read standard input."""
    if world_size() == 1:
        yield from items
        return
    found = iter(items) if is_main() else iter(())
    while (item := broadcast(next(found, None))) is not None:
        yield item


def barrier() -> None:
    """For all others."""
    all_reduce_sum(0)


@contextmanager
def local_first() -> Iterator[None]:
    """The first process of a machine does this before the others of it, which then find what it left in the cache."""
    if world_size() > 1 and local_rank():
        barrier()
    yield
    if world_size() > 1 and not local_rank():
        barrier()
    barrier()


@contextmanager
def one_local_rank_at_a_time() -> Iterator[None]:
    """The processes of a machine do this one after another, where it takes much of its memory."""
    for number in range(all_reduce_max(local_rank()) + 1):
        if number == local_rank():
            yield
        barrier()


def shard(items: Iterable[Item]) -> Iterator[Item]:
    """Every n-th of the items, for work that is divided; `total` of arrays that are zero elsewhere puts it together again."""
    return islice(items, rank(), None, world_size())


def merge_shards(found: Sequence[Item | None]) -> list[Item]:
    """A list of which each process has filled its own places, as JSON can say it."""
    if world_size() == 1:
        return list(found)  # type: ignore[arg-type]
    whole: list[Any] = [None] * len(found)
    for places in all_gather([[place, item] for place, item in enumerate(found) if item is not None]):
        for place, item in places:
            whole[place] = item
    return whole
