"""Captions and after them the codes of their pictures, as rows that batches are made of; and the codes of many pictures, kept."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard import rng
from regard.batches.batch import Batch
from regard.batches.cache_folder import cached_folder
from regard.batches.image_store import pixel_digest
from regard.batches.ragged import Ragged
from regard.corpus.decode_image import ImageTransform
from regard.corpus.examples import ImageExamples
from regard.tokens.special_tokens import BOS

LAYOUT = 1


@dataclass
class TextToImageRows:
    """Read a caption and the codes of its picture so far; say what comes next. In each epoch a picture has one of its captions,
    as (seed, epoch, picture) decides."""

    captions: Ragged
    """The ids of all captions, each at most `text` tokens."""
    of: np.ndarray  # (N + 1,) those of picture i: of[i] … of[i + 1]
    codes: np.ndarray  # (N, h·w)
    words: int
    """Ids that are words; those of what fills up and of codes come after them."""
    text: int
    """Tokens that every caption is filled up to."""
    varied: bool = True

    def __len__(self) -> int:
        return len(self.codes)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [np.full(len(self), self.text + self.codes.shape[1])]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        chosen = self.of[rows]
        if self.varied:
            number = (self.of[rows + 1] - chosen).astype(np.uint64)
            chosen = chosen + (rng.hash64(seed, epoch, rows) % number).astype(np.int64)
        text = caption_prefix(self.captions.take(chosen), self.text, self.words)
        codes = torch.from_numpy(self.codes[rows].astype(np.int64)) + self.words + self.text
        whole = torch.cat([text, codes], dim=1)  # (B, 1 + text + h·w)
        return Batch({"target": whole[:, :-1]}, whole[:, 1:], rows)

    def deterministic(self) -> "TextToImageRows":
        """Every picture with its first caption."""
        return replace(self, varied=False)

    def truncate(self, most: int) -> "TextToImageRows":
        return self


def caption_prefix(captions: Ragged, text: int, words: int) -> Tensor:
    """<s>, the ids of each caption, and the fillers of the positions behind its end: (B, 1 + text)."""
    found = (words + torch.arange(text)).repeat(len(captions), 1)
    for number in range(len(captions)):
        ids = captions[number]
        found[number, : len(ids)] = torch.from_numpy(np.asarray(ids, np.int64))
    return torch.cat([torch.full((len(captions), 1), BOS), found], dim=1)


def open_image_codes(pictures: ImageExamples, frame: ImageTransform, model: str, encode: Callable[[], np.ndarray]) -> np.ndarray:
    """The codes (N, h·w) of pictures, said by the model of this digest if they are not in the cache yet."""

    def build(folder: Path) -> dict[str, int]:
        codes = encode()
        np.save(folder / "codes.npy", codes.reshape(len(codes), -1).astype(np.uint16 if codes.max() < 2**16 else np.int64))
        return {"layout": LAYOUT, "rows": len(codes)}

    name = hashlib.sha256(f"codes {LAYOUT} {model} {pixel_digest(pictures, frame)}".encode()).hexdigest()[:32]
    return np.load(cached_folder(name, build) / "codes.npy", mmap_mode="r")
