"""Open a run folder: which kind of run it is follows from its task, and from its world where that is an algorithm."""

from pathlib import Path
from typing import Any

import torch

from regard import recipe as recipes
from regard.errors import UserError
from regard.interop.convert import is_huggingface_folder
from regard.recipe import AlgorithmWorld, Recipe
from regard.run import environment
from regard.run.huggingface import HUB_NAME, download, load_huggingface
from regard.tasks.algorithm import AlgorithmRun
from regard.tasks.answer import AnswerRun
from regard.tasks.base import Run
from regard.tasks.caption import CaptionRun
from regard.tasks.classify import ClassifyRun
from regard.tasks.contrastive import ContrastiveRun
from regard.tasks.image_codes import ImageCodesRun
from regard.tasks.images import ClassifyImagesRun
from regard.tasks.language import LanguageRun
from regard.tasks.masked import MaskedRun
from regard.tasks.regress import Regressor
from regard.tasks.span_corruption import SpanCorruptionRun
from regard.tasks.tag import Tagger
from regard.tasks.text_to_image import TextToImageRun
from regard.tasks.text_to_text import TextToTextRun
from regard.tasks.translate import TranslateRun
from regard.training.checkpoint import load_weights, read_weights

RUNS: dict[str, type[Run]] = {
    "translate": TranslateRun,
    "language": LanguageRun,
    "masked": MaskedRun,
    "span-corruption": SpanCorruptionRun,
    "text-to-text": TextToTextRun,
    "classify": ClassifyRun,
    "regress": Regressor,
    "tag": Tagger,
    "answer": AnswerRun,
    "caption": CaptionRun,
    "contrastive": ContrastiveRun,
    "image-codes": ImageCodesRun,
    "text-to-image": TextToImageRun,
}
RUNS_BY_KIND: dict[tuple[str, str], type[Run]] = {("classify", "vit"): ClassifyImagesRun}
"""Where the kind of model says that a task's examples are no texts."""


def run_class(recipe: Recipe) -> type[Run]:
    if recipe.task == "translate" and isinstance(recipe.data.world, AlgorithmWorld):
        return AlgorithmRun
    return RUNS_BY_KIND.get((recipe.task, recipe.model.kind), RUNS[recipe.task])


def load(path: str | Path, *, device: str = "auto", allow_pickle: bool = False) -> Any:
    """Open a run folder, a Hugging Face folder, or the name of one on the hub; what one can do with it depends on its task."""
    folder = Path(path)
    if not folder.parent.exists() and HUB_NAME.fullmatch(str(path)):
        folder = download(str(path), allow_pickle=allow_pickle)
    if is_huggingface_folder(folder):
        return load_huggingface(folder, device=device, allow_pickle=allow_pickle)
    if not (folder / "recipe.toml").is_file():
        what = "is not a run folder (it has no recipe.toml)" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {what}; make one with: regard train RECIPE --out {folder}")
    if not (folder / "model.safetensors").is_file():
        raise UserError(f"{folder} has no model yet; finish its training with: regard train {folder} --resume")
    recipe = recipes.read_recipe(folder / "recipe.toml")
    run = run_class(recipe)(folder, recipe, environment.choose_device(device))
    with torch.no_grad():
        load_weights(run.model, read_weights(folder / "model.safetensors"), str(folder / "model.safetensors"))
    return run
