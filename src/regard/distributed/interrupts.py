"""What a signal to one process breaks off for all."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from regard.distributed.rank import world_size
from regard.errors import Interrupted

breaking: "InterruptScope | None" = None
"""Where all may be broken off."""


class SignalState(Protocol):
    """What catches them (training/signals.py): the first one's number is kept, and raised `at_once` where it may be."""

    number: int | None
    immediate: bool

    def interrupting(self) -> AbstractContextManager[None]: ...
    def holding(self) -> AbstractContextManager[None]: ...


class InterruptScope:
    """Whoever is interrupted says so once, and everybody else asks wherever they meet: so all hear of it in the same meeting."""

    def __init__(self, signals: SignalState):
        self.signals, self.known, self.meeting = signals, False, False

    def ask(self) -> None:
        if number := all_reduce_max_raw(self.signals.number or 0):
            self.known = True
            raise Interrupted(number)


@contextmanager
def interruptible(signals: SignalState) -> Iterator[None]:
    """What all do here is broken off by a signal to any of them: for itself at once, for the others where they meet next."""
    global breaking
    if world_size() == 1:
        with signals.interrupting():
            yield
        return
    breaking = here = InterruptScope(signals)
    try:
        with signals.interrupting():
            yield
            signals.immediate = False  # what comes from here on is said outside
            here.ask()
    except Interrupted as interruption:
        if not here.known:
            all_reduce_max_raw(interruption.number)
        raise
    finally:
        breaking = None


@contextmanager
def collective_section() -> Iterator[None]:
    """All tell one another something: signals wait meanwhile, and those that came before are heard of first."""
    here = breaking
    if here is None or here.meeting:
        yield
        return
    with here.signals.holding():
        here.meeting = True
        try:
            here.ask()
            yield
        finally:
            here.meeting = False


def all_reduce_max_raw(x: int) -> int:
    """Of all processes; said without being asked first whether anyone was interrupted."""
    import torch
    import torch.distributed as dist

    found = torch.tensor(x)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)
