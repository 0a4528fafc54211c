"""What is told while training: log.jsonl always, a live line on a terminal, TensorBoard where it is installed and asked for."""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from regard import distributed
from regard.files import disk_error

SLOW_DATA_FRACTION = 0.01
"""The share of the time from which on the live line says that batches come late."""


def note(text: str) -> None:
    """Tell the user something, on standard error."""
    if distributed.is_main():
        Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)


class Log:
    """Records go to `path`, one JSON object a line; `note` prints a sentence. Of several ranks only the first one speaks."""

    def __init__(self, path: Path, *, steps: int, board: Path | None = None):
        self.path, self.steps = path, steps
        self.console = Console(stderr=True, highlight=False, quiet=not distributed.is_main())
        if distributed.is_main():
            drop_partial_line(path)
        self.file = (path if distributed.is_main() else Path(os.devnull)).open("a", encoding="utf-8")
        self.board = open_tensorboard(board) if board and distributed.is_main() else None
        self.progress = Progress(
            TextColumn("{task.fields[text]}"),
            BarColumn(bar_width=20),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not (sys.stderr.isatty() and distributed.is_main()),
        )
        self.task = self.progress.add_task("", total=steps, text="starting")

    def __enter__(self) -> "Log":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
        with suppress(OSError):  # a full disk was told of already
            self.file.close()
        if self.board is not None:
            self.board.close()

    def write(self, **values: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), **values}) + "\n"
        try:
            self.file.write(line)
            self.file.flush()
        except OSError as error:
            raise disk_error(self.path, len(line), error) from None
        if self.board is not None:
            for name, value in values.items():
                if isinstance(value, int | float) and name != "step":
                    self.board.add_scalar(name, value, values.get("step", 0))

    def training(self, step: int, loss: float, rate: float, tokens_per_second: float, waiting: float, **more: Any) -> None:
        """`waiting`: the share of the time in which the next batch was not ready."""
        self.write(
            step=step,
            loss=round(loss, 5),
            learning_rate=rate,
            tokens_per_second=round(tokens_per_second),
            waiting=round(waiting, 4),
            **more,
        )
        slow = f"  waits for data {waiting:.0%} of the time" if waiting > SLOW_DATA_FRACTION else ""
        self.progress.update(
            self.task,
            completed=step,
            text=f"step {step:,}/{self.steps:,}  loss {loss:.3f}  "
            f"{tokens_per_second / 1000:.1f}k tokens/s  rate {rate:.1e}{slow}",
        )

    def evaluation(self, step: int, scores: dict[str, float], best: bool) -> None:
        self.write(step=step, **scores, best=best)
        said = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in scores.items())
        self.note(f"step {step:,}: {said}" + (" *" if best else ""))

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)


def drop_partial_line(path: Path) -> None:
    """Cut off a line that a killed process had not finished."""
    with suppress(FileNotFoundError), path.open("rb+") as file:
        whole = file.read()
        file.truncate(whole.rfind(b"\n") + 1)


def open_tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        note("TensorBoard is not installed; log.jsonl has the same figures (pip install 'regard[board]')")
        return None
    return SummaryWriter(str(folder))
