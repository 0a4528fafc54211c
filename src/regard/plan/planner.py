"""The plan of a recipe or a preset: its size, its computation, its memory and its time.

forward         the matrix products of one example (flops.py)
training        3 × forward: the backward pass has two products for each one
per step        tokens_per_batch / longer side examples, or images_per_batch; × gradient_accumulation_steps;
                × 2 with R-Drop
rule of thumb   6 · N · tokens (Kaplan et al. 2020): N parameters, each used once per token; tokens of one side,
                since every parameter sees either the source or the target
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.errors import UserError
from regard.interop.convert import is_huggingface_folder, open_huggingface_folder
from regard.plan.block import BlockPlan, plan_block
from regard.plan.flops import ComponentPlan, count_components, count_operations, record_conv_grids
from regard.plan.memory import training_memory
from regard.plan.parallelism import ParallelStrategy, plan_parallelism
from regard.plan.throughput import DEVICES, H200, DeviceSpeed, flops_from_time
from regard.recipe import CLIPS, DECODERS, ENCODERS, PRESETS, VITS, BaseImageData, Recipe, apply_override, read_settings
from regard.run.load import pretrained_recipe
from regard.tasks import build_recipe, find_task, initial_settings, read_recipe, recipe_task
from regard.tasks.base import Run
from regard.training.speedups import TrainingWork, capture_obstacle, choose_speedups

TYPICAL_LENGTH = 30
"""Tokens of a sentence where no data are given; WMT sentences have about as many. A single text has its maximal length."""
TYPICAL_LENGTHS = (TYPICAL_LENGTH, TYPICAL_LENGTH)
IMAGE_AND_TEXT = ("similarity", "caption")
"""The explained outputs of tasks whose models read an image and a text."""

GPT3_BATCH_TOKENS = {
    "125m": 0.5e6,
    "350m": 0.5e6,
    "760m": 0.5e6,
    "1.3b": 1e6,
    "2.7b": 1e6,
    "6.7b": 2e6,
    "13b": 2e6,
    "175b": 3.2e6,
}
IMAGENET_LABELS = 1_000
"""The number of image labels where no data are given."""
GPT_SETTINGS: dict[str, Any] = {"task": "language", "tokens": {"size": 50_257}, "model": {"kind": "transformer"}}
PRESET_SETTINGS: dict[str, dict[str, Any]] = {
    "tiny": {"tokens": {"size": 8_000}},
    "small": {"tokens": {"size": 8_000}},
    "base": {"tokens": {"size": 37_000}, "train": {"steps": 100_000, "tokens_per_batch": 25_000, "optimizer": {"kind": "adam"}}},
    "big": {"tokens": {"size": 37_000}, "train": {"steps": 300_000, "tokens_per_batch": 25_000, "optimizer": {"kind": "adam"}}},
    **{
        name: {"task": "masked", "tokens": {"size": 30_522}, "model": {"kind": "transformer"}}
        for name in ENCODERS
        if name.startswith("bert")
    },
    "gpt": {**GPT_SETTINGS, "tokens": {"size": 40_478}},
    **{name: GPT_SETTINGS for name in DECODERS if name.startswith("gpt2")},
    **{
        f"gpt3-{name}": {**GPT_SETTINGS, "train": {"steps": round(300e9 / batch), "tokens_per_batch": round(batch)}}
        for name, batch in GPT3_BATCH_TOKENS.items()
    },
    **{
        name: {
            "task": "classify",
            "model": {"kind": "vit"},
            "data": {"train": ["train"], "valid": ["valid"], "size": 32 if "cifar" in name else 224},
        }
        for name in VITS
    },
    **{
        name: {
            "task": "contrastive",
            "tokens": {"size": 49_408},
            "data": {"train": ["train"], "valid": ["valid"], "size": 224},
            "train": {"images_per_batch": 32_768, "steps": round(32 * 400e6 / 32_768)},
        }
        for name in CLIPS
    },
}
"""The settings of a preset without a recipe: base and big as published (Vaswani et al. 2017, sec. 5), GPT-3 on 300 billion tokens
(Brown et al. 2020, tables 2.1 and D.1), CLIP for 32 epochs of 400 million pairs (Radford et al. 2021, sec. 2.5)."""

PAPER_HOURS = {"base": 12.0, "big": 84.0}
"""Training times on 8 P100 (Vaswani et al. 2017, sec. 5.2)."""


@dataclass(frozen=True)
class Plan(ComponentPlan):
    """The cost of training a recipe."""

    name: str
    recipe: Recipe
    vocabulary: tuple[int, int]
    lengths: tuple[int, int]
    memory: dict[str, dict[str, int]]
    """Bytes by purpose, for each precision that the recipe may run in."""
    devices: list[DeviceSpeed]
    notes: list[str]
    operations: int = 0
    """Of the forward and the backward pass of one batch, which a GPU is launched for one by one."""
    captured: bool = False
    """Whether a GPU gets these operations as CUDA graphs."""
    gpus: int = 0
    strategies: list[ParallelStrategy] = field(default_factory=list)
    """Ways to train on this many GPUs, if a number was given."""

    @property
    def flops_per_token(self) -> float:
        """Forward FLOPs of one source and one target token."""
        return 2 * self.total.macs_per_token

    @property
    def tokens_per_step(self) -> int:
        """Positions of the longer side."""
        return self.recipe.train.budget(max(self.lengths)) * self.recipe.train.gradient_accumulation_steps

    @property
    def flops_per_step(self) -> float:
        passes = 2 if self.recipe.train.regularize.r_drop else 1
        return 3 * passes * 2 * self.total.macs * self.tokens_per_step / max(self.lengths)

    @property
    def flops(self) -> float:
        return self.flops_per_step * self.recipe.train.steps

    def step_seconds(self, device: DeviceSpeed) -> float:
        """Return the time of a step on a device, launches included."""
        batches, flops = self.recipe.train.gradient_accumulation_steps, self.flops_per_step
        return batches * device.step_seconds(flops / batches, self.operations, captured=self.captured)

    @property
    def rule_of_thumb(self) -> float:
        return 6.0 * self.parameters * self.tokens_per_step * self.recipe.train.steps

    @property
    def published_hours(self) -> float | None:
        """The paper's training time, if this is one of its two models, trained as long."""
        for preset, hours in PAPER_HOURS.items():
            same_shape = all(getattr(self.recipe.model, name, None) == value for name, value in PRESETS[preset].items())
            published = PRESET_SETTINGS[preset]["train"]
            same_training = (self.recipe.train.steps, self.tokens_per_step) == (published["steps"], published["tokens_per_batch"])
            if same_shape and same_training:
                return hours
        return None

    @property
    def published_flops(self) -> float | None:
        """The paper's figure for that training."""
        return None if self.published_hours is None else flops_from_time(hours=self.published_hours)

    def to_json(self) -> dict[str, object]:
        parallelism = [{**s.to_json(), "seconds": s.step_seconds * self.recipe.train.steps} for s in self.strategies]
        return {
            "name": self.name,
            "vocabulary": list(self.vocabulary),
            "lengths": list(self.lengths),
            "parameters": self.parameters,
            "components": [
                {
                    **asdict(component.location),
                    "parameters": component.parameters,
                    "forward_flops": 2 * component.macs,
                    "forward_flops_per_token": 2 * component.macs / component.positions,
                }
                for component in self.components
            ],
            "forward_flops_per_token": self.flops_per_token,
            "steps": self.recipe.train.steps,
            "tokens_per_step": self.tokens_per_step,
            "flops_per_step": self.flops_per_step,
            "flops": self.flops,
            "rule_of_thumb_flops": self.rule_of_thumb,
            "published_flops": self.published_flops,
            "memory": {precision: {**sizes, "total": sum(sizes.values())} for precision, sizes in self.memory.items()},
            "time": [
                {**asdict(device), "step": seconds, "seconds": seconds * self.recipe.train.steps}
                for device, seconds in ((device, self.step_seconds(device)) for device in self.devices)
            ],
            "notes": self.notes,
            **({"gpus": self.gpus, "parallelism": parallelism} if self.gpus else {}),
        }


