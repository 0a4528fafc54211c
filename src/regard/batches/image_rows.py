"""Pictures as rows that batches are made of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from regard import rng
from regard.batches.augment import sample_augmentation
from regard.batches.batch import Batch, Transform
from regard.batches.image_store import Pixels, with_pixels
from regard.batches.rows import decoder_inputs, decoder_labels
from regard.batches.token_store import TokenStore
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens

if TYPE_CHECKING:
    from regard.recipe import AugmentSettings


def augmentation(augment: "AugmentSettings | None", pixels: Pixels, rows: np.ndarray, seed: int, epoch: int) -> Transform | None:
    """What is done to these rows in this epoch, if anything is."""
    return None if augment is None else sample_augmentation(augment, rows, (pixels.shape[1], pixels.shape[2]), seed, epoch)


@dataclass
class ImageClassificationRows:
    """Read a picture; say its class."""

    pixels: Pixels
    classes: np.ndarray  # (N,)
    positions: int
    """That a picture takes in the model."""
    augment: "AugmentSettings | None" = None

    def __len__(self) -> int:
        return len(self.classes)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [np.full(len(self), self.positions)]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        made = Batch({}, torch.from_numpy(self.classes[rows]), rows)
        return with_pixels(made, self.pixels, rows, augmentation(self.augment, self.pixels, rows, seed, epoch))

    def deterministic(self) -> "ImageClassificationRows":
        return replace(self, augment=None)

    def truncate(self, most: int) -> "ImageClassificationRows":
        return self


@dataclass
class CaptionRows:
    """Read a picture and a caption of it so far; say the next word. A row has one picture and some captions of it, of which each
    epoch takes one."""

    pixels: Pixels
    captions: TokenStore
    pictures: np.ndarray  # (N,) of each row
    first: np.ndarray  # (N,) its first caption
    number: np.ndarray  # (N,) how many it has
    positions: int
    """Positions that a row takes, which is what a batch is filled by."""
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS
    augment: "AugmentSettings | None" = None

    @staticmethod
    def from_counts(
        pixels: Pixels,
        captions: TokenStore,
        numbers: Sequence[int],
        *,
        positions: int,
        special_tokens: SpecialTokens,
        augment: "AugmentSettings | None" = None,
        each: bool = False,
    ) -> "CaptionRows":
        """A row for every picture, or for each of its captions."""
        number = np.array(numbers, np.int64)
        pictures, first = np.arange(len(number)), np.concatenate([[0], np.cumsum(number)[:-1]]).astype(np.int64)
        if each:
            pictures, first = np.repeat(pictures, number), np.arange(number.sum())
            number = np.ones(len(first), np.int64)
        return CaptionRows(pixels, captions, pictures, first, number, positions, special_tokens, augment)

    def __len__(self) -> int:
        return len(self.pictures)

    def chosen(self, rows: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """The caption of each row that this epoch takes."""
        return self.first[rows] + (rng.hash64(seed, epoch, rows) % self.number[rows].astype(np.uint64)).astype(np.int64)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        written = self.captions.lengths(seed, epoch)[self.chosen(np.arange(len(self)), seed, epoch)] + 1
        return [np.full(len(self), self.positions), written]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        caption = self.captions.take(self.chosen(rows, seed, epoch), seed, epoch)
        made = Batch({"target": decoder_inputs(caption, self.special_tokens)}, decoder_labels(caption, self.special_tokens), rows)
        return with_pixels(made, self.pixels, self.pictures[rows], augmentation(self.augment, self.pixels, rows, seed, epoch))

    def deterministic(self) -> "CaptionRows":
        """The longest caption of each picture, segmented as ever."""
        captions = self.captions.deterministic()
        lengths = captions.lengths(0, 0)
        longest = np.array([start + lengths[start : start + number].argmax() for start, number in zip(self.first, self.number)])
        return replace(self, captions=captions, augment=None, first=longest.astype(np.int64), number=np.ones_like(self.number))

    def truncate(self, most: int) -> "CaptionRows":
        return replace(self, captions=replace(self.captions, max_length=most - 1))
