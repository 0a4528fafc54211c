"""Pictures, each with one of its captions, as rows that batches are made of."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from regard import rng
from regard.batches.batch import Batch
from regard.batches.image_rows import augmentation
from regard.batches.image_store import Pixels, with_pixels
from regard.batches.rows import encoder_inputs
from regard.batches.token_store import TokenStore
from regard.tokens.special_tokens import SpecialTokens

if TYPE_CHECKING:
    from regard.recipe import AugmentSettings


@dataclass
class ImageTextRows:
    """Read a picture and one of its captions; say which of the batch belong together. Every epoch takes the next caption of a
    picture, the first of them drawn by the seed."""

    pixels: Pixels
    captions: TokenStore
    """Those of all pictures, one after another."""
    first: np.ndarray  # (N + 1,)
    """Of picture i: first[i] … first[i + 1]."""
    positions: int
    """That a pair takes; the same for all, so that a batch is drawn from all pairs: were captions of like lengths put together,
    what their length tells would never be learned."""
    special_tokens: SpecialTokens
    augment: "AugmentSettings | None" = None

    def __len__(self) -> int:
        return len(self.first) - 1

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [np.full(len(self), self.positions)]

    def chosen(self, rows: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """Which caption each picture has in this epoch, among those of all."""
        count = (self.first[rows + 1] - self.first[rows]).astype(np.uint64)
        return self.first[rows] + ((rng.hash64(seed, rows) % count + np.uint64(epoch)) % count).astype(np.int64)

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        text = encoder_inputs(self.captions.take(self.chosen(rows, seed, epoch), seed, epoch), self.special_tokens)
        made = Batch(text, torch.arange(len(rows)), rows)
        return with_pixels(made, self.pixels, rows, augmentation(self.augment, self.pixels, rows, seed, epoch))

    def deterministic(self) -> "ImageTextRows":
        return replace(self, captions=self.captions.deterministic(), augment=None)

    def truncate(self, most: int) -> "ImageTextRows":
        return self