def plan(
    what: str | Path | Recipe,
    overrides: Sequence[str] = (),
    *,
    vocabulary: int | tuple[int, int] | None = None,
    source_length: int = TYPICAL_LENGTH,
    target_length: int = TYPICAL_LENGTH,
    gpus: int | None = None,
) -> Plan | BlockPlan:
    """Return the plan of a recipe (its file, a run folder, settings), of a preset by name, or of `block`, a lecture's encoder
    block.

    `overrides` are `a.b=c`, as everywhere. `vocabulary` replaces the recipe's tokens.size; `gpus` adds the strategies for this
    many GPUs.
    """
    if gpus is not None and gpus < 1:
        raise UserError(f"--gpus {gpus}: give at least 1")
    if what == "block":
        if gpus is not None:
            raise UserError(f"--gpus {gpus}: one block is not trained in parallel; plan a recipe or a preset")
        return plan_block()
    name, recipe, found, notes = _resolve_recipe(what, overrides)
    if min(source_length, target_length) < 1:
        raise UserError(f"lengths {source_length} and {target_length}: a sentence has at least 1 token")
    if vocabulary is not None:
        found = (vocabulary, vocabulary) if isinstance(vocabulary, int) else vocabulary
        notes = [f"vocabulary {_format_sizes(found)}, as given", *(note for note in notes if not note.startswith("vocabulary"))]
    planned = plan_recipe(name, recipe, found, (source_length, target_length), notes=notes)
    return planned if gpus is None else replace(planned, gpus=gpus, strategies=plan_parallelism(planned, gpus))


