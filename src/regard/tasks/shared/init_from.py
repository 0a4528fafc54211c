"""The architecture of a model that starts from another run or Hugging Face folder (`train.init_from`)."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.interop.convert import is_huggingface_folder, open_huggingface_folder
from regard.interop.family_rules import FlatSettings, flatten_settings, nest_settings
from regard.recipe import Settings, allowed_kinds, read_settings, settings_in
from regard.tasks.starters.data_files import finetuning_recipe
from regard.tasks.starters.starter import Starter
from regard.tasks.task import Task
from regard.tokens.tokenizer import load_any_tokenizer

FREE_SETTINGS = (
    "preset",
    "max_length",
    "pool",
    "head_transform",
    "head_bias",
    "output_bias",
    "first_norm",
    "segments",
    "features",
    "vectors",
)
"""Settings of the head and of the input, which may differ from those of the pretrained model."""


def copy_architecture(settings: dict[str, Any], task: Task) -> dict[str, Any]:
    """Return the settings of a recipe with the architecture that `train.init_from` names, and refuse those that contradict it.

    Nothing is copied unless the two models are of one kind: an image encoder may become a tower of CLIP.
    """
    init_from = (settings.get("train") or {}).get("init_from")
    init_from = {"run": init_from} if isinstance(init_from, str) else init_from
    if not isinstance(init_from, dict) or not isinstance(init_from.get("run"), str) or init_from.get("into") is not None:
        return settings
    given, source = settings.get("model") or {}, read_architecture(Path(init_from["run"]))
    model = find_model_settings(task, source.get("kind"))
    if model is None or given.get("kind", source["kind"]) != source["kind"]:
        return settings
    theirs = present({name: value for name, value in source.items() if name in model.model_fields})
    expand = getattr(model, "fill_from_preset", dict)
    for name, value in present(expand(given)).items():
        if name in theirs and value != theirs[name] and name.split(".")[0] not in FREE_SETTINGS:
            raise UserError(
                f"model.{name} = {value!r}, but train.init_from.run = '{init_from['run']}' has {theirs[name]!r}; leave it out, "
                "the architecture is copied"
            )
    return {**settings, "model": nest_settings({**theirs, **present(given)})}


def finetuning_starter(starter: Starter, folder: Path) -> Starter:
    """Return a starter that fine-tunes a run or Hugging Face folder; it has one size, that of the folder."""
    finish = partial(finetuning_recipe, folder=folder)
    finish(starter.to_toml())  # refuses what is no such folder
    return replace(starter, sizes=starter.sizes[:1], finish=finish, vocabulary=vocabulary_size(folder))


def vocabulary_size(folder: Path) -> int | None:
    """Return the size of a folder's vocabulary; None without any."""
    if is_huggingface_folder(folder):
        tokenizer = open_huggingface_folder(folder).tokenizer
        return None if tokenizer is None else tokenizer.size
    files = [folder / name for name in ("tokenizer.json", "tokenizer.target.json") if (folder / name).is_file()]
    return load_any_tokenizer(files[0]).size if files else None


def present(settings: dict[str, Any]) -> FlatSettings:
    """Return nested settings by dotted name, without those that are None."""
    return {name: value for name, value in flatten_settings(settings).items() if value is not None}


def read_architecture(folder: Path) -> dict[str, Any]:
    """Return the [model] settings of a run folder or Hugging Face folder; empty for a folder of weights alone."""
    if (folder / "recipe.toml").is_file():
        model = read_settings(folder / "recipe.toml").get("model")
        return {name: value for name, value in model.items() if name != "preset"} if isinstance(model, dict) else {}
    return open_huggingface_folder(folder).model if is_huggingface_folder(folder) else {}


def find_model_settings(task: Task, kind: str | None) -> type[Settings] | None:
    """Return the settings class of the task's models of this kind, if they are one stack of one width."""
    if task.recipe is None:
        return None
    models = settings_in(task.recipe.model_fields["model"].annotation)
    return next((model for model in models if kind in allowed_kinds(model) and "width" in model.model_fields), None)
