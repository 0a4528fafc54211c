"""A recipe or a preset, planned: what it has, what it computes, what it takes.

forward         the matrix products of one sentence pair (parts.py)
training        3 × forward: the backward pass makes two products for each one
a step          tokens_per_batch / longer side sentence pairs, or images_per_batch; × gradient_accumulation_steps;
                × 2 with R-Drop
rule of thumb   6 · N · tokens (Kaplan et al. 2020): N parameters, each used once a token; tokens of one side,
                since every parameter sees either the source or the target
"""

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import recipe as recipes
from regard.errors import UserError
from regard.plan.block import BlockPlan, plan_block
from regard.plan.flops import Component, ComponentTotal, count_components, record_conv_grids, total_cost
from regard.plan.memory import training_memory
from regard.plan.parallelism import ParallelStrategy, plan_parallelism
from regard.plan.throughput import DEVICES, DeviceSpeed, flops_from_time
from regard.recipe import (
    CLIPS,
    DECODERS,
    ENCODERS,
    PRESETS,
    VITS,
    BaseImageData,
    Recipe,
)
from regard.tasks import build_recipe, read_recipe, recipe_task

TYPICAL_LENGTH = 30
"""Tokens of a sentence where no data say better; WMT sentences have about as many. A single text is as long as it may be."""
TYPICAL_LENGTHS = (TYPICAL_LENGTH, TYPICAL_LENGTH)
IMAGE_AND_TEXT = ("similarity", "caption")
"""Tasks whose models read an image and a text, by the output they explain."""

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
"""Of a picture, where no data say better: ImageNet's."""
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
"""What a preset is planned with when there is no recipe: base and big as published (Vaswani et al. 2017, sec. 5), GPT-3 on 300
billion tokens (Brown et al. 2020, tables 2.1 and D.1), CLIP 32 times through 400 million pairs (Radford et al. 2021,
sec. 2.5)."""

PAPER_HOURS = {"base": 12.0, "big": 84.0}
"""Training times on 8 P100 (Vaswani et al. 2017, sec. 5.2)."""


