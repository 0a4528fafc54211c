"""A Hugging Face folder, or the name of one on the hub, opened as a run of its task."""

import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from regard.errors import UserError
from regard.interop.convert import HuggingFaceFolder, open_huggingface_folder
from regard.models.registry import MODELS
from regard.recipe import (
    Answering,
    BaseImageData,
    ClipModel,
    Data,
    DecoderModel,
    DecodeSettings,
    EncoderModel,
    ImageTextData,
    LabelledData,
    LabelledImageData,
    PairData,
    PairTokenSettings,
    QuestionData,
    Settings,
    TaggedData,
    TextData,
    TextTraining,
    TransformerModel,
    VitModel,
)
from regard.recipe.images import height_and_width
from regard.run import environment
from regard.tasks.answer import AnswerRun
from regard.tasks.base import Run
from regard.tasks.classify import ClassifyRun
from regard.tasks.contrastive import ContrastiveRun
from regard.tasks.encode import EncodeRun
from regard.tasks.images import ClassifyImagesRun, ImageRun
from regard.tasks.language import LanguageRun
from regard.tasks.masked import MaskedRun
from regard.tasks.regress import Regressor
from regard.tasks.tag import Tagger
from regard.tasks.translate import TranslateRun
from regard.training.checkpoint import load_weights, named_weights

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""owner/model"""
FETCHED = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "preprocessor_config.json",
    "*.safetensors",
    "model.safetensors.index.json",
]
PICKLES = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]


class PretrainedMaskedRun(MaskedRun):
    """One whose mask has a number of its own."""

    @property
    def mask(self) -> int:
        assert self.huggingface is not None and self.huggingface.mask is not None
        return self.huggingface.mask


OPENED: dict[tuple[str, str], tuple[type[Settings], type[Data], type[Run]]] = {
    ("translate", "transformer"): (TransformerModel, PairData, TranslateRun),
    ("language", "transformer"): (DecoderModel, TextData, LanguageRun),
    ("masked", "transformer"): (EncoderModel, TextData, PretrainedMaskedRun),
    ("encode", "transformer"): (EncoderModel, TextData, EncodeRun),
    ("classify", "transformer"): (EncoderModel, LabelledData, ClassifyRun),
    ("regress", "transformer"): (EncoderModel, LabelledData, Regressor),
    ("tag", "transformer"): (EncoderModel, TaggedData, Tagger),
    ("answer", "transformer"): (EncoderModel, QuestionData, AnswerRun),
    ("encode", "vit"): (VitModel, BaseImageData, ImageRun),
    ("classify", "vit"): (VitModel, LabelledImageData, ClassifyImagesRun),
    ("contrastive", "clip"): (ClipModel, ImageTextData, ContrastiveRun),
}
"""By task and kind of model: its settings, what its data would be, and the run."""


@dataclass(frozen=True)
class PretrainedRecipe:
    """What a run asks of its recipe, for a model that came without one."""

    task: str
    model: Any
    data: Data
    """With its defaults, and nothing in it."""
    seed: int = 1
    tokens: PairTokenSettings = field(default_factory=PairTokenSettings)
    train: TextTraining = field(default_factory=TextTraining)
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    answering: Answering = field(default_factory=Answering)

    def digest(self) -> str:
        settings = {"task": self.task, "model": self.model.model_dump(mode="json"), "decode": self.decode.model_dump(mode="json")}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def load_huggingface(folder: Path, *, device: str = "auto", allow_pickle: bool = False) -> Run:
    """A run of the folder's task. Its model is first built without memory, and again when every tensor was found to fit."""
    where = environment.choose_device(device)
    foreign = open_huggingface_folder(folder, allow_pickle=allow_pickle)
    recipe = pretrained_recipe(foreign)
    wanted = tensor_shapes(foreign, recipe.model)
    weights = foreign.weights(wanted)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)  # for what the folder has no weights of
        run = OPENED[foreign.task, recipe.model.kind][2](folder, recipe, where, foreign)
    with torch.no_grad():
        load_weights(run.model, {**named_weights(run.model), **weights}, str(folder))
    return run


def pretrained_recipe(huggingface: HuggingFaceFolder) -> PretrainedRecipe:
    part, data, _ = OPENED[huggingface.task, huggingface.settings["kind"]]
    try:
        model = part.model_validate(huggingface.model)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UserError(f"{huggingface.config.path}: {problem}") from None
    return PretrainedRecipe(huggingface.task, model, data.model_construct(**huggingface.data))


def tensor_shapes(huggingface: HuggingFaceFolder, settings: Any) -> dict[str, torch.Size]:
    """Of every tensor of a model of these settings, without making one."""
    sizes: list[Any] = [height_and_width(huggingface.data["size"])] if huggingface.data else []
    if huggingface.tokenizer is not None:
        sizes += [huggingface.tokenizer.size] * (2 if huggingface.task == "translate" else 1)
    labels = [len(huggingface.labels)] if huggingface.labels else []
    with torch.device("meta"):
        model = MODELS[huggingface.task][settings.kind](settings, *sizes, *labels)
    return {name: tensor.shape for name, tensor in named_weights(model).items()}


def download(name: str, *, allow_pickle: bool = False) -> Path:
    """The folder of a name on the hub, from its cache or the network; HF_HUB_OFFLINE is respected."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled
    except ImportError:
        raise UserError(f"{name} is no folder here; to look for it on the hub: pip install 'regard[hub]'") from None
    try:
        return Path(snapshot_download(name, allow_patterns=FETCHED + (PICKLES if allow_pickle else [])))
    except HFValidationError:
        raise UserError(f"{name} does not exist, and is no name on the hub (owner/model)") from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        why = "HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE") else "the hub cannot be reached"
        raise UserError(
            f"{name} is neither a folder here nor in the hub's cache, and {why}; fetch it where there is a network "
            f"(hf download {name}) and give its folder"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise UserError(f"{name} does not exist here, and the hub does not give it: {reason}") from None
