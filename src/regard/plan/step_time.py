"""How long a step will take on this machine, foretold from steps of shallow copies of the model: every further layer costs what
the second and the third did."""

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.batches.batch import Batch
from regard.hardware import choose_device
from regard.plan.memory import training_memory
from regard.plan.planner import Plan, build_on_meta
from regard.plan.throughput import DeviceSpeed, measure_device, time_interleaved
from regard.recipe import Recipe
from regard.tasks import recipe_task
from regard.tasks.base import Task
from regard.training.loop import Trainer, side_stream
from regard.training.losses import CrossEntropy
from regard.training.precision import choose_precision

DEPTHS = ("layers", "encoder_layers", "decoder_layers")
SHALLOW, DEEPER = 1, 3
WARMUP_STEPS, TIMED_STEPS = 4, 5
"""Steps for a GPU to compile, try and record; steps that are timed."""
MAX_STEP_SECONDS = 20.0
"""Seconds of one step of the whole model, at half of what large products reach; of a longer one fewer rows are rehearsed."""
MEMORY_FRACTION = 0.8
"""Of the memory that is free."""


def measure_step(plan: Plan, device: str = "auto") -> Plan:
    """The plan with this machine before all others: its step rehearsed, or where that cannot be, its products timed."""
    chosen = choose_device(device)
    print(f"timing this machine ({chosen}) …", file=sys.stderr)
    precision = choose_precision(plan.recipe.train.precision, build_on_meta(plan.recipe, plan.vocabulary), chosen)
    mine = measure_device(chosen, precision)
    rows = rows_that_fit(plan, mine, precision, free_memory(chosen))
    if rows:
        seconds = extrapolate_step_seconds(plan, chosen, rows) * examples_per_batch(plan) / rows
        flops = plan.flops_a_step / plan.recipe.train.gradient_accumulation_steps
        mine = replace(
            mine,
            utilisation=flops / (mine.speed * seconds),
            basis=f"products timed; a step of {rows:,} × {max(plan.lengths)} rehearsed",
        )
    return replace(plan, devices=[mine, *plan.devices])


def examples_per_batch(plan: Plan) -> int:
    """Of a batch."""
    return max(1, plan.recipe.train.budget(max(plan.lengths)) // max(plan.lengths))


def rows_that_fit(plan: Plan, machine: DeviceSpeed, precision: str, room: float) -> int:
    """Examples to rehearse with: those of a batch, if time and memory are enough; 0 where a step cannot be rehearsed."""
    recipe, whole = plan.recipe, examples_per_batch(plan)
    if recipe_task(recipe).loss is not Task.loss:  # labels that random numbers cannot stand for
        return 0
    flops = plan.flops_a_step / recipe.train.gradient_accumulation_steps
    rows = min(whole, max(1, round(whole * MAX_STEP_SECONDS / machine.seconds(flops))))
    model = build_on_meta(with_layers(recipe, dict.fromkeys(layer_counts(recipe), DEEPER)), plan.vocabulary)
    needed = training_memory(model, recipe.train, precision, *plan.lengths)
    by_rows = needed.pop("activations", 0) + needed.pop("logits", 0)
    left = MEMORY_FRACTION * room - sum(needed.values()) * (1 + len(layer_counts(recipe)))  # all copies take turns
    return max(0, min(rows, int(left / max(1, by_rows) * whole)))


def extrapolate_step_seconds(plan: Plan, device: torch.device, rows: int) -> float:
    """Seconds of a step with so many examples."""
    deep = layer_counts(plan.recipe)
    least = dict.fromkeys(deep, SHALLOW)
    first, *deeper = time_steps(
        plan, device, rows, [with_layers(plan.recipe, {**least, **more}) for more in ({}, *({name: DEEPER} for name in deep))]
    )
    layer = [max(0.0, seconds - first) / (DEEPER - SHALLOW) for seconds in deeper]
    return first + sum(seconds * (depth - SHALLOW) for seconds, depth in zip(layer, deep.values()))


def layer_counts(recipe: Recipe) -> dict[str, int]:
    """The numbers of layers that are worth leaving some out of; not of layers that are each of another width."""
    found = {name: getattr(recipe.model, name, 0) for name in DEPTHS}
    if getattr(recipe.model, "encoder_widths", None):
        del found["encoder_layers"]
    return {name: depth for name, depth in found.items() if depth > DEEPER}


def with_layers(recipe: Recipe, layers: dict[str, int]) -> Recipe:
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=layers)})


def time_steps(plan: Plan, device: torch.device, rows: int, recipes: Sequence[Recipe]) -> list[float]:
    """The shortest of a few steps of training each, in turns, with random examples of the plan's lengths."""
    steps = [build_step(plan, device, rows, recipe) for recipe in recipes]
    with side_stream(device):
        for step in steps:
            for _ in range(WARMUP_STEPS if device.type == "cuda" else 0):
                step()
        return [min(times) for times in time_interleaved(steps, device, repeats=TIMED_STEPS, shortest=0.0)]


def build_step(plan: Plan, device: torch.device, rows: int, recipe: Recipe) -> Callable[[], Any]:
    torch.manual_seed(0)
    with torch.device(device):
        task = recipe_task(recipe)
        model = task.build(recipe.model, *task.model_sizes(recipe, plan.vocabulary), recipe.train.regularize)
        batch = random_batch(model, recipe, rows, plan)
    trainer = Trainer(
        model,
        CrossEntropy(recipe.train.regularize),
        ConstantShapeBatches(),  # type: ignore[arg-type]
        recipe.train,
        seed=0,
        folder=Path(),
        log=NullLog(),  # type: ignore[arg-type]
        evaluate=lambda _: {},
    )
    return lambda: trainer.step([(0, 0, batch)])


def random_batch(model: nn.Module, recipe: Recipe, rows: int, plan: Plan) -> Batch:
    """Random examples of what the model reads, with labels of the shape of what it says."""
    source, target = plan.lengths
    make: dict[str, Callable[[], Tensor]] = {
        "source": lambda: torch.randint(4, plan.vocabulary[0], (rows, source)),
        "lengths": lambda: torch.full((rows,), source),
        "target": lambda: torch.randint(4, plan.vocabulary[1], (rows, target)),
        "pixels": lambda: torch.randn(rows, 3, *recipe.data.height_width),
    }
    needed = inspect.signature(model.forward).parameters.values()
    inputs = {one.name: make[one.name]() for one in needed if one.default is one.empty}
    with torch.no_grad():
        said = model(**{name: part[:1] for name, part in inputs.items()})
    return Batch(inputs, torch.randint(said.shape[-1], (rows, *said.shape[1:-1])), np.arange(rows))


def free_memory(device: torch.device) -> float:
    """Bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class ConstantShapeBatches:
    """In the place of batches that are all of one shape."""

    def alike(self) -> bool:
        return True


class NullLog:
    def note(self, text: str) -> None:
        pass
