"""What is found out once an epoch."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Found = TypeVar("Found")


def cache_per_epoch(find: Callable[[Any, int, int], Found]) -> Callable[[Any, int, int], Found]:
    """A method of (seed, epoch) that remembers its last answer: every batch of an epoch asks again. Threads may ask at once, the
    answer being the same."""
    place = f"last {find.__name__}"

    @wraps(find)
    def remember(self: Any, seed: int, epoch: int) -> Found:
        known = self.__dict__.get(place)
        if known is None or known[0] != (seed, epoch):
            known = self.__dict__[place] = (seed, epoch), find(self, seed, epoch)
        return known[1]

    return remember
