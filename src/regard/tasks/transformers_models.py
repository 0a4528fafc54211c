"""Models that transformers opens and regard has no model of: to be shown and explained, not trained.

One class for all of them. What differs is the kind of output, which the name of the architecture tells: the next token, masked
tokens, the output text of an encoder–decoder, labels, or hidden states alone.
"""

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from regard.attention.modules import attention_like_modules, named_modules
from regard.errors import UserError
from regard.files import path_exists
from regard.interop.config import read_json
from regard.recipe import BaseData, Recipe, Settings
from regard.tasks.base import Run, SideTokens, TokensBySide
from regard.tasks.masked import MASK_PATTERN
from regard.tasks.shared.pretrained import (
    PretrainedImages,
    PretrainedParts,
    max_positions,
    patch_settings,
    quiet,
    wrap_tokenizer,
)
from regard.tasks.task import HUMAN_CHECK, TEXT_LIMITS, Task, TaskCard
from regard.tokens.tokenizer import Tokenizer
from regard.training.checkpoint import require_finite

INSTALL = "pip install 'regard[transformers]'"
MAX_OUTPUT = 128
"""Tokens that an encoder–decoder writes at most."""


class PretrainedModel(Settings):
    """The settings of a model that transformers built from its own configuration."""

    kind: Literal["transformers"] = "transformers"
    max_length: int
    """Positions of the text that the model reads."""


class PretrainedData(BaseData):
    """A model that came without data."""

    too_long: Literal["error"] = "error"


class TransformersRecipe(Recipe):
    """The settings that a run reads from its recipe, for a model that transformers opened."""

    model: PretrainedModel
    data: PretrainedData = PretrainedData.model_construct()