def plan_recipe(
    name: str,
    recipe: Recipe,
    vocabulary: tuple[int, int],
    lengths: tuple[int, int] = TYPICAL_LENGTHS,
    devices: Sequence[DeviceSpeed] = DEVICES,
    notes: Sequence[str] = (),
) -> Plan:
    """Return the plan of a recipe with these vocabulary sizes."""
    if (
        recipe_task(recipe).explains == "translation"
        and recipe.model.tie in ("all", "embeddings")
        and vocabulary[0] != vocabulary[1]
    ):
        raise UserError(
            f"vocabularies {_format_sizes(vocabulary)} differ, but model.tie = {recipe.model.tie!r} shares one: "
            "set model.tie = 'target'"
        )
    model = build_on_meta(recipe, vocabulary)
    lengths, assumption = _input_lengths(recipe, lengths)
    precisions = ["bf16", "fp32"] if recipe.train.precision == "auto" else [recipe.train.precision]
    memory = {precision: training_memory(model, recipe.train, precision, *lengths) for precision in precisions}
    frozen = [] if all(p.requires_grad for p in model.parameters()) else ["frozen weights are counted as if they were trained"]
    notes, components = [*notes, assumption, *frozen], count_components(model, *lengths)
    operations = count_operations(model, *lengths)
    work = TrainingWork("cuda", recipe.train.steps, obstacle=capture_obstacle(model, "none"))
    captured = choose_speedups(recipe.train, work).cuda_graphs
    return Plan(name, recipe, vocabulary, lengths, memory, list(devices), notes, operations, captured, components=components)


def estimate_step_seconds(run: Run, lengths: tuple[int, int]) -> float | None:
    """Return about how long a step of a run takes on a GPU, for examples of these lengths; None if it cannot be planned.

    It is that of the H200 measured here, whatever the machine: what is chosen by it must not change when a run is resumed.
    """
    try:
        planned = plan_recipe(str(run.folder), run.recipe, _config_vocabulary(run._config_sizes()), lengths)
        return planned.step_seconds(H200)
    except UserError:
        return None


def _input_lengths(recipe: Recipe, lengths: tuple[int, int]) -> tuple[tuple[int, int], str]:
    """Return the lengths of source and target for a recipe, and a note on what is assumed."""
    task = recipe_task(recipe)
    found = task.lengths(recipe, None if lengths == TYPICAL_LENGTHS else lengths)
    if task.explains == "translation":
        return found, f"sentences of {found[0]} source and {found[1]} target tokens assumed"
    if not isinstance(recipe.data, BaseImageData):
        return found, f"texts of {found[0]} tokens assumed"
    height, width = recipe.data.height_width
    texts = f", and texts of {found[1]} tokens assumed" if task.explains in IMAGE_AND_TEXT else ""
    return found, f"images of {height} × {width} pixels, {found[0]} positions{texts}"


def build_on_meta(recipe: Recipe, vocabulary: tuple[int, int]) -> nn.Module:
    """Return the recipe's model on the meta device: shapes without memory."""
    if getattr(recipe.model, "features", None) is not None:
        raise UserError("model.features: the features come from another run; plan that one, and this recipe without them")
    task = recipe_task(recipe)
    with torch.device("meta"):
        model = task.build(recipe.model, *task.model_sizes(recipe, vocabulary), recipe.train.regularize)
    if task.explains in IMAGE_AND_TEXT:
        record_conv_grids(model, recipe.data.height_width)
    return model


