"""The learning-rate range test (Smith 2017, sec. 3.3): train a few steps with a rate that grows from step to step, and see at
which rate the loss falls fastest and from which it rises again.

Deviations: the rate grows exponentially, not linearly, and of the rates before the lowest loss the one of the steepest descent of
the smoothed loss is suggested (both after fast.ai's `lr_find`).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from regard import distributed
from regard.errors import UserError
from regard.hardware import choose_device
from regard.progress import show_progress, track
from regard.run.build_loop import build_loop
from regard.run.train import RecipeSource, read_data, to_recipe
from regard.show.figures.curves import learning_rate_curve
from regard.show.inline import InlineFigure
from regard.tasks import recipe_task
from regard.training.log import Log
from regard.training.loop import TrainingLoop
from regard.training.precision import deterministic_algorithms

SMOOTHING = 0.04
"""Standard deviation of the smoothing kernel, as a fraction of the steps. It is symmetric: a running mean would lag behind."""
RECENT = 5
"""Steps whose mean loss decides whether training diverges."""
DIVERGED = 2.0
"""Training stops once the loss is this many times the lowest so far."""
MIN_STEPS = 20


@dataclass(frozen=True, repr=False)
class LearningRateTest:
    """The loss of each step and its learning rate; and the rate to try."""

    rates: list[float]
    losses: list[float]
    smoothed: list[float]
    suggestion: float
    """The rate at which the smoothed loss falls fastest: a peak rate, for `train.optimizer.learning_rate`."""
    lowest: float
    """The rate of the lowest smoothed loss: rates from here on are too high."""

    @property
    def figure(self) -> InlineFigure:
        """The loss over the learning rate."""
        return InlineFigure(
            f"loss over the learning rate; suggested: {self.suggestion:.1e}",
            lambda: learning_rate_curve(self.rates, self.losses, self.smoothed, self.suggestion),
        )

    def __repr__(self) -> str:
        return repr(self.figure)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook displays."""
        return self.figure._repr_mimebundle_(include, exclude)


def lr_find(
    recipe: RecipeSource,
    *,
    overrides: Sequence[str] = (),
    device: str = "auto",
    steps: int = 100,
    min_rate: float = 1e-6,
    max_rate: float = 1.0,
) -> LearningRateTest:
    """Find a learning rate for a recipe: train from its initial weights with a rate that grows from `min_rate` to `max_rate`.

    Nothing is kept: neither weights nor a run folder. The recipe's schedule is left out; all rates of the optimiser
    (`muon_learning_rate`, `layer_decay`) keep their ratio to `learning_rate`.
    """
    if steps < MIN_STEPS or not 0 < min_rate <= max_rate:
        raise UserError(
            f"lr-find: {steps} steps from {min_rate:g} to {max_rate:g}; give at least {MIN_STEPS}, and --min below --max"
        )
    if distributed.world_size() > 1:
        raise UserError("lr-find runs in one process; start it without torchrun")
    settings = to_recipe(recipe, overrides)
    data = read_data(settings)
    rates = np.geomspace(min_rate, max_rate, steps).tolist()
    with TemporaryDirectory(prefix="regard-") as folder, deterministic_algorithms(settings.train.deterministic):
        task, log = recipe_task(settings), Log(Path(folder, "log.jsonl"), steps=steps)
        task.run._prepare(Path(folder), settings, data)
        loop = build_loop(task, settings, data, Path(folder), choose_device(device), log).loop
        with show_progress("learning-rate test"):
            losses = list(track(_sweep(loop, rates), steps))
        log.file.close()
    smoothed = smooth(losses, SMOOTHING * steps)
    suggestion, lowest = suggest_rate(rates[: len(losses)], smoothed)
    return LearningRateTest(rates[: len(losses)], losses, smoothed, suggestion, lowest)


def _sweep(loop: TrainingLoop, rates: Sequence[float]) -> Iterator[float]:
    """Yield the loss per label of a step with each rate, until training diverges."""
    peak = loop.settings.optimizer.learning_rate
    loop.learning_rate_factor = lambda step: rates[step - 1] / peak
    losses: list[float] = []
    best = float("inf")
    for micro_batches in itertools.islice(loop.step_batches(len(rates)), len(rates)):
        total, count = loop.step(micro_batches)
        if loop.nonfinite_steps:
            return
        losses.append(float(total) / count)
        yield losses[-1]
        recent = sum(losses[-RECENT:]) / len(losses[-RECENT:])
        best = min(best, recent)
        if recent > DIVERGED * best:
            return


def smooth(values: Sequence[float], deviation: float) -> list[float]:
    """Return the values smoothed by a Gaussian kernel, which at the ends has the values there are."""
    places = np.arange(len(values))
    kernel = np.exp(-((places[:, None] - places) ** 2) / (2 * deviation**2))
    return [float(value) for value in kernel @ np.asarray(values) / kernel.sum(1)]


def suggest_rate(rates: Sequence[float], smoothed: Sequence[float]) -> tuple[float, float]:
    """Return the rate of the steepest descent over the logarithm of the rate, and that of the lowest loss after it."""
    lowest = int(np.argmin(smoothed)) if len(smoothed) > RECENT else 0
    if lowest == 0:
        raise UserError(f"the loss does not fall from a rate of {rates[0]:g} on: give a lower --min, or more --steps")
    slopes = np.gradient(np.asarray(smoothed[: lowest + 1]), np.log(rates[: lowest + 1])) if rates[0] < rates[-1] else np.zeros(1)
    return rates[int(np.argmin(slopes))], rates[lowest]
