"""What surrounds a model of transformers: its tokenizer and image processor behind the interfaces of ours."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Library
from torch import Tensor, nn

from regard.errors import UserError
from regard.tasks.shared.images import ImageInput, open_image
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens
from regard.tokens.tokenizer import PROBES, Tokenizer

UNLIMITED = 2**30
"""Positions of a model without a limit; transformers writes 1e30 for tokenizers without one."""


@dataclass(frozen=True)
class PretrainedParts:
    """A model of transformers with what turns a text or an image into its inputs."""

    model: Any
    tokenizer: Any = None
    """None if the model reads no text."""
    image_processor: Any = None
    """None if the model reads no image."""


class PretrainedImages:
    """Reads images for a model of transformers, as `ImageReader` does for ours."""

    def __init__(self, parts: PretrainedParts):
        self.processor = parts.image_processor

    def inputs(self, image: ImageInput) -> dict[str, Tensor]:
        """Return the model's inputs for one image."""
        return {"pixel_values": self.processor(images=open_image(image), return_tensors="pt")["pixel_values"]}

    def decode(self, images: Sequence[ImageInput]) -> np.ndarray:
        """Return the pixels (N, H, W, 3) that the model reads, as they are shown."""
        shown = []
        for image in images:
            pixels = self.inputs(image)["pixel_values"][0].float().permute(1, 2, 0).numpy()  # (H, W, 3)
            if getattr(self.processor, "do_normalize", False):
                pixels = pixels * np.array(self.processor.image_std) + np.array(self.processor.image_mean)
            scale = 255 if getattr(self.processor, "do_rescale", True) else 1
            shown.append(np.clip(np.round(pixels * scale), 0, 255).astype(np.uint8))
        return np.stack(shown)


@dataclass(frozen=True)
class PatchSettings:
    """How a model of transformers divides an image into patches, and which of its positions stand for the image."""

    patch_size: tuple[int, int]
    pool: str
    """"class" or "mean"."""
    prefix_tokens: int
    distilled: str = ""

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        return size[0] // self.patch_size[0], size[1] // self.patch_size[1]


def patch_settings(model: Any) -> PatchSettings:
    """Read them from the configuration of a model, and from whether it has a class token."""
    config = getattr(model.config, "vision_config", model.config)
    side = getattr(config, "patch_size", None)
    if not isinstance(side, int | list | tuple):
        raise UserError(f"{config.model_type} does not divide an image into patches of one size")
    down, across = (side, side) if isinstance(side, int) else side
    has_class = any(name.endswith(("cls_token", "class_embedding")) for name, _ in model.named_parameters())
    prefix = int(has_class) + int(getattr(config, "num_register_tokens", 0) or 0)
    return PatchSettings((down, across), "class" if has_class else "mean", prefix)


class PythonTokenizer(Tokenizer):
    """A tokenizer of transformers that is written in Python, behind the interface of ours."""

    def __init__(self, tokenizer: Any, special_tokens: SpecialTokens):
        self.tokenizer, self.special_tokens, self.rows = tokenizer, special_tokens, len(tokenizer)
        self.library = PythonVocabulary(tokenizer)  # type: ignore[assignment]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [self.tokenizer.decode(row, skip_special_tokens=True).strip() for row in ids]

    def piece(self, number: int) -> str:
        token = self.library.id_to_token(number) or ""
        joined = str(self.tokenizer.convert_tokens_to_string(["a", token]))  # with the space before a word
        return joined[1:] if joined.startswith("a") else str(self.tokenizer.convert_tokens_to_string([token]))

    @cached_property
    def special_ids(self) -> set[int]:
        return set(self.tokenizer.all_special_ids)


@dataclass(frozen=True)
class PythonVocabulary:
    """The tokens of such a tokenizer by their ids."""

    tokenizer: Any

    def id_to_token(self, number: int) -> str | None:
        token = self.tokenizer.convert_ids_to_tokens(number)
        return None if token is None else str(token)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.tokenizer.get_vocab())

    def token_to_id(self, token: str) -> int | None:
        return self.tokenizer.get_vocab().get(token)  # type: ignore[no-any-return]


def wrap_tokenizer(parts: PretrainedParts) -> Tokenizer:
    """Return a copy of a tokenizer behind the interface of ours."""
    tokenizer, config = parts.tokenizer, parts.model.config
    prefix, suffix = special_tokens_around(tokenizer)
    bos, eos = ((NO_TOKEN if i is None else int(i)) for i in (tokenizer.bos_token_id, tokenizer.eos_token_id))
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is not None:
        bos = int(config.decoder_start_token_id)
    special_tokens = SpecialTokens(bos, eos, prefix, suffix)
    if not tokenizer.is_fast:
        return PythonTokenizer(tokenizer, special_tokens)
    library = Library.from_str(tokenizer.backend_tokenizer.to_str())  # ours reads special tokens in a text as text
    library.no_truncation()
    library.no_padding()
    return Tokenizer(library, special_tokens)


def special_tokens_around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special tokens that a tokenizer of transformers puts before and after a text."""
    for probe in PROBES:
        plain, whole = (tokenizer(probe, add_special_tokens=added)["input_ids"] for added in (False, True))
        starts = [i for i in range(len(whole)) if plain and whole[i : i + len(plain)] == plain]
        if starts:
            return tuple(whole[: starts[0]]), tuple(whole[starts[0] + len(plain) :])
    return (), ()


def max_positions(parts: PretrainedParts) -> int:
    """Return the positions of a text that the model takes: those of its embeddings, and of its tokenizer."""
    config = getattr(parts.model.config, "text_config", parts.model.config)
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "max_seq_len")]
    limits.append(getattr(parts.tokenizer, "model_max_length", None))
    for name, module in parts.model.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings") and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)  # RoBERTa counts from the padding token on
    return min((int(limit) for limit in limits if isinstance(limit, int) and 0 < limit < UNLIMITED), default=UNLIMITED)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings and progress bars of transformers, whose errors are raised anyway."""
    library: Any = import_module("transformers.utils.logging")
    level, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity(logging.CRITICAL)
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(level)
        if bars:
            library.enable_progress_bar()