def _resolve_recipe(what: str | Path | Recipe, overrides: Sequence[str]) -> tuple[str, Recipe, tuple[int, int], list[str]]:
    """Return name, settings and vocabulary sizes of anything that can be planned, and notes on what was assumed."""
    if isinstance(what, Recipe):
        recipe = build_recipe(_apply_overrides(what.model_dump(mode="json", exclude_none=True), overrides))
        return "recipe", recipe, *_recipe_vocabulary(recipe)
    if str(what) in PRESET_SETTINGS:
        settings = {"data": {"world": {}}, **copy.deepcopy(PRESET_SETTINGS[str(what)])}
        settings["model"] = {**settings.get("model", {}), "preset": str(what)}
        recipe = build_recipe(_apply_overrides(settings, overrides), name=f"preset {what}")
        sizes, notes = _recipe_vocabulary(recipe)
        if recipe_task(recipe).explains == "image_label":
            return f"{what} (preset)", recipe, sizes, notes
        why = "as published" if "steps" in settings.get("train", {}) and not overrides else "by default"
        joint = " joint" if recipe.task == "translate" else ""
        per_batch = (
            f"{recipe.train.images_per_batch:,} pairs"  # type: ignore[attr-defined]
            if recipe_task(recipe).explains == "similarity"
            else f"{recipe.train.tokens_per_batch:,} tokens"
        )
        notes = [f"vocabulary {_format_sizes(sizes)}{joint}, {why}", f"{recipe.train.steps:,} steps of {per_batch}, {why}"]
        return f"{what} (preset)", recipe, sizes, notes
    path = Path(what)
    if (path / "recipe.toml").is_file():
        inside = [f"model.image_codes.run={path / 'image_codes'}"] if (path / "image_codes" / "recipe.toml").is_file() else []
        return str(path), read_recipe(path / "recipe.toml", [*inside, *overrides]), *run_vocabulary(path)
    if is_huggingface_folder(path):
        return _resolve_folder(path, overrides)
    if not path.exists() and not path.suffix:
        raise UserError(
            f"{str(what)!r} is not a recipe, run folder or preset; presets: {', '.join(PRESET_SETTINGS)}, "
            "and block for one encoder block"
        )
    recipe = build_recipe(initial_settings(read_settings(path, list(overrides))), name=str(path))
    return path.name, recipe, *_recipe_vocabulary(recipe)


def _resolve_folder(path: Path, overrides: Sequence[str]) -> tuple[str, Recipe, tuple[int, int], list[str]]:
    """Return name, settings and vocabulary sizes of a Hugging Face folder, and notes on what was assumed."""
    if overrides:
        raise UserError(f"--set {overrides[0]}: {path} is a Hugging Face folder; plan a recipe with train.init_from instead")
    source = open_huggingface_folder(path)
    recipe = pretrained_recipe(source, find_task(source.task, source.settings["kind"]))
    size = len(source.labels) if source.tokenizer is None else source.tokenizer.size
    what = f"{size:,} labels" if source.tokenizer is None else f"vocabulary {size:,}"
    notes = [f"{what}, as in the folder", f"{recipe.train.steps:,} steps of {recipe.train.describe_batch()}, by default"]
    return str(path), recipe, (size, size), notes


def _apply_overrides(settings: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for override in overrides:
        apply_override(settings, override)
    return settings


def run_vocabulary(folder: Path) -> tuple[tuple[int, int], list[str]]:
    """Return the sizes in a run's config.json, or the target sizes of its recipe while there is none, and a note."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = _config_vocabulary(config)
        if "labels" in config:
            return found, [f"{found[0]:,} labels, as in the run"]
    except FileNotFoundError:
        return _recipe_vocabulary(read_recipe(folder / "recipe.toml"))
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{folder / 'config.json'} is damaged ({type(error).__name__}: {error}); train the run again") from None
    return found, [f"vocabulary {_format_sizes(found)}, as in the run"]


def _config_vocabulary(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of labels, or the vocabulary sizes, in a run's config.json."""
    sizes = [config["labels"]] if "labels" in config else config["vocabularies"]
    return int(sizes[0]), int(sizes[-1])


def _recipe_vocabulary(recipe: Recipe) -> tuple[tuple[int, int], list[str]]:
    """Return the vocabulary sizes that a recipe aims at, and a note."""
    if recipe_task(recipe).explains == "image_label":
        return (IMAGENET_LABELS,) * 2, [f"{IMAGENET_LABELS:,} labels assumed"]
    if codes := getattr(recipe.model, "codebook_size", None):
        return (codes, codes), [f"a codebook of {codes:,} codes"]
    size, kind = recipe.tokens.size, ""
    if recipe.task == "translate":
        kind = " joint" if getattr(recipe.tokens, "joint", True) else " for each language"
    return (size, size), [f"vocabulary {size:,}{kind}: the target size (tokens.size); small data may give fewer"]


def _format_sizes(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]:,}" if sizes[0] == sizes[1] else f"{sizes[0]:,} and {sizes[1]:,}"
