"""Open a run folder: which kind of run it is follows from its task, and from its world where that is an algorithm."""

from pathlib import Path
from typing import Any

import torch

from regard import recipe as recipes
from regard.errors import Mistake
from regard.interop.convert import is_foreign
from regard.recipe import Algorithm, Recipe
from regard.run import environment
from regard.run.huggingface import HUB_NAME, fetch, load_foreign
from regard.tasks.algorithm import Solver
from regard.tasks.answer import AnswerRun
from regard.tasks.base import Run
from regard.tasks.caption import CaptionRun
from regard.tasks.classify import Classifier
from regard.tasks.contrastive import ContrastRun
from regard.tasks.image_codes import CodesRun
from regard.tasks.images import PictureClassifier
from regard.tasks.language import LanguageRun
from regard.tasks.masked import MaskedRun
from regard.tasks.regress import Regressor
from regard.tasks.span_corruption import CorruptedRun
from regard.tasks.tag import Tagger
from regard.tasks.text_to_image import DrawRun
from regard.tasks.text_to_text import TasksRun
from regard.tasks.translate import Translator
from regard.training.checkpoint import load_weights, read_weights

KINDS: dict[str, type[Run]] = {
    "translate": Translator,
    "language": LanguageRun,
    "masked": MaskedRun,
    "corrupted": CorruptedRun,
    "text-to-text": TasksRun,
    "classify": Classifier,
    "regress": Regressor,
    "tag": Tagger,
    "answer": AnswerRun,
    "caption": CaptionRun,
    "contrast": ContrastRun,
    "codes": CodesRun,
    "draw": DrawRun,
}
OF_KIND: dict[tuple[str, str], type[Run]] = {("classify", "vit"): PictureClassifier}
"""Where the kind of model says that a task's examples are no texts."""


def kind_of(recipe: Recipe) -> type[Run]:
    if recipe.task == "translate" and isinstance(recipe.data.world, Algorithm):
        return Solver
    return OF_KIND.get((recipe.task, recipe.model.kind), KINDS[recipe.task])


def load(path: str | Path, *, device: str = "auto", allow_pickle: bool = False) -> Any:
    """Open a run folder, a Hugging Face folder, or the name of one on the hub; what one can do with it depends on its task."""
    folder = Path(path)
    if not folder.parent.exists() and HUB_NAME.fullmatch(str(path)):
        folder = fetch(str(path), allow_pickle=allow_pickle)
    if is_foreign(folder):
        return load_foreign(folder, device=device, allow_pickle=allow_pickle)
    if not (folder / "recipe.toml").is_file():
        what = "is not a run folder (it has no recipe.toml)" if folder.exists() else "does not exist"
        raise Mistake(f"{folder} {what}; make one with: regard train RECIPE --out {folder}")
    if not (folder / "model.safetensors").is_file():
        raise Mistake(f"{folder} has no model yet; finish its training with: regard train {folder} --resume")
    recipe = recipes.read(folder / "recipe.toml")
    run = kind_of(recipe)(folder, recipe, environment.choose_device(device))
    with torch.no_grad():
        load_weights(run.model, read_weights(folder / "model.safetensors"), str(folder / "model.safetensors"))
    return run