@dataclass(frozen=True)
class Plan:
    name: str
    recipe: Recipe
    vocabulary: tuple[int, int]
    lengths: tuple[int, int]
    components: list[Component]
    memory: dict[str, dict[str, int]]
    """Bytes by purpose, for each precision the recipe may run in."""
    devices: list[DeviceSpeed]
    notes: list[str]
    gpus: int = 0
    strategies: list[ParallelStrategy] = field(default_factory=list)
    """Of spreading over so many GPUs, where that was asked for."""

    @property
    def total(self) -> ComponentTotal:
        return total_cost(self.components)

    @property
    def parameters(self) -> int:
        return self.total.parameters

    @property
    def flops_a_token(self) -> float:
        """Forward FLOPs of one source and one target token."""
        return 2 * self.total.multiplications_a_token

    @property
    def tokens_a_step(self) -> int:
        """Positions of the longer side."""
        return self.recipe.train.budget(max(self.lengths)) * self.recipe.train.gradient_accumulation_steps

    @property
    def flops_a_step(self) -> float:
        passes = 2 if self.recipe.train.regularize.r_drop else 1
        return 3 * passes * 2 * self.total.multiplications * self.tokens_a_step / max(self.lengths)

    @property
    def flops(self) -> float:
        return self.flops_a_step * self.recipe.train.steps

    @property
    def rule_of_thumb(self) -> float:
        return 6.0 * self.parameters * self.tokens_a_step * self.recipe.train.steps

    @property
    def published_hours(self) -> float | None:
        """How long the paper trained this model, where it is one of the paper's two and trained as long."""
        for preset, hours in PAPER_HOURS.items():
            same_shape = all(getattr(self.recipe.model, name, None) == value for name, value in PRESETS[preset].items())
            published = PRESET_SETTINGS[preset]["train"]
            same_training = (self.recipe.train.steps, self.tokens_a_step) == (published["steps"], published["tokens_per_batch"])
            if same_shape and same_training:
                return hours
        return None

    @property
    def published_flops(self) -> float | None:
        """The paper's figure for that training."""
        return None if self.published_hours is None else flops_from_time(hours=self.published_hours)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "vocabulary": list(self.vocabulary),
            "lengths": list(self.lengths),
            "parameters": self.parameters,
            "parts": [
                {
                    **asdict(part.place),
                    "parameters": part.parameters,
                    "forward_flops": 2 * part.multiplications,
                    "forward_flops_a_token": 2 * part.multiplications / part.rows,
                }
                for part in self.components
            ],
            "forward_flops_a_token": self.flops_a_token,
            "steps": self.recipe.train.steps,
            "tokens_a_step": self.tokens_a_step,
            "flops_a_step": self.flops_a_step,
            "flops": self.flops,
            "rule_of_thumb_flops": self.rule_of_thumb,
            "published_flops": self.published_flops,
            "memory": {precision: {**sizes, "total": sum(sizes.values())} for precision, sizes in self.memory.items()},
            "time": [
                {**asdict(device), "step": device.seconds(self.flops_a_step), "seconds": device.seconds(self.flops)}
                for device in self.devices
            ],
            "notes": self.notes,
            **(
                {
                    "gpus": self.gpus,
                    "spread": [{**way.to_json(), "seconds": way.step * self.recipe.train.steps} for way in self.strategies],
                }
                if self.gpus
                else {}
            ),
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
    """Plan a recipe (its file, a run folder, settings), a preset by name, or `block`, the deck's encoder block.

    `overrides` are `a.b=c`, as everywhere. `vocabulary` replaces the recipe's tokens.size, `gpus` says how it
    spreads over so many.
    """
    if gpus is not None and gpus < 1:
        raise UserError(f"--gpus {gpus}: there is at least 1")
    if what == "block":
        if gpus is not None:
            raise UserError(f"--gpus {gpus}: one block does not spread; plan a recipe or a preset")
        return plan_block()
    name, recipe, found, notes = resolve_recipe(what, overrides)
    if min(source_length, target_length) < 1:
        raise UserError(f"lengths {source_length} and {target_length}: a sentence has at least 1 token")
    if vocabulary is not None:
        found = (vocabulary, vocabulary) if isinstance(vocabulary, int) else vocabulary
        notes = [
            f"vocabulary {format_sizes(found)}, as asked for",
            *(note for note in notes if not note.startswith("vocabulary")),
        ]
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
    task = recipe_task(recipe)
    translates = task.explains == "translation"
    if translates and recipe.model.tie in ("all", "embeddings") and vocabulary[0] != vocabulary[1]:
        raise UserError(
            f"vocabularies {format_sizes(vocabulary)} differ, but model.tie = {recipe.model.tie!r} shares one: "
            "set model.tie = 'target'"
        )
    model = build_on_meta(recipe, vocabulary)
    lengths = task.lengths(recipe, None if lengths == TYPICAL_LENGTHS else lengths)
    precisions = ["bf16", "fp32"] if recipe.train.precision == "auto" else [recipe.train.precision]
    memory = {precision: training_memory(model, recipe.train, precision, *lengths) for precision in precisions}
    assumed = f"texts of {lengths[0]} tokens"
    if translates:
        assumed = f"sentences of {lengths[0]} source and {lengths[1]} target tokens"
    last = f"{assumed} assumed"
    if isinstance(recipe.data, BaseImageData):
        last = "pictures of {} × {} pixels, {} positions".format(*recipe.data.height_width, lengths[0])
    if task.explains in IMAGE_AND_TEXT:
        last = "pictures of {} × {} pixels, {} positions, and texts of {} tokens assumed".format(
            *recipe.data.height_width, *lengths
        )
    frozen = [] if all(p.requires_grad for p in model.parameters()) else ["frozen weights are counted as if they were trained"]
    return Plan(
        name, recipe, vocabulary, lengths, count_components(model, *lengths), memory, list(devices), [*notes, last, *frozen]
    )


def build_on_meta(recipe: Recipe, vocabulary: tuple[int, int]) -> nn.Module:
    """The recipe's model with shapes but without memory."""
    if getattr(recipe.model, "features", None) is not None:
        raise UserError("model.features: the vectors come from another run; plan that one, and this recipe without them")
    task = recipe_task(recipe)
    with torch.device("meta"):
        model = task.build(recipe.model, *task.model_sizes(recipe, vocabulary), recipe.train.regularize)
    if task.explains in IMAGE_AND_TEXT:
        record_conv_grids(model, recipe.data.height_width)
    return model


