"""Augmentation of whole batches of images, on their device: random crops and flips, RandAugment (Cubuk et al. 2020), random
erasing (Zhong et al. 2020), mixup (Zhang et al. 2018), CutMix (Yun et al. 2019).

All random choices are drawn beforehand, as a pure function of (seed, epoch, batch); applying them draws nothing. Deviations: a
rectangle is erased with one colour, not with noise; every image has its own weight in mixup and CutMix.
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

AUGMENT_STREAM = 2
ERASED_AREA, ERASED_LOG_ASPECT = (0.02, 1 / 3), (math.log(0.3), math.log(1 / 0.3))
"""The fraction of the image's area, and the logarithm of height to width."""


@dataclass
class Augmentation:
    """The random choices for each image of one batch."""

    shifts: np.ndarray | None = None  # (B, 2) pixels down and to the right
    flips: np.ndarray | None = None  # (B,)
    operations: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # (B,) index, (B,) magnitude from -1 to 1
    erased: np.ndarray | None = None  # (B, 4) top, left, bottom, right
    colours: np.ndarray | None = None  # (B, 3)
    partners: np.ndarray | None = None  # (B,) the image that it is mixed with
    weights: np.ndarray | None = None  # (B,) of the image itself (mixup)
    cuts: np.ndarray | None = None  # (B, 4) the rectangle taken from the partner (CutMix)

    def __call__(self, batch: Batch) -> Batch:
        """Apply the augmentation to a batch on its device."""
        with torch.autocast(batch.labels.device.type, enabled=False):  # bf16's eight bits are too few for pixels
            return self._apply(batch)

    def _apply(self, batch: Batch) -> Batch:
        pixels = batch.inputs["pixels"]  # (B, 3, H, W)
        device = pixels.device
        if self.shifts is not None and self.flips is not None:
            pixels = shift_and_flip(pixels, to_tensor(self.shifts, device), to_tensor(self.flips, device))
        x = pixels.float()
        for operation, magnitude in self.operations:
            x = rand_augment(x, operation, magnitude)
        if self.erased is not None and self.colours is not None:
            mask = _rectangle_mask(to_tensor(self.erased, device), x)
            x = torch.where(mask, to_tensor(self.colours, device)[:, :, None, None], x)
        mixture = None
        if self.partners is not None and self.weights is not None and self.cuts is not None:
            partners = to_tensor(self.partners, device)
            cut = _rectangle_mask(to_tensor(self.cuts, device), x)
            weight = to_tensor(self.weights, device)[:, None, None, None].masked_fill(cut, 0.0)
            x = weight * x + (1 - weight) * x[partners]
            mixture = MixedLabels(batch.labels[partners], weight.mean((1, 2, 3)))
        return replace(batch, inputs={**batch.inputs, "pixels": x.round().clamp(0, 255).to(torch.uint8)}, mixture=mixture)


def sample_augmentation(settings: "AugmentSettings", rows: np.ndarray, size: tuple[int, int], seed: int, epoch: int) -> Transform:
    """Draw the augmentation of a batch. Its first row identifies it within the epoch."""
    rng, number = np.random.default_rng([seed, AUGMENT_STREAM, epoch, int(rows[0])]), len(rows)
    sampled = Augmentation()
    if settings.crop_padding or settings.flip:
        sampled.shifts = rng.integers(-settings.crop_padding, settings.crop_padding + 1, (number, 2))
        sampled.flips = (rng.random(number) < 0.5) & settings.flip
    if settings.rand_augment is not None:
        for _ in range(settings.rand_augment.operations):
            sign = rng.choice([-1.0, 1.0], number)
            operation = rng.integers(len(OPERATIONS), size=number)
            sampled.operations.append((operation, sign * settings.rand_augment.magnitude / 10))
    if settings.random_erasing:
        erased = rng.random(number) < settings.random_erasing
        area = erased * rng.uniform(*ERASED_AREA, number)
        sampled.erased = random_rectangles(rng, area, size, np.exp(rng.uniform(*ERASED_LOG_ASPECT, number)))
        sampled.colours = rng.integers(256, size=(number, 3)).astype(np.float32)
    if settings.mixup or settings.cutmix:
        is_cut = rng.random(number) < (1.0 if not settings.mixup else 0.5 if settings.cutmix else 0.0)
        alpha = np.where(is_cut, settings.cutmix, settings.mixup)
        weight = rng.beta(alpha, alpha)
        sampled.partners = rng.permutation(number)
        sampled.weights = np.where(is_cut, 1.0, weight).astype(np.float32)
        sampled.cuts = random_rectangles(rng, np.where(is_cut, 1 - weight, 0.0), size, np.full(number, size[0] / size[1]))
    return sampled


def random_rectangles(rng: np.random.Generator, area: np.ndarray, size: tuple[int, int], aspect: np.ndarray) -> np.ndarray:
    """Return rectangles of these fractions of an image and these ratios of height to width, anywhere in it: (N, 4)."""
    pixels = area * size[0] * size[1]
    bounds = []
    for side, length in zip(size, (np.sqrt(pixels * aspect), np.sqrt(pixels / aspect))):
        length = np.minimum(np.rint(length).astype(np.int64), side)
        start = rng.integers(0, side - length + 1)
        bounds += [start, start + length]
    top, bottom, left, right = bounds
    return np.stack([top, left, bottom, right], axis=1)


def _rectangle_mask(rectangle: Tensor, x: Tensor) -> Tensor:
    """Return which pixels of each image lie in its rectangle: (B, 1, H, W)."""
    top, left, bottom, right = rectangle[:, :, None, None, None].unbind(1)  # (B, 1, 1, 1) each
    row = torch.arange(x.size(2), device=x.device)[:, None]
    column = torch.arange(x.size(3), device=x.device)
    return (row >= top) & (row < bottom) & (column >= left) & (column < right)


def shift_and_flip(pixels: Tensor, shifts: Tensor, flips: Tensor) -> Tensor:
    """Flip and then shift images (B, 3, H, W); the border is filled with black."""
    height, width = pixels.shape[2:]
    row = torch.arange(height, device=pixels.device) - shifts[:, :1]  # (B, H) the source of each row
    column = torch.arange(width, device=pixels.device) - shifts[:, 1:]  # (B, W)
    inside = ((row >= 0) & (row < height))[:, :, None] & ((column >= 0) & (column < width))[:, None, :]
    column = torch.where(flips[:, None], width - 1 - column, column).clamp(0, width - 1)
    image = torch.arange(len(pixels), device=pixels.device)[:, None, None]
    shifted = pixels.permute(0, 2, 3, 1)[image, row.clamp(0, height - 1)[:, :, None], column[:, None, :]]  # (B, H, W, 3)
    return (shifted * inside[..., None]).permute(0, 3, 1, 2)