class TransformersRun(Run):
    """A model that transformers opened."""

    labels: list[str]
    """The labels of a classifier; empty for others."""

    def __init__(self, parts: PretrainedParts, folder: Path, device: torch.device | None = None):
        self._parts = parts
        task = identify_task(parts.model)
        settings = PretrainedModel(max_length=max_positions(parts))
        device = next(parts.model.parameters()).device if device is None else device
        super().__init__(task, folder, TransformersRecipe(task=task.name, model=settings), device)

    @property
    def _is_pretrained(self) -> bool:
        return True

    def _open_files(self) -> None:
        names = getattr(self._parts.model.config, "id2label", None) or {}
        self.labels = [str(names[i]) for i in sorted(names)] if self.task.explains in ("label", "image_label") else []

    def _load_tokenizers(self) -> list[Tokenizer]:
        return [] if self._parts.tokenizer is None else [wrap_tokenizer(self._parts)]

    def _build_model(self) -> nn.Module:
        model: nn.Module = self._parts.model
        return model

    @property
    def _attends(self) -> bool:
        return bool(attention_like_modules(named_modules(self.model)))

    @property
    def _max_positions(self) -> int:
        return int(self.recipe.model.max_length)

    @cached_property
    def _arguments(self) -> set[str]:
        """The names that the model's forward takes."""
        return set(inspect.signature(self.model.forward).parameters)

    def _inputs(self, text: Any) -> dict[str, Tensor]:
        """Return the model's inputs for one text (a pair is separated by a tab) or image; of an encoder–decoder, with its own
        greedy output as target."""
        if "image" in self.task.reads and not (isinstance(text, str) and self._reads_as_text(text)):
            return self._image_inputs(text)
        inputs = self._text_inputs(text)
        if self.task.encoder_decoder:
            inputs["decoder_input_ids"] = self._write_output(inputs)[:, :-1]
        return inputs

    def _reads_as_text(self, given: str) -> bool:
        return "text" in self.task.reads and not (path_exists(given) and Path(given).is_file())

    @cached_property
    def _images(self) -> Any:
        return PretrainedImages(self._parts)

    @property
    def _image_encoder(self) -> tuple[Any, Any]:
        return self.model, patch_settings(self.model)

    def _text_inputs(self, text: str) -> dict[str, Tensor]:
        mask = self._parts.tokenizer.mask_token
        texts = [MASK_PATTERN.sub(lambda _: mask, part) if mask else part for part in text.split("\t", 1)]
        with quiet():
            encoded = self._parts.tokenizer(*texts, return_tensors="pt")
        inputs = {name: part for name, part in encoded.items() if name in self._arguments}
        length = inputs["input_ids"].size(1)
        if not self._text_positions(inputs):
            raise UserError("the text is empty: there is nothing to show")
        if length > self._max_positions:
            raise UserError(f"the text has {length} tokens, the model takes {self._max_positions}; shorten it")
        return inputs

    def _image_inputs(self, image: Any) -> dict[str, Tensor]:
        return self._images.inputs(image)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _write_output(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the tokens (1, T) that an encoder–decoder writes greedily, with the one it starts from."""
        config = self.model.config
        if not self.model.can_generate():  # no output head: the first step alone
            names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
            start = next((i for name in names if (i := getattr(config, name, None)) is not None), 0)
            return torch.tensor([[start, start]])
        return self._generate(inputs, min(MAX_OUTPUT, self._max_positions - 1))

    @torch.no_grad()
    def _generate(self, inputs: dict[str, Tensor], max_tokens: int) -> Tensor:
        """Return the tokens (1, T) that the model writes greedily, for a language model after its prompt."""
        with quiet():
            written: Tensor = self.model.generate(
                **{name: part.to(self.device) for name, part in inputs.items()},
                num_beams=1,
                do_sample=False,
                max_new_tokens=max_tokens,
            )
        return written.cpu()

    def _continue(self, text: str, max_tokens: int) -> tuple[list[int], list[int]]:
        inputs = self._text_inputs(text)
        length = inputs["input_ids"].size(1)
        if length >= self._max_positions:
            raise UserError(f"the text has {length} tokens, the model takes {self._max_positions} with what it generates")
        written = self._generate(inputs, min(max_tokens, self._max_positions - length))[0].tolist()
        return written[:length], written[length:]

    def _causal_inputs(self, ids: Sequence[int]) -> dict[str, Tensor]:
        tokens = torch.tensor([list(ids)], device=self.device)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    def _forward(self, inputs: dict[str, Tensor]) -> Any:
        """Return the logits; without a head, the last hidden states (B, T, D); of an image-text model, the features."""
        if self.task.name == "contrastive":
            features = self.model.get_image_features if "pixel_values" in inputs else self.model.get_text_features
            found = features(**inputs)
        else:
            cache = {"use_cache": False} if "use_cache" in self._arguments else {}
            found = self.model(**inputs, **cache, return_dict=True)
        for name in ("logits", "start_logits", "pooler_output" if self.task.name == "contrastive" else "last_hidden_state"):
            if getattr(found, name, None) is not None:
                return getattr(found, name)
        return found if isinstance(found, Tensor) else found[0]

    def _input_name(self, inputs: dict[str, Tensor]) -> str:
        return "pixel_values" if "pixel_values" in inputs else "input_ids"

    def _text_positions(self, inputs: dict[str, Tensor]) -> list[int]:
        """Return the positions of the tokens of the text itself, without special tokens around it."""
        tokenizer = self._parts.tokenizer
        special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id, tokenizer.mask_token_id}
        return [at for at, token in enumerate(inputs["input_ids"][0].tolist()) if token not in special]

    def _side_tokens(self, inputs: dict[str, Tensor]) -> TokensBySide:
        if "pixel_values" in inputs:
            return {"text": self._patches(inputs["pixel_values"])}
        tokenizer, text = self.tokenizers[0], [self.tokenizers[0].labels(inputs["input_ids"][0].tolist())]
        if "decoder_input_ids" not in inputs:
            return {"text": text}
        target = inputs["decoder_input_ids"][0].tolist()
        sides: TokensBySide = {"source": text, "target": [tokenizer.labels(target)]}
        return {**sides, "predicted": [tokenizer.labels(self._predicted(inputs))]} if self.model.can_generate() else sides

    @torch.no_grad()
    def _predicted(self, inputs: dict[str, Tensor]) -> list[int]:
        logits = self._forward({name: part.to(self.device) for name, part in inputs.items()})
        return [*inputs["decoder_input_ids"][0, 1:].tolist(), int(logits[0, -1].argmax())]

    def _patches(self, pixels: Tensor) -> SideTokens:
        return {"patches": list(patch_settings(self.model).grid((pixels.size(-2), pixels.size(-1))))}

    def _score(self, name: str, examples: Any) -> Any:
        raise UserError(f"{self.folder} is opened with transformers, to be shown and explained; it cannot be evaluated")


# opening


@dataclass(frozen=True)
class OutputKind:
    """A kind of output: the Auto class that opens its models, and the table of transformers that names them."""

    auto_class: str
    architectures: str
    task: Task


def find_kind(architecture: str) -> OutputKind | None:
    """Return the kind of output of an architecture such as "BertForMaskedLM"."""
    from transformers.models.auto import modeling_auto

    for kind in KINDS:
        table = getattr(modeling_auto, kind.architectures, {}).values()
        if architecture in {name for names in table for name in ([names] if isinstance(names, str) else names)}:
            return kind
    return None


def identify_task(model: Any) -> Task:
    """Return the task of a model that transformers built."""
    names = [base.__name__ for base in type(model).__mro__]  # of a subclass of the user's, that of its base
    kind = next((kind for name in names if (kind := find_kind(name)) is not None), None)
    if kind is None:
        kind = next(kind for kind in KINDS if kind.auto_class == "AutoModel")
    task = kind.task
    if task.explains == "label" and model.config.num_labels == 1:
        return REGRESS
    if task is ENCODE and getattr(model.config, "is_encoder_decoder", False):
        return ENCODER_DECODER
    if task is ENCODE and getattr(model, "main_input_name", "input_ids") == "pixel_values":
        return ENCODE_IMAGES
    return task


def wrap_model(model: Any, processor: Any, name: str = "") -> TransformersRun:
    """Return the run of a model of transformers in memory; `processor` is its tokenizer, image processor, or both."""
    tokenizer = getattr(processor, "tokenizer", processor if hasattr(processor, "convert_ids_to_tokens") else None)
    images = getattr(processor, "image_processor", processor if tokenizer is None else None)
    named = name or getattr(model.config, "name_or_path", "") or type(model).__name__
    return TransformersRun(PretrainedParts(model, tokenizer, images), Path(named))


def open_with_transformers(folder: Path, device: torch.device, *, trust_remote_code: bool = False) -> TransformersRun:
    """Open a folder with transformers: safetensors only, no network, and no code of the folder's own unless it is trusted."""
    try:
        import transformers
    except ImportError:
        raise UserError(f"to show and explain it with transformers: {INSTALL}") from None
    if not trust_remote_code and needs_code(folder):
        raise UserError("to run it with transformers, read it first and add --trust-remote-code (trust_remote_code=True)")
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    with quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(folder, **options)
            opened, found = auto_class(config, trust_remote_code).from_pretrained(
                folder, config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **options
            )
            parts = open_processors(folder, opened, options)
        except failures() as error:
            raise UserError(describe_failure(folder, error)) from None
    check_tensors(folder, opened, found)
    return TransformersRun(parts, folder, device)


def check_tensors(folder: Path, model: nn.Module, found: dict[str, Any]) -> None:
    """Refuse a folder whose tensors are not those of the model: transformers would make up what is missing, and drop a bias."""
    leaves = {name for name, module in model.named_modules() if not any(module.children())}
    missing = sorted(name for name in found["missing_keys"] if "pooler." not in name)
    unused = sorted(name for name in found["unexpected_keys"] if name.rpartition(".")[0] in leaves)
    for names, problem in ((missing, "has no weights for"), (unused, "has tensors that the model of its config.json lacks:")):
        if names:
            raise UserError(f"{folder} {problem} {', '.join(names[:3])}{' …' * (len(names) > 3)}")
    for name, tensor in model.named_parameters():
        require_finite(tensor.detach(), f"{folder}: {name}")


def auto_class(config: Any, trust_remote_code: bool) -> Any:
    """Return the Auto class of transformers that opens the architecture of a configuration with its head."""
    import transformers

    names, remote = getattr(config, "architectures", None) or [""], getattr(config, "auto_map", None) or {}
    if trust_remote_code and remote:
        classes = [
            name for name, code in remote.items() if str(code).rpartition(".")[2] == names[0] and hasattr(transformers, name)
        ]
        return getattr(transformers, (classes or ["AutoModel"])[0])
    name = names[0]
    if name.endswith("ForPreTraining"):
        name = name.replace("ForPreTraining", "ForMaskedLM")
    kind = find_kind(name)
    return getattr(transformers, "AutoModel" if kind is None else kind.auto_class)


def open_processors(folder: Path, model: Any, options: dict[str, Any]) -> PretrainedParts:
    """Open the tokenizer and image processor that the model reads with."""
    transformers: Any = import_module("transformers")
    parts, reads = PretrainedParts(model), identify_task(model).reads
    if model.main_input_name not in ("input_ids", "pixel_values"):
        raise ValueError(f"{type(model).__name__} reads {model.main_input_name}; texts and images are read here")
    if "text" in reads:
        parts = replace(parts, tokenizer=transformers.AutoTokenizer.from_pretrained(folder, **options))
    if "image" in reads:
        parts = replace(parts, image_processor=transformers.AutoImageProcessor.from_pretrained(folder, use_fast=False, **options))
    return parts


def needs_code(folder: Path) -> bool:
    """Return whether a folder names Python code of its own, which transformers would ignore unless it is trusted."""
    files = [folder / name for name in ("config.json", "tokenizer_config.json") if (folder / name).is_file()]
    return any(values.get(name) for values in map(read_json, files) for name in ("auto_map", "trust_remote_code"))


def failures() -> tuple[type[Exception], ...]:
    """Return what transformers raises for a folder that it cannot open."""
    from huggingface_hub.errors import StrictDataclassError

    known = (OSError, ValueError, TypeError, LookupError, AttributeError, ImportError, RuntimeError, AssertionError)
    return (*known, SafetensorError, StrictDataclassError)


def describe_failure(folder: Path, error: BaseException) -> str:
    """Return in one line why transformers cannot open a folder."""
    reason = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    if "safetensors" in reason and not list(folder.glob("*.safetensors")):
        return f"{folder} has no .safetensors file; convert its weights first"
    return f"transformers cannot open {folder} ({type(error).__name__}: {reason[:200]})"


# tasks


def _task(name: str, does: str, **more: Any) -> Task:
    return Task(name=name, does=does, recipe=None, run=TransformersRun, models={}, verbs=(), card=CARD, **more)


CARD = TaskCard(
    uses="Seeing what a model attends to. Research and teaching.",
    misuses=f"{HUMAN_CHECK} what is found.",
    limits=TEXT_LIMITS,
    commands=('show {} "…" --terminal',),
)
LANGUAGE = _task("language", "predicts next tokens", decoder_only=True, explains="next_token")
MASKED = _task("masked", "fills in masked words", explains="masked_token")
TEXT_TO_TEXT = _task("text-to-text", "writes texts", encoder_decoder=True, explains="translation")
CLASSIFY = _task("classify", "classifies", explains="label")
CLASSIFY_IMAGES = _task("classify", "classifies images", reads=("image",), explains="image_label")
REGRESS = _task("regress", "predicts a number")
TAG = _task("tag", "tags tokens")
ANSWER = _task("answer", "answers questions")
CONTRASTIVE = _task("contrastive", "compares images and texts", reads=("text", "image"), explains="similarity")
ENCODE = _task("encode", "embeds texts")
ENCODER_DECODER = _task("encode", "embeds texts", encoder_decoder=True)
ENCODE_IMAGES = _task("encode", "embeds images", reads=("image",))
KINDS = (
    OutputKind("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", TEXT_TO_TEXT),
    OutputKind("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", LANGUAGE),
    OutputKind("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", MASKED),
    OutputKind("AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", CLASSIFY),
    OutputKind("AutoModelForTokenClassification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES", TAG),
    OutputKind("AutoModelForQuestionAnswering", "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES", ANSWER),
    OutputKind("AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", CLASSIFY_IMAGES),
    OutputKind("AutoModelForZeroShotImageClassification", "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES", CONTRASTIVE),
    OutputKind("AutoModel", "MODEL_MAPPING_NAMES", ENCODE),
)
"""The first kind that knows an architecture is taken: transformers lists BartForConditionalGeneration as a masked model too."""
