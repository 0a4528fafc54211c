"""Progress of long work on standard error: on a terminal a live line with the remaining time, else a line every half minute."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from regard import distributed

SECONDS_BETWEEN_LINES = 30.0
BAR_AND_TIME = 26
"""Characters of a live line after its text."""
Item = TypeVar("Item")


@contextmanager
def timed(seconds: MutableMapping[str, float], part: str) -> Iterator[None]:
    """Add the time of the block to that of a part of the command."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[part] = seconds.get(part, 0.0) + time.perf_counter() - start


class ProgressLine:
    """Show how far work has come, and when it will be done. Only rank 0 prints."""

    def __init__(self, total: int, text: str = "starting", *, console: Console | None = None):
        self.total, self.text = total, text
        self.console = console or Console(stderr=True, highlight=False, quiet=not distributed.is_main())
        self.done = 0
        self._start = self._printed = time.monotonic()
        self._first = 0
        self._live = Progress(
            TextColumn("{task.fields[text]}", markup=False),
            BarColumn(bar_width=10),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not (sys.stderr.isatty() and distributed.is_main()),
        )
        self._task = self._live.add_task("", total=total, text=text)

    def __enter__(self) -> "ProgressLine":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begin_at(self, done: int) -> None:
        """Measure the speed from here on: a run that resumes did not do what came before."""
        self.done = self._first = done
        self._start = time.monotonic()
        self._live.reset(self._task, completed=done, text=self.text)

    def advance(self, number: int) -> None:
        """Add to what is done."""
        self.update(self.done + number, f"{self.text}  {min(self.done + number, self.total):,}/{self.total:,}")

    def update(self, done: int, text: str) -> None:
        """Show how much is done, with a text; without a terminal, only if the last line was printed long enough ago."""
        now = time.monotonic()
        self.done = done
        room = max(1, self.console.width - BAR_AND_TIME)
        self._live.update(self._task, completed=done, text=text if len(text) <= room else f"{text[: room - 1]}…")
        if self._live.disable and now - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = now
            self.console.print(f"{text}  {done / max(1, self.total):.0%}  ETA {self._eta(now)}", markup=False, soft_wrap=True)

    def _eta(self, now: float) -> str:
        """Return the remaining time at the speed so far, as h:mm:ss."""
        speed = (self.done - self._first) / max(1e-9, now - self._start)
        seconds = round((self.total - self.done) / speed) if speed > 0 else 0
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}" if speed > 0 else "unknown"


@dataclass
class _Shown:
    """What is shown now: the name of the work, and whether a line shows it already."""

    text: str | None = None
    line: ProgressLine | None = None
    """One line for everything that is tracked; without it, everything has its own."""
    busy: bool = False


_shown = _Shown()


@contextmanager
def show_progress(text: str, total: int | None = None, *, enabled: bool = True) -> Iterator[None]:
    """Show the progress of everything that is tracked inside, under this name; with a `total`, that of all of it together."""
    before = _shown.text, _shown.line
    with nullcontext() if total is None or not enabled else ProgressLine(total, text) as line:
        _shown.text, _shown.line = text if enabled else None, line
        try:
            yield
        finally:
            _shown.text, _shown.line = before


def track(items: Iterable[Item], total: int, size: Callable[[Item], int] = lambda _: 1) -> Iterator[Item]:
    """Yield items, and show progress if `show_progress` asked for it; `size` says how much of the total an item is."""
    if _shown.text is None or _shown.busy:
        yield from items
        return
    _shown.busy = True
    try:
        with ProgressLine(total, _shown.text) if _shown.line is None else nullcontext(_shown.line) as line:
            for item in items:
                yield item
                line.advance(size(item))
    finally:
        _shown.busy = False
