"""Pictures as rows that batches are made of."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from regard.batches.augment import draw
from regard.batches.batch import Batch
from regard.batches.pixels import Pixels, take

if TYPE_CHECKING:
    from regard.recipe import Augment


@dataclass
class PictureClasses:
    """Read a picture; say its class."""

    pixels: Pixels
    classes: np.ndarray                                                           # (N,)
    positions: int
    """That a picture takes in the model."""
    augment: "Augment | None" = None

    def __len__(self) -> int:
        return len(self.classes)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [np.full(len(self), self.positions)]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        made = Batch({"pixels": take(self.pixels, rows)}, torch.from_numpy(self.classes[rows]), rows)
        height, width = self.pixels.shape[1:3]
        return made if self.augment is None else replace(made, change=draw(self.augment, rows, (height, width), seed, epoch))

    def plain(self) -> "PictureClasses":
        return replace(self, augment=None)

    def capped(self, most: int) -> "PictureClasses":
        return self
