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

from regard.errors import Mistake
from regard.interop.convert import Foreign, open_folder
from regard.models.zoo import MODELS
from regard.recipe import (
    Answering,
    Data,
    Decode,
    DecoderModel,
    EncoderModel,
    LabelledData,
    PairData,
    PairTokens,
    Part,
    QuestionData,
    TaggedData,
    TextData,
    Train,
    TransformerModel,
)
from regard.run import environment
from regard.run.answer import AnswerRun
from regard.run.base import Run
from regard.run.classify import Classifier
from regard.run.language import LanguageRun
from regard.run.masked import MaskedRun
from regard.run.read import Reader
from regard.run.regress import Regressor
from regard.run.tag import Tagger
from regard.run.translate import Translator
from regard.training.checkpoint import load_weights, weights_of

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""owner/model"""
FETCHED = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
           "*.safetensors", "model.safetensors.index.json"]
PICKLES = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]


class Filler(MaskedRun):
    """One whose mask has a number of its own."""

    @property
    def mask(self) -> int:
        assert self.foreign is not None and self.foreign.mask is not None
        return self.foreign.mask


ENCODERS = ("masked", "read", "classify", "regress", "tag", "answer")
PARTS: dict[str, type[Part]] = {"translate": TransformerModel, "language": DecoderModel, **dict.fromkeys(ENCODERS, EncoderModel)}
DATA: dict[str, type[Data]] = {"translate": PairData, "language": TextData, "masked": TextData, "read": TextData,
                               "classify": LabelledData, "regress": LabelledData, "tag": TaggedData, "answer": QuestionData}
KINDS: dict[str, type[Run]] = {"translate": Translator, "language": LanguageRun, "masked": Filler, "read": Reader,
                               "classify": Classifier, "regress": Regressor, "tag": Tagger, "answer": AnswerRun}


@dataclass(frozen=True)
class Brought:
    """What a run asks of its recipe, for a model that came without one."""

    task: str
    model: Any
    data: Data
    """With its defaults, and nothing in it."""
    seed: int = 1
    tokens: PairTokens = field(default_factory=PairTokens)
    train: Train = field(default_factory=Train)
    decode: Decode = field(default_factory=Decode)
    answering: Answering = field(default_factory=Answering)

    def digest(self) -> str:
        settings = {"task": self.task, "model": self.model.model_dump(mode="json"), "decode": self.decode.model_dump(mode="json")}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def load_foreign(folder: Path, *, device: str = "auto", allow_pickle: bool = False) -> Run:
    """A run of the folder's task. Its model is first built without memory, and again when every tensor was found to fit."""
    where = environment.choose_device(device)
    foreign = open_folder(folder, allow_pickle=allow_pickle)
    recipe = brought(foreign)
    wanted = shapes(foreign, recipe.model)
    weights = foreign.weights(wanted)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)                                            # for what the folder has no weights of
        run = KINDS[foreign.task](folder, recipe, where, foreign)
    with torch.no_grad():
        load_weights(run.model, {**weights_of(run.model), **weights}, str(folder))
    return run


def brought(foreign: Foreign) -> Brought:
    try:
        model = PARTS[foreign.task].model_validate(foreign.model)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise Mistake(f"{foreign.config.path}: {problem}") from None
    return Brought(foreign.task, model, DATA[foreign.task].model_construct())


def shapes(foreign: Foreign, settings: Any) -> dict[str, torch.Size]:
    """Of every tensor of a model of these settings, without making one."""
    sizes = [foreign.tokenizer.size] * (2 if foreign.task == "translate" else 1)
    labels = [len(foreign.labels)] if foreign.labels else []
    with torch.device("meta"):
        model = MODELS[foreign.task][settings.kind](settings, *sizes, *labels)
    return {name: tensor.shape for name, tensor in weights_of(model).items()}


def fetch(name: str, *, allow_pickle: bool = False) -> Path:
    """The folder of a name on the hub, from its cache or the network; HF_HUB_OFFLINE is respected."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled
    except ImportError:
        raise Mistake(f"{name} is no folder here; to look for it on the hub: pip install 'regard[hub]'") from None
    try:
        return Path(snapshot_download(name, allow_patterns=FETCHED + (PICKLES if allow_pickle else [])))
    except HFValidationError:
        raise Mistake(f"{name} does not exist, and is no name on the hub (owner/model)") from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        why = "HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE") else "the hub cannot be reached"
        raise Mistake(f"{name} is neither a folder here nor in the hub's cache, and {why}; fetch it where there is a network "
                      f"(hf download {name}) and give its folder") from None
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise Mistake(f"{name} does not exist here, and the hub does not give it: {reason}") from None
