"""Starter recipes within a time budget: the largest size that trains long enough on this machine in so many minutes."""

from dataclasses import dataclass

from regard.plan.planner import plan_recipe
from regard.plan.step_time import measure_step
from regard.tasks import parse_initial
from regard.tasks.starters.starter import Starter

TRAINING_FRACTION = 0.85
"""Of the budget; the rest is for reading, validation and checkpoints."""
ENOUGH = 0.5
"""A size is chosen if the budget allows this fraction of the steps that suit the data; else a smaller one."""
MIN_STEPS = 20
MAX_STEP_SECONDS = 0.4
"""Of a timed step; a longer one is timed with fewer rows."""


@dataclass(frozen=True)
class FittedStarter:
    """A starter recipe, and what it costs on this machine."""

    toml: str
    notes: list[str]


def fit_to_budget(starter: Starter, minutes: float, device: str = "auto") -> FittedStarter:
    """Return the recipe of the largest size that the budget allows enough steps of; with 0 minutes, or where a step cannot be
    planned, the one that suits the data."""
    if not minutes or not starter.can_be_timed:
        return FittedStarter(starter.to_toml(), [f"{starter.steps:,} steps suit the data; this machine was not timed"])
    all_seconds: list[float] = []
    for size in range(len(starter.sizes)):
        seconds, machine = _step_seconds(starter, size, device)
        all_seconds.append(seconds)
        allowed = int(60 * minutes * TRAINING_FRACTION / seconds)
        if allowed >= ENOUGH * starter.steps:
            break
    steps = starter.steps if allowed >= starter.steps else _round_down(max(MIN_STEPS, allowed))
    needed = _duration(seconds * steps)
    notes = [f"{steps:,} steps of {seconds:.2g} s: about {needed} on {machine}; another budget: --minutes N (now {minutes:g})"]
    if size or steps < starter.steps:
        larger = "a larger model and " if size else ""
        notes.append(f"the data suits {larger}{starter.steps:,} steps: about {_duration(all_seconds[0] * starter.steps)}")
    return FittedStarter(starter.to_toml(size, steps, f"; about {needed} on {machine}"), notes)


def _step_seconds(starter: Starter, size: int, device: str) -> tuple[float, str]:
    """Return the seconds of a step of one size, and the name of this machine."""
    recipe = parse_initial(starter.to_toml(size))
    vocabulary = starter.vocabulary or (recipe.tokens.size if recipe.tokens is not None else 0)
    planned = plan_recipe("starter", recipe, (vocabulary, vocabulary), starter.lengths)
    measured = measure_step(planned, device, max_step_seconds=MAX_STEP_SECONDS)
    machine = measured.devices[0]
    return machine.seconds(measured.flops_per_step), machine.name


def _round_down(steps: int) -> int:
    """Return the steps with two significant digits, at most as many."""
    unit = int(10 ** max(0, len(str(steps)) - 2))
    return steps // unit * unit


def _duration(training_seconds: float) -> str:
    minutes = training_seconds / TRAINING_FRACTION / 60
    if minutes < 1.5:
        return "1 minute"
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
