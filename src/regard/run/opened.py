"""Open a run folder: which kind of run it is follows from its task."""

from pathlib import Path
from typing import Any

import torch

from regard import recipe as recipes
from regard.errors import Mistake
from regard.run import environment
from regard.run.base import Run
from regard.run.classify import Classifier
from regard.run.language import LanguageRun
from regard.run.tag import Tagger
from regard.run.translate import Translator
from regard.training.checkpoint import load_weights, read_weights

KINDS: dict[str, type[Run]] = {"translate": Translator, "language": LanguageRun, "classify": Classifier, "tag": Tagger}


def load(path: str | Path, *, device: str = "auto") -> Any:
    """Open a run folder; what one can do with it depends on its task."""
    folder = Path(path)
    if not (folder / "recipe.toml").is_file():
        what = "is not a run folder (it has no recipe.toml)" if folder.exists() else "does not exist"
        raise Mistake(f"{folder} {what}; make one with: regard train RECIPE --out {folder}")
    if not (folder / "model.safetensors").is_file():
        raise Mistake(f"{folder} has no model yet; finish its training with: regard train {folder} --resume")
    recipe = recipes.read(folder / "recipe.toml")
    run = KINDS[recipe.task](folder, recipe, environment.choose_device(device))
    with torch.no_grad():
        load_weights(run.model, read_weights(folder / "model.safetensors"), str(folder / "model.safetensors"))
    return run
