"""What is done to whole batches of pictures while training, on the device they are on: moved and turned around, RandAugment
(Cubuk et al. 2020), random erasing (Zhong et al. 2020), mixup (Zhang et al. 2018), CutMix (Yun et al. 2019).

What happens to which picture is drawn beforehand, as a pure function of (seed, epoch, batch); carrying it out draws nothing.
Deviations: a rectangle is erased with one colour, not with noise; every picture has its own share in mixup and CutMix.
"""

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from regard.batches.batch import Batch, MixedLabels, Transform
from regard.batches.randaugment import OPERATIONS, rand_augment, to_tensor

if TYPE_CHECKING:
    from regard.recipe import AugmentSettings

DRAW = 2
ERASED_AREA, ERASED_SHAPE = (0.02, 1 / 3), (math.log(0.3), math.log(1 / 0.3))
"""Of the picture's area, and the logarithm of height to width."""


@dataclass
class Augmentation:
    """What is done to each picture of one batch."""

    moves: np.ndarray | None = None  # (B, 2) pixels down and to the right
    flips: np.ndarray | None = None  # (B,)
    changes: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # (B,) which, (B,) how far, from -1 to 1
    covers: np.ndarray | None = None  # (B, 4) top, left, bottom, right
    colours: np.ndarray | None = None  # (B, 3)
    partners: np.ndarray | None = None  # (B,) with which other it is mixed
    shares: np.ndarray | None = None  # (B,) what is left of it everywhere
    cuts: np.ndarray | None = None  # (B, 4) and here is nothing left of it

    def __call__(self, batch: Batch) -> Batch:
        """The batch changed; it is on its device already."""
        with torch.autocast(batch.labels.device.type, enabled=False):  # eight bits of bf16 are too few here
            return self.carried_out(batch)

    def carried_out(self, batch: Batch) -> Batch:
        pixels = batch.inputs["pixels"]  # (B, 3, H, W)
        device = pixels.device
        if self.moves is not None and self.flips is not None:
            pixels = shift_and_flip(pixels, to_tensor(self.moves, device), to_tensor(self.flips, device))
        x = pixels.float()
        for which, far in self.changes:
            x = rand_augment(x, which, far)
        if self.covers is not None and self.colours is not None:
            x = torch.where(
                rectangle_mask(to_tensor(self.covers, device), x), to_tensor(self.colours, device)[:, :, None, None], x
            )
        mixture = None
        if self.partners is not None and self.shares is not None and self.cuts is not None:
            partners = to_tensor(self.partners, device)
            mine = to_tensor(self.shares, device)[:, None, None, None].masked_fill(
                rectangle_mask(to_tensor(self.cuts, device), x), 0.0
            )
            x = mine * x + (1 - mine) * x[partners]
            mixture = MixedLabels(batch.labels[partners], mine.mean((1, 2, 3)))
        return replace(batch, inputs={**batch.inputs, "pixels": x.round().clamp(0, 255).to(torch.uint8)}, mixture=mixture)


def sample_augmentation(settings: "AugmentSettings", rows: np.ndarray, size: tuple[int, int], seed: int, epoch: int) -> Transform:
    """What is done to these rows, which are a batch of their own in this epoch: their first one names it."""
    chance, number = np.random.default_rng([seed, DRAW, epoch, int(rows[0])]), len(rows)
    drawn = Augmentation()
    if settings.crop_padding or settings.flip:
        drawn.moves = chance.integers(-settings.crop_padding, settings.crop_padding + 1, (number, 2))
        drawn.flips = (chance.random(number) < 0.5) & settings.flip
    if settings.rand_augment is not None:
        for _ in range(settings.rand_augment.operations):
            sign = chance.choice([-1.0, 1.0], number)
            drawn.changes.append((chance.integers(len(OPERATIONS), size=number), sign * settings.rand_augment.magnitude / 10))
    if settings.random_erasing:
        erased = chance.random(number) < settings.random_erasing
        drawn.covers = random_rectangles(
            chance, erased * chance.uniform(*ERASED_AREA, number), size, np.exp(chance.uniform(*ERASED_SHAPE, number))
        )
        drawn.colours = chance.integers(256, size=(number, 3)).astype(np.float32)
    if settings.mixup or settings.cutmix:
        cut = chance.random(number) < (1.0 if not settings.mixup else 0.5 if settings.cutmix else 0.0)
        alpha = np.where(cut, settings.cutmix, settings.mixup)
        share = chance.beta(alpha, alpha)
        drawn.partners = chance.permutation(number)
        drawn.shares = np.where(cut, 1.0, share).astype(np.float32)
        drawn.cuts = random_rectangles(chance, np.where(cut, 1 - share, 0.0), size, np.full(number, size[0] / size[1]))
    return drawn


def random_rectangles(chance: np.random.Generator, area: np.ndarray, size: tuple[int, int], shape: np.ndarray) -> np.ndarray:
    """Rectangles of these shares of a picture and these heights to widths, anywhere in it: (N, 4)."""
    whole = area * size[0] * size[1]
    found = []
    for side, long in zip(size, (np.sqrt(whole * shape), np.sqrt(whole / shape))):
        long = np.minimum(np.rint(long).astype(np.int64), side)
        begin = chance.integers(0, side - long + 1)
        found += [begin, begin + long]
    top, bottom, left, right = found
    return np.stack([top, left, bottom, right], axis=1)


def rectangle_mask(rectangle: Tensor, x: Tensor) -> Tensor:
    """Which pixels of each picture lie in its rectangle: (B, 1, H, W)."""
    top, left, bottom, right = rectangle[:, :, None, None, None].unbind(1)  # (B, 1, 1, 1) each
    down = torch.arange(x.size(2), device=x.device)[:, None]
    across = torch.arange(x.size(3), device=x.device)
    return (down >= top) & (down < bottom) & (across >= left) & (across < right)


def shift_and_flip(pixels: Tensor, moves: Tensor, flips: Tensor) -> Tensor:
    """Pictures (B, 3, H, W) turned around where they are to be, then moved; black comes in."""
    height, width = pixels.shape[2:]
    down = torch.arange(height, device=pixels.device) - moves[:, :1]  # (B, H) where each row comes from
    across = torch.arange(width, device=pixels.device) - moves[:, 1:]  # (B, W)
    real = ((down >= 0) & (down < height))[:, :, None] & ((across >= 0) & (across < width))[:, None, :]
    across = torch.where(flips[:, None], width - 1 - across, across).clamp(0, width - 1)
    picture = torch.arange(len(pixels), device=pixels.device)[:, None, None]
    found = pixels.permute(0, 2, 3, 1)[picture, down.clamp(0, height - 1)[:, :, None], across[:, None, :]]  # (B, H, W, 3)
    return (found * real[..., None]).permute(0, 3, 1, 2)
