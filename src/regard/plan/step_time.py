"""The time of a training step on this machine, extrapolated from shallow copies of the model: every further layer costs as
much as the second and the third."""

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

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
from regard.tasks.task import Task
from regard.training.loop import TrainingLoop
from regard.training.losses import CrossEntropy
from regard.training.precision import choose_precision

LAYER_SETTINGS = ("layers", "encoder_layers", "decoder_layers")
SHALLOW, DEEPER = 1, 3
WARMUP_STEPS, TIMED_STEPS = 4, 5
"""Steps in which a GPU compiles, warms up and captures CUDA graphs; steps that are timed."""
MAX_STEP_SECONDS = 20.0
"""Of the whole model at half the speed of large products; a longer step is measured with fewer rows."""
MEMORY_FRACTION = 0.8
"""Of the free memory that a measurement may use."""


def measure_step(plan: Plan, device: str = "auto", *, max_step_seconds: float = MAX_STEP_SECONDS) -> Plan:
    """Return the plan with this machine first: its step measured or, where that is not possible, its matrix products."""
    chosen = choose_device(device)
    print(f"timing this machine ({chosen}) …", file=sys.stderr)
    precision = choose_precision(plan.recipe.train.precision, build_on_meta(plan.recipe, plan.vocabulary), chosen)
    speed = measure_device(chosen, precision)
    rows = rows_that_fit(plan, speed, precision, free_memory(chosen), max_step_seconds)
    if rows:
        seconds = extrapolate_step_seconds(plan, chosen, rows) * examples_per_batch(plan) / rows
        flops = plan.flops_per_step / plan.recipe.train.gradient_accumulation_steps
        speed = replace(
            speed,
            utilisation=flops / (speed.speed * seconds),
            basis=f"products timed; a step of {rows:,} × {max(plan.lengths)} measured",
        )
    return replace(plan, devices=[speed, *plan.devices])


def examples_per_batch(plan: Plan) -> int:
    """Return the number of examples in a batch, at least 1."""
    return max(1, plan.recipe.train.budget(max(plan.lengths)) // max(plan.lengths))


def rows_that_fit(
    plan: Plan, machine: DeviceSpeed, precision: str, memory: float, max_step_seconds: float = MAX_STEP_SECONDS
) -> int:
    """Return how many examples to measure with: a whole batch if time and memory allow; 0 where a step cannot be measured."""
    recipe, batch = plan.recipe, examples_per_batch(plan)
    if recipe_task(recipe).loss is not Task.loss:  # its labels cannot be random numbers
        return 0
    flops = plan.flops_per_step / recipe.train.gradient_accumulation_steps
    rows = min(batch, max(1, round(batch * max_step_seconds / machine.seconds(flops))))
    model = build_on_meta(_with_layers(recipe, dict.fromkeys(_layer_counts(recipe), DEEPER)), plan.vocabulary)
    needed = training_memory(model, recipe.train, precision, *plan.lengths)
    per_batch = needed.pop("activations", 0) + needed.pop("logits", 0)
    left = MEMORY_FRACTION * memory - sum(needed.values()) * (1 + len(_layer_counts(recipe)))  # all copies are in memory
    return max(0, min(rows, int(left / max(1, per_batch) * batch)))


def extrapolate_step_seconds(plan: Plan, device: torch.device, rows: int) -> float:
    """Return the seconds of a step with this many examples."""
    layers = _layer_counts(plan.recipe)
    shallow = dict.fromkeys(layers, SHALLOW)
    copies = [_with_layers(plan.recipe, {**shallow, **more}) for more in ({}, *({name: DEEPER} for name in layers))]
    first, *deeper = time_steps(plan, device, rows, copies)
    per_layer = [max(0.0, seconds - first) / (DEEPER - SHALLOW) for seconds in deeper]
    return first + sum(seconds * (depth - SHALLOW) for seconds, depth in zip(per_layer, layers.values()))


def _layer_counts(recipe: Recipe) -> dict[str, int]:
    """Return the settings with more layers than are measured; not where every layer has its own width."""
    found = {name: getattr(recipe.model, name, 0) for name in LAYER_SETTINGS}
    if getattr(recipe.model, "encoder_widths", None):
        del found["encoder_layers"]
    return {name: depth for name, depth in found.items() if depth > DEEPER}


def _with_layers(recipe: Recipe, layers: dict[str, int]) -> Recipe:
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=layers)})


def time_steps(plan: Plan, device: torch.device, rows: int, recipes: Sequence[Recipe]) -> list[float]:
    """Return the shortest of a few training steps of each recipe, interleaved, on random examples of the plan's lengths."""
    steps = [_build_step(plan, device, rows, recipe) for recipe in recipes]
    for step in steps:
        for _ in range(WARMUP_STEPS if device.type == "cuda" else 0):
            step()
    return [min(times) for times in time_interleaved(steps, device, repeats=TIMED_STEPS, min_seconds=0.0)]


def _build_step(plan: Plan, device: torch.device, rows: int, recipe: Recipe) -> Callable[[], object]:
    torch.manual_seed(0)
    with torch.device(device):
        task = recipe_task(recipe)
        model = task.build(recipe.model, *task.model_sizes(recipe, plan.vocabulary), recipe.train.regularize)
        batch = _random_batch(model, recipe, rows, plan)
    loop = TrainingLoop(
        model,
        CrossEntropy(recipe.train.regularize),
        ConstantShapeBatches(batch),  # type: ignore[arg-type]
        recipe.train.model_copy(update={"cuda_graphs": plan.captured}),
        seed=0,
        folder=Path(),
        log=NullLog(),  # type: ignore[arg-type]
        evaluate=lambda _: {},
    )
    return lambda: loop.step([(0, 0, batch)])


def _random_batch(model: nn.Module, recipe: Recipe, rows: int, plan: Plan) -> Batch:
    """Return random inputs of the model, with labels of the shape of its output."""
    source, target = plan.lengths
    make: dict[str, Callable[[], Tensor]] = {
        "source": lambda: torch.randint(4, plan.vocabulary[0], (rows, source)),
        "lengths": lambda: torch.full((rows,), source),
        "segments": lambda: (torch.arange(source) >= source // 2).long().expand(rows, -1),
        "target": lambda: torch.randint(4, plan.vocabulary[1], (rows, target)),
        "pixels": lambda: torch.randn(rows, 3, *recipe.data.height_width),
    }
    required = [p.name for p in inspect.signature(model.forward).parameters.values() if p.default is p.empty]
    if getattr(recipe.model, "reads_texts_alone", False):
        required.append("segments")
    inputs = {name: make[name]() for name in required}
    with torch.no_grad():
        logits = model(**{name: tensor[:1] for name, tensor in inputs.items()})
    return Batch(inputs, torch.randint(logits.shape[-1], (rows, *logits.shape[1:-1])), np.arange(rows))


def free_memory(device: torch.device) -> float:
    """Return the free memory in bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class ConstantShapeBatches:
    """Stands in for batches that all have the shape of one."""

    def __init__(self, batch: Batch):
        self.batch = batch

    def has_uniform_length(self) -> bool:
        return True

    def typical_batch(self) -> Batch:
        return self.batch


class NullLog:
    """A training log that discards everything."""

    def note(self, text: str) -> None:
        pass
