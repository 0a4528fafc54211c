"""Pictures as rows that batches are made of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from regard import rng
from regard.batches.augment import draw
from regard.batches.batch import Batch, Change
from regard.batches.image_store import Pixels, with_pictures
from regard.batches.rows import begun, ended
from regard.batches.token_store import Side
from regard.tokens.special import OURS, Marks

if TYPE_CHECKING:
    from regard.recipe import Augment


def drawn(augment: "Augment | None", pixels: Pixels, rows: np.ndarray, seed: int, epoch: int) -> Change | None:
    """What is done to these rows in this epoch, if anything is."""
    return None if augment is None else draw(augment, rows, (pixels.shape[1], pixels.shape[2]), seed, epoch)


@dataclass
class PictureClasses:
    """Read a picture; say its class."""

    pixels: Pixels
    classes: np.ndarray  # (N,)
    positions: int
    """That a picture takes in the model."""
    augment: "Augment | None" = None

    def __len__(self) -> int:
        return len(self.classes)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [np.full(len(self), self.positions)]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        made = Batch({}, torch.from_numpy(self.classes[rows]), rows)
        return with_pictures(made, self.pixels, rows, drawn(self.augment, self.pixels, rows, seed, epoch))

    def plain(self) -> "PictureClasses":
        return replace(self, augment=None)

    def capped(self, most: int) -> "PictureClasses":
        return self


@dataclass
class PictureCaptions:
    """Read a picture and a caption of it so far; say the next word. A row has one picture and some captions of it, of which each
    epoch takes one."""

    pixels: Pixels
    captions: Side
    pictures: np.ndarray  # (N,) of each row
    first: np.ndarray  # (N,) its first caption
    number: np.ndarray  # (N,) how many it has
    room: int
    """Positions that a row takes, which is what a batch is filled by."""
    marks: Marks = OURS
    augment: "Augment | None" = None

    @staticmethod
    def of(
        pixels: Pixels,
        captions: Side,
        numbers: Sequence[int],
        *,
        room: int,
        marks: Marks,
        augment: "Augment | None" = None,
        each: bool = False,
    ) -> "PictureCaptions":
        """A row for every picture, or for each of its captions."""
        number = np.array(numbers, np.int64)
        pictures, first = np.arange(len(number)), np.concatenate([[0], np.cumsum(number)[:-1]]).astype(np.int64)
        if each:
            pictures, first = np.repeat(pictures, number), np.arange(number.sum())
            number = np.ones(len(first), np.int64)
        return PictureCaptions(pixels, captions, pictures, first, number, room, marks, augment)

    def __len__(self) -> int:
        return len(self.pictures)

    def chosen(self, rows: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """The caption of each row that this epoch takes."""
        return self.first[rows] + (rng.mix(seed, epoch, rows) % self.number[rows].astype(np.uint64)).astype(np.int64)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        written = self.captions.lengths(seed, epoch)[self.chosen(np.arange(len(self)), seed, epoch)] + 1
        return [np.full(len(self), self.room), written]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        caption = self.captions.take(self.chosen(rows, seed, epoch), seed, epoch)
        made = Batch({"target": begun(caption, self.marks)}, ended(caption, self.marks), rows)
        return with_pictures(made, self.pixels, self.pictures[rows], drawn(self.augment, self.pixels, rows, seed, epoch))

    def plain(self) -> "PictureCaptions":
        """The longest caption of each picture, segmented as ever."""
        captions = self.captions.plain()
        lengths = captions.lengths(0, 0)
        longest = np.array([start + lengths[start : start + number].argmax() for start, number in zip(self.first, self.number)])
        return replace(self, captions=captions, augment=None, first=longest.astype(np.int64), number=np.ones_like(self.number))

    def capped(self, most: int) -> "PictureCaptions":
        return replace(self, captions=replace(self.captions, most=most - 1))