def resolve_recipe(what: str | Path | Recipe, overrides: Sequence[str]) -> tuple[str, Recipe, tuple[int, int], list[str]]:
    """Name, settings and vocabulary sizes of anything that can be planned, and what was assumed for it."""
    if isinstance(what, Recipe):
        recipe = build_recipe(apply_overrides(what.model_dump(mode="json", exclude_none=True), overrides))
        return "recipe", recipe, target_vocabulary(recipe), vocabulary_notes(recipe)
    if str(what) in PRESET_SETTINGS:
        settings = {"data": {"world": {}}, **copy.deepcopy(PRESET_SETTINGS[str(what)])}
        settings["model"] = {**settings.get("model", {}), "preset": str(what)}
        recipe = build_recipe(apply_overrides(settings, overrides), name=f"preset {what}")
        if recipe_task(recipe).explains == "image_label":
            return f"{what} (preset)", recipe, target_vocabulary(recipe), vocabulary_notes(recipe)
        why = "as published" if "steps" in settings.get("train", {}) and not overrides else "unless a recipe says otherwise"
        joint = " joint" if recipe.task == "translate" else ""
        return (
            f"{what} (preset)",
            recipe,
            target_vocabulary(recipe),
            [
                f"vocabulary {format_sizes(target_vocabulary(recipe))}{joint}, {why}",
                f"{recipe.train.steps:,} steps of {per_batch(recipe)}, {why}",
            ],
        )
    path = Path(what)
    if (path / "recipe.toml").is_file():
        inside = [f"model.image_codes.run={path / 'image_codes'}"] if (path / "image_codes" / "recipe.toml").is_file() else []
        return str(path), read_recipe(path / "recipe.toml", [*inside, *overrides]), *run_vocabulary(path)
    if not path.exists() and not path.suffix:
        raise UserError(
            f"{str(what)!r} is no recipe, run folder or preset; presets: {', '.join(PRESET_SETTINGS)}, "
            "and block for one encoder block"
        )
    recipe = read_recipe(path, list(overrides))
    return path.name, recipe, target_vocabulary(recipe), vocabulary_notes(recipe)


def per_batch(recipe: Recipe) -> str:
    return (
        f"{recipe.train.images_per_batch:,} pairs"
        if recipe_task(recipe).explains == "similarity"
        else f"{recipe.train.tokens_per_batch:,} tokens"
    )


def apply_overrides(settings: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for override in overrides:
        recipes.apply_override(settings, override)
    return settings


def run_vocabulary(folder: Path) -> tuple[tuple[int, int], list[str]]:
    """The sizes in a run's config.json, or what its recipe aims at before there is one."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if "labels" in config:
            return (int(config["labels"]),) * 2, [f"{int(config['labels']):,} labels, as in the run"]
        found = int(config["vocabularies"][0]), int(config["vocabularies"][-1])
    except FileNotFoundError:
        recipe = read_recipe(folder / "recipe.toml")
        return target_vocabulary(recipe), vocabulary_notes(recipe)
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{folder / 'config.json'} is damaged ({type(error).__name__}: {error}); train the run again") from None
    return found, [f"vocabulary {format_sizes(found)}, as in the run"]


def target_vocabulary(recipe: Recipe) -> tuple[int, int]:
    if hasattr(recipe.model, "codebook_size"):
        return recipe.model.codebook_size, recipe.model.codebook_size
    return (
        (IMAGENET_LABELS, IMAGENET_LABELS)
        if recipe_task(recipe).explains == "image_label"
        else (recipe.tokens.size, recipe.tokens.size)
    )


def vocabulary_notes(recipe: Recipe) -> list[str]:
    if recipe_task(recipe).explains == "image_label":
        return [f"{IMAGENET_LABELS:,} labels assumed"]
    if hasattr(recipe.model, "codebook_size"):
        return [f"a book of {recipe.model.codebook_size:,} codes"]
    kind = "joint" if getattr(recipe.tokens, "joint", True) else "for each language"
    kind = f" {kind}" if recipe.task == "translate" else ""
    return [f"vocabulary {recipe.tokens.size:,}{kind}: the size aimed at (tokens.size); small data may give fewer"]


def format_sizes(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]:,}" if sizes[0] == sizes[1] else f"{sizes[0]:,} and {sizes[1]:,}"
