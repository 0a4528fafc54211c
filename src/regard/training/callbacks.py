"""Callbacks: what is called while a model is trained, on rank 0. The log, the training view and all loggers are callbacks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from regard import distributed
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.tasks.base import Run

LogValue = str | float | bool | None


class Callback:
    """The base class of callbacks: override the methods you need, and give instances to `regard.train(..., callbacks=[...])`.

    A callback looks on; every step seeds the random generators anew, so that callbacks which use random numbers change no result.
    What it raises stops the run at the end of the step, after a checkpoint is written. On several ranks, rank 0 alone calls.
    """

    runs_model = False
    """Whether the callback runs the model: it is left out on several ranks, since one rank alone cannot run a sharded model."""

    def on_begin(self, run: "Run", step: int) -> None:
        """Training begins, or resumes after this step; `run` has the folder, the recipe, the model and the data."""

    def on_step(self, step: int, values: Mapping[str, LogValue]) -> None:
        """So many steps are done; called every `train.log_every` steps.

        `values` are the mean `loss` per label since the last call, `learning_rate`, `tokens_per_second`, `data_wait_fraction`
        and `epoch`.
        """

    def on_evaluate(self, step: int, scores: Mapping[str, float], best: bool) -> None:
        """The model was evaluated on the validation set; `best` says whether its score is the best so far.

        The run's model is in evaluation mode and has the weights that were evaluated: with `train.ema_decay`, the averaged ones.
        """

    def on_save(self, step: int, path: Path) -> None:
        """A checkpoint was written into the folder `path`, which stays complete until it is deleted.

        Checkpoints are written while training continues; with a callback that has this method, training waits for each.
        """

    def on_end(self, finished: bool) -> None:
        """Training ends: `finished` is False if a signal or an error stopped it. Called after `on_begin`, whatever happens."""


class Callbacks(Callback):
    """Call several callbacks, on rank 0. What one raises is kept until the loop has written a checkpoint, and raised then."""

    def __init__(self, callbacks: Sequence[Callback] = ()):
        several = distributed.world_size() > 1
        self._callbacks = [one for one in callbacks if not (several and one.runs_model)] if distributed.is_main() else []
        self.error: Exception | None = None

    @contextmanager
    def during(self, run: "Run", step: int) -> Iterator[None]:
        """Call `on_begin`, and after the block `on_end`."""
        finished = False
        try:
            self.on_begin(run, step)
            self.raise_error()
            yield
            finished = True
        finally:
            self.on_end(finished)
        self.raise_error()

    def listen_to(self, event: str) -> bool:
        """Return whether a callback overrides the method of an event, such as "on_save"."""
        return any(getattr(type(one), event) is not getattr(Callback, event) for one in self._callbacks)

    def on_begin(self, run: "Run", step: int) -> None:
        self._call("on_begin", run, step)

    def on_step(self, step: int, values: Mapping[str, LogValue]) -> None:
        self._call("on_step", step, values)

    def on_evaluate(self, step: int, scores: Mapping[str, float], best: bool) -> None:
        self._call("on_evaluate", step, scores, best)

    def on_save(self, step: int, path: Path) -> None:
        self._call("on_save", step, path)

    def on_end(self, finished: bool) -> None:
        self._call("on_end", finished)

    def raise_error(self) -> None:
        """Raise what a callback raised; all ranks call this together."""
        if (message := distributed.broadcast(None if self.error is None else str(self.error))) is not None:
            raise self.error or UserError(message)

    def _call(self, event: str, *arguments: object) -> None:
        for callback in self._callbacks:
            try:
                getattr(callback, event)(*arguments)
            except Exception as error:  # a user's code may raise anything
                self.error = self.error or error
