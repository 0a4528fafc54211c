"""SIGTERM, SIGUSR1 and Ctrl-C: the step ends, a checkpoint is written, the process leaves with 128 + the signal's number."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from regard.errors import Interrupted

SIGNAL_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")


class SignalHandler:
    """What came. By default it waits until it is asked for; where nothing would be lost, it interrupts at once."""

    def __init__(self, immediate: bool = False):
        self.number: int | None = None
        self.immediate = immediate

    def __bool__(self) -> bool:
        return self.number is not None

    def handle(self, number: int, _frame: object) -> None:
        if self.number is not None:
            exit_now(number)
        self.number = number
        if self.immediate:
            raise Interrupted(number)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """What is done here may be broken off anywhere."""
        if self.number is not None:
            raise Interrupted(self.number)
        self.immediate = True
        try:
            yield
        finally:
            self.immediate = False

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Of that, a part that may not: it is broken off when this is done."""
        self.immediate = False
        try:
            yield
        finally:
            self.immediate = True
        if self.number is not None:
            raise Interrupted(self.number)


@contextmanager
def catch_signals(*, immediate: bool = False) -> Iterator[SignalHandler]:
    """Collect signals instead of dying of them; a second one leaves at once."""
    caught = SignalHandler(immediate)
    known = [getattr(signal, name) for name in SIGNAL_NAMES if hasattr(signal, name)]
    try:
        before = {number: signal.signal(number, caught.handle) for number in known}
    except ValueError:  # not in the main thread: whoever started us handles signals
        yield caught
        return
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_now(number: int) -> None:
    """Without a look back; only the terminal's cursor, which a progress bar hides, is shown again."""
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\x1b[?25h\n")
    os._exit(128 + number)
