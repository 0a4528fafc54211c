"""SIGTERM, SIGUSR1 and Ctrl-C: finish the step, write a checkpoint, exit with 128 + the signal's number."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from regard.errors import Interrupted

SIGNAL_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")


class SignalHandler:
    """Keep the first signal's number until the loop asks for it; where nothing would be lost (`immediate`), raise it at once."""

    def __init__(self, immediate: bool = False):
        self.number: int | None = None
        self.immediate = immediate

    def __bool__(self) -> bool:
        return self.number is not None

    def handle(self, number: int, _frame: object) -> None:
        if self.number is not None:
            _exit_now(number)
        self.number = number
        if self.immediate:
            raise Interrupted(number)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Let a signal raise `Interrupted` anywhere in the block."""
        if self.number is not None:
            raise Interrupted(self.number)
        self.immediate = True
        try:
            yield
        finally:
            self.immediate = False

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Within `raising`, hold a signal back until the end of the block."""
        self.immediate = False
        try:
            yield
        finally:
            self.immediate = True
        if self.number is not None:
            raise Interrupted(self.number)


@contextmanager
def catch_signals(*, immediate: bool = False) -> Iterator[SignalHandler]:
    """Handle signals in the block; a second signal exits at once."""
    handler = SignalHandler(immediate)
    numbers = [getattr(signal, name) for name in SIGNAL_NAMES if hasattr(signal, name)]
    try:
        previous = {number: signal.signal(number, handler.handle) for number in numbers}
    except ValueError:  # not in the main thread: the caller handles signals
        yield handler
        return
    try:
        yield handler
    finally:
        for number, old_handler in previous.items():
            signal.signal(number, old_handler)


def _exit_now(number: int) -> None:
    """Exit without cleaning up; only show the terminal's cursor again, which a progress bar hides."""
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\x1b[?25h\n")
    os._exit(128 + number)
