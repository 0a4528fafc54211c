"""Progress of a training run: log.jsonl, a progress line, and the meter behind them."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from regard import distributed
from regard.files import disk_error
from regard.progress import ProgressLine, timed
from regard.training.callbacks import Callback, LogValue

SLOW_DATA_FRACTION = 0.01
"""The fraction of time spent waiting for batches from which the live line shows it."""


def note(text: str) -> None:
    """Print a message to standard error, on rank 0."""
    if distributed.is_main():
        Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)


class Log(Callback):
    """Write JSON lines to `path`, and show progress on a terminal. Only rank 0 writes and prints."""

    def __init__(self, path: Path, *, steps: int):
        self.path, self.steps = path, steps
        self.console = Console(stderr=True, highlight=False, quiet=not distributed.is_main())
        try:
            if distributed.is_main():
                _drop_partial_line(path)
            self.file = (path if distributed.is_main() else Path(os.devnull)).open("a", encoding="utf-8")
        except OSError as error:
            raise disk_error(path, 0, error) from None
        self.progress = ProgressLine(steps, console=self.console)
        self.seconds: dict[str, float] = {}
        """The time that each part of the command has taken so far."""

    def __enter__(self) -> "Log":
        self.progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.__exit__()
        with suppress(OSError):  # a full disk has been reported already
            self.file.close()

    def write(self, **values: LogValue) -> None:
        """Append one JSON object, with the time."""
        line = json.dumps({"time": round(time.time(), 3), **values}) + "\n"
        try:
            self.file.write(line)
            self.file.flush()
        except OSError as error:
            raise disk_error(self.path, len(line), error) from None

    def timed(self, part: str) -> AbstractContextManager[None]:
        """Add the time of the block to that of a part of the command."""
        return timed(self.seconds, part)

    def write_event(self, event: str, **values: LogValue) -> None:
        """Append an event, with the time that each part of the command has taken so far, and the age of the process."""
        self.write(event=event, **values, **seconds_so_far(self.seconds))

    def on_step(self, step: int, values: Mapping[str, LogValue]) -> None:
        """Write the loss and speed since the last call, and update the live line."""
        self.write(step=step, **values)
        loss, rate, speed, waiting = (
            float(values[name] or 0) for name in ("loss", "learning_rate", "tokens_per_second", "data_wait_fraction")
        )
        if not self.progress.done:
            self.progress.begin_at(step)
        slow = f"  waiting for data {waiting:.0%} of the time" if waiting > SLOW_DATA_FRACTION else ""
        self.progress.update(
            step,
            f"step {step:,}/{self.steps:,}  loss {loss:.3f}  {speed / 1000:.1f}k tokens/s  lr {rate:.1e}{slow}",
        )

    def on_evaluate(self, step: int, scores: Mapping[str, float], best: bool) -> None:
        """Write and print the scores of an evaluation; a star marks the best so far."""
        self.write(step=step, **scores, best=best)
        text = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in scores.items())
        self.note(f"step {step:,}: {text}" + (" *" if best else ""))

    def note(self, text: str) -> None:
        """Print a message above the live line."""
        self.console.print(text, markup=False, soft_wrap=True)


def append_event(path: Path, event: str, seconds: Mapping[str, float]) -> None:
    """Append an event after training to a log that exists, with the time that each part of the command has taken."""
    line = json.dumps({"time": round(time.time(), 3), "event": event, **seconds_so_far(seconds)}) + "\n"
    with suppress(OSError):
        if path.is_file():
            with path.open("a", encoding="utf-8") as file:
                file.write(line)


def seconds_so_far(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the time of each part, and the age of the process, as an event states them."""
    return {f"seconds_{part}": round(value, 3) for part, value in {**parts, **process_seconds()}.items()}


def process_seconds() -> dict[str, float]:
    """Return how long ago this process began, as `process`: the imports of a command come before its log. Linux only."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # seconds after the machine was started
        return {"process": time.clock_gettime(time.CLOCK_BOOTTIME) - began}
    except (OSError, AttributeError):
        return {}


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a log; none if there is no log."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                with suppress(ValueError, RecursionError):  # a line that a killed process did not finish
                    record = json.loads(line)
                    if isinstance(record, dict):
                        yield record
    except OSError:
        return


def read_events(path: Path, event: str) -> Iterator[dict[str, Any]]:
    """Yield the records of one kind of event in a log."""
    return (record for record in read_records(path) if record.get("event") == event)


def _drop_partial_line(path: Path) -> None:
    """Cut off a last line that a killed process did not finish."""
    with suppress(FileNotFoundError), path.open("rb+") as file:
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)


@dataclass(frozen=True)
class MeterReading:
    """What the meter measured since the last reading."""

    loss: float
    tokens_per_second: float
    seconds: float
    data_wait_fraction: float


class Meter:
    """Accumulate loss and speed; the device is synchronised only by `read`."""

    def __init__(self, device: torch.device):
        self.loss, self.count, self.start, self.waited = torch.zeros((), device=device), 0, time.perf_counter(), 0.0

    def add(self, loss: Tensor, count: int) -> None:
        """Add the loss sum of a step and its number of labels."""
        self.loss += loss
        self.count += count

    def exclude(self, seconds: float) -> None:
        """Leave out time that was not spent in training steps."""
        self.start += seconds

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Time the host's wait for a batch; on a GPU, queued steps may still be running meanwhile."""
        start = time.perf_counter()
        yield
        self.waited += time.perf_counter() - start

    def read(self) -> MeterReading:
        """Return the measurements since the last call, and start anew."""
        loss = self.loss.item() / max(1, self.count)
        seconds = time.perf_counter() - self.start
        reading = MeterReading(loss, self.count / max(seconds, 1e-9), seconds, self.waited / max(seconds, 1e-9))
        self.loss.zero_()
        self.count, self.start, self.waited = 0, time.perf_counter(), 0.0
        return reading
