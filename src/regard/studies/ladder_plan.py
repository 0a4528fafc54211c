"""What a ladder trains: a recipe for each model and seed, with the model's own settings (`ladder.rungs`), a width for a number of
parameters (`ladder.parameters`), and steps for a training time (`ladder.minutes`).

The learning-rate schedule must know its last step. So a few steps of each model are timed first, alone on the device, and the
number of steps follows from them: trainings that then share the device do not change it.
"""

import difflib
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.corpus.dataset import Dataset
from regard.errors import UserError
from regard.files import atomic_write
from regard.hardware import choose_device, hardware
from regard.plan.planner import build_on_meta
from regard.recipe import LadderSettings, Recipe
from regard.run.build_loop import build_loop
from regard.run.train import read_data
from regard.studies.report import count_parameters
from regard.studies.trials import Trial
from regard.studies.variants import Variant, merge_settings
from regard.tasks import build_recipe, recipe_task
from regard.training.log import Log, note

TIMINGS_FILE = "timings.json"
WARMUP_STEPS, TIMED_STEPS = {"cuda": 150, "cpu": 3}, {"cuda": 150, "cpu": 10}
"""Steps before the timed ones, in which a GPU captures CUDA graphs; and timed steps."""
MIN_STEPS = 10
HEAD_WIDTH_UNIT = 8
"""Heads of a width that is fitted to a number of parameters have a multiple of this; a model without heads, of twice this."""
MAX_WIDTH = 4096


@dataclass(frozen=True)
class Rung:
    """A model of the ladder with one seed."""

    variant: Variant
    seed: int
    trial: Trial
    seconds_per_step: float | None = None
    """As timed alone on the device; None where the recipe gives the steps."""


def plan_ladder(base: Recipe, variants: Sequence[Variant], out: Path, device: str) -> list[Rung]:
    """Write a recipe for each model and seed to `out`/recipes, and return them in the order of training; a model that another
    one starts from comes before it."""
    settings = ladder_settings(base)
    chosen = choose_variants(variants, settings)
    recipes = {variant.folder: build_rung(base, variant, settings) for variant in chosen}
    timings = time_rungs(recipes, out, device) if settings.minutes else {}
    rungs = []
    for variant in chosen:
        seconds = timings.get(variant.folder)
        recipe = recipes[variant.folder]
        if seconds is not None:
            recipe = with_minutes(recipe, settings.minutes, seconds)
            steps, minutes = recipe.train.steps, recipe.train.steps * seconds / 60
            note(f"{variant.name}: {steps:,} steps of {1000 * seconds:.3g} ms, timed on {device_name(device)}: {minutes:.2g} min")
        for seed in settings.seeds or [base.seed]:
            trial = write_trial(recipe, variant, seed, out, many=len(settings.seeds) > 1)
            rungs.append(Rung(variant, seed, trial, seconds))
    return rungs


def ladder_settings(base: Recipe) -> LadderSettings:
    """Return the recipe's [ladder], or its defaults."""
    return getattr(base, "ladder", None) or LadderSettings()


def choose_variants(variants: Sequence[Variant], settings: LadderSettings) -> list[Variant]:
    """Return the variants that the recipe asks for, each after the one that it starts from."""
    known = [variant.folder for variant in variants]
    for name in (*settings.models, *settings.rungs):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
            raise UserError(f"ladder has no model {name!r}; {hint}")
    chosen = [variant for variant in variants if not settings.models or variant.folder in settings.models]
    return [one for variant in chosen for one in (variant.pretrain, variant) if one is not None]


def build_rung(base: Recipe, variant: Variant, settings: LadderSettings) -> Recipe:
    """Return the recipe of a model: the ladder's, with the variant's changes, its own settings, and a width for the number of
    parameters. A model and the one that it starts from share their own settings."""
    plain = base.model_dump(mode="json", exclude_none=True, exclude={"ladder", "score"})
    own = next((change for name, change in settings.rungs.items() if name in (variant.folder, variant.shares_settings_of)), {})
    changed = merge_settings(merge_settings(plain, variant.change), own)
    name = f"ladder.rungs.{variant.folder}"
    if settings.parameters:
        changed["model"] = fit_width(changed, settings.parameters, name)
    return build_recipe(changed, name=name)


def fit_width(settings: dict[str, Any], parameters: int, name: str) -> dict[str, Any]:
    """Return the model settings with the width whose number of parameters is nearest; a feed-forward layer grows with it."""
    model = {key: value for key, value in settings["model"].items() if key != "preset"}
    vocabulary = build_recipe(settings, name=name).tokens.size
    unit = HEAD_WIDTH_UNIT * max(2, model.get("heads", 1))
    ratio = model.get("feed_forward", 0) / model["width"]

    def with_width(width: int) -> dict[str, Any]:
        return {**model, "width": width, **({"feed_forward": max(1, round(ratio * width))} if ratio else {})}

    def distance(width: int) -> int:
        recipe = build_recipe({**settings, "model": with_width(width)}, name=name)
        return count_parameters(build_on_meta(recipe, (vocabulary, vocabulary))) - parameters

    low, high = 1, MAX_WIDTH // unit  # the count grows with the width
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if distance(middle * unit) < 0 else (low, middle)
    return with_width(unit * min((max(1, low - 1), low), key=lambda number: abs(distance(number * unit))))


def with_minutes(recipe: Recipe, minutes: float, seconds_per_step: float) -> Recipe:
    """Return the recipe with as many steps as this time allows; warm-up, evaluations and checkpoints keep their share of it."""
    train = recipe.train
    steps = max(MIN_STEPS, round(60 * minutes / seconds_per_step))

    def scaled(number: int) -> int:
        return max(1, round(number * steps / train.steps))

    schedule = train.schedule.model_copy(update={"warmup_steps": scaled(train.schedule.warmup_steps)})
    update = {"steps": steps, "evaluate_every": scaled(train.evaluate_every), "save_every": scaled(train.save_every)}
    return recipe.model_copy(update={"train": train.model_copy(update={**update, "schedule": schedule})})


def write_trial(recipe: Recipe, variant: Variant, seed: int, out: Path, *, many: bool) -> Trial:
    """Write the recipe of a model with a seed, and return the trial that trains it."""

    def folder(one: Variant) -> Path:
        return out / (f"{one.folder}-seed-{seed}" if many else one.folder)

    settings = recipe.model_copy(update={"seed": seed}).model_dump(mode="json", exclude_none=True)
    after: tuple[Path, ...] = ()
    if variant.pretrain is not None:
        after = (folder(variant.pretrain),)
        settings["train"]["init_from"]["run"] = str(after[0].resolve())
    path = out / "recipes" / f"{folder(variant).name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, build_recipe(settings, name=str(path)).to_toml())
    return Trial(path, folder(variant), after=after)


def time_rungs(recipes: dict[str, Recipe], out: Path, device: str) -> dict[str, float]:
    """Return the seconds of a step of each model, one after another; those that `out` has already are kept."""
    path = out / TIMINGS_FILE
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    found = {}
    for name, recipe in recipes.items():
        key = f"{name} {recipe.digest()}"
        if key not in known:
            known[key] = time_step(recipe, read_data(recipe), device)
            out.mkdir(parents=True, exist_ok=True)
            atomic_write(path, json.dumps(known, indent=1) + "\n")
        found[name] = float(known[key])
    return found


def time_step(recipe: Recipe, data: Dataset[Any], device: str) -> float:
    """Return the mean seconds of a training step on the recipe's own batches, without evaluations and checkpoints."""
    chosen = choose_device(device)
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"init_from": []})})  # takes no time in a step
    kind = "cuda" if chosen.type == "cuda" else "cpu"
    warmup, timed = WARMUP_STEPS[kind], TIMED_STEPS[kind]
    with TemporaryDirectory(prefix="regard-") as folder:
        task, log = recipe_task(recipe), Log(Path(folder, "log.jsonl"), steps=warmup + timed)
        task.run._prepare(Path(folder), recipe, data)
        loop = build_loop(task, recipe, data, Path(folder), chosen, log).loop
        started = 0.0
        for number, batches in enumerate(itertools.islice(loop.step_batches(warmup + timed), warmup + timed)):
            if number == warmup:
                started = _synchronised_time(chosen)
            loop.step(batches)
        seconds = (_synchronised_time(chosen) - started) / timed
        log.file.close()
    return seconds


def _synchronised_time(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def device_name(device: str) -> str:
    """Return the name of the device that is timed."""
    return hardware(choose_device(device))
