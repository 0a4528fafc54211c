"""Augmentation of whole batches of images, on their device: random crops and flips, RandAugment (Cubuk et al. 2020), random
erasing (Zhong et al. 2020), mixup (Zhang et al. 2018), CutMix (Yun et al. 2019).

All random choices are drawn beforehand, as a pure function of (seed, epoch, batch); applying them draws nothing, and needs no
host–device synchronisation. Deviations: a rectangle is erased with one colour, not with noise; every image has its own weight in
mixup and CutMix.

The operations of RandAugment take images (B, 3, H, W) of 0 to 255 and a magnitude from -1 to 1; its sign is a direction where
there are two. The ranges are those of the authors' code; the border is filled with grey. Images with the same operation are
processed together, and all geometric operations in one call.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.batches.batch import Batch, MixedLabels, Transform, to_device
from regard.recipe import AugmentSettings

AUGMENT_STREAM = 2
ERASED_AREA, ERASED_LOG_ASPECT = (0.02, 1 / 3), (math.log(0.3), math.log(1 / 0.3))
"""The fraction of the image's area, and the logarithm of height to width."""
Matrix = Sequence[Sequence[np.ndarray | float]]
GREY = 128.0
SHEAR, TRANSLATE, ROTATE, BLEND, BITS = 0.3, 0.45, math.radians(30), 0.9, 4

GEOMETRIC: dict[str, Callable[[np.ndarray, int, int], Matrix]] = {
    "shear x": lambda magnitude, height, width: [[1.0, SHEAR * magnitude, 0.0], [0.0, 1.0, 0.0]],
    "shear y": lambda magnitude, height, width: [[1.0, 0.0, 0.0], [SHEAR * magnitude, 1.0, 0.0]],
    "translate x": lambda magnitude, height, width: [[1.0, 0.0, TRANSLATE * width * magnitude], [0.0, 1.0, 0.0]],
    "translate y": lambda magnitude, height, width: [[1.0, 0.0, 0.0], [0.0, 1.0, TRANSLATE * height * magnitude]],
    "rotate": lambda magnitude, height, width: [
        [np.cos(ROTATE * magnitude), -np.sin(ROTATE * magnitude), 0.0],
        [np.sin(ROTATE * magnitude), np.cos(ROTATE * magnitude), 0.0],
    ],
}
"""The pixel at (x, y), counted from the centre, comes from this matrix times (x, y, 1)."""


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


def sample_augmentation(settings: AugmentSettings, rows: np.ndarray, size: tuple[int, int], seed: int, epoch: int) -> Transform:
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
        is_unmixed = rng.random(number) >= settings.mix_probability
        sampled.weights[is_unmixed], sampled.cuts[is_unmixed] = 1.0, 0
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


def warp(x: Tensor, which: np.ndarray, magnitude: np.ndarray) -> Tensor:
    """Move the pixels of every image by its own matrix; `which` is an index into GEOMETRIC."""
    height, width = x.shape[2:]
    half = (width / 2, height / 2, 1.0)  # torch's coordinates go from -1 to 1
    theta = np.zeros((len(x), 2, 3), np.float32)
    for number, matrix in enumerate(GEOMETRIC.values()):
        rows = which == number
        for i, values in enumerate(matrix(magnitude[rows], height, width)):
            for j, value in enumerate(values):
                theta[rows, i, j] = value * (half[j] / half[i])
    grid = F.affine_grid(to_device(torch.from_numpy(theta), x.device), list(x.shape), align_corners=False)
    return F.grid_sample(x - GREY, grid, align_corners=False) + GREY


def blend(x: Tensor, base: Tensor | float, magnitude: Tensor) -> Tensor:
    """Blend the image towards `base`, or away from it."""
    return (base + (1 + BLEND * magnitude) * (x - base)).clamp(0, 255)


def grey(x: Tensor) -> Tensor:
    """Return the luma (ITU-R 601-2), as Pillow computes it: (B, 1, H, W)."""
    red, green, blue = x[:, :1], x[:, 1:2], x[:, 2:]
    return 0.299 * red + 0.587 * green + 0.114 * blue


def smooth(x: Tensor) -> Tensor:
    """Average each pixel (weight 5) with its neighbours (weight 1 each); the border stays. Pooling instead of a convolution,
    which cuDNN would plan anew for each number of images."""
    if min(x.shape[2:]) < 3:
        return x
    smoothed = x.clone()
    smoothed[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(x, 3, stride=1) + 4 * x[:, :, 1:-1, 1:-1]) / 13
    return smoothed


def solarize(x: Tensor, magnitude: Tensor) -> Tensor:
    """Invert pixels above a threshold."""
    return torch.where(x >= 256 * (1 - magnitude.abs()), 255 - x, x)


def posterize(x: Tensor, magnitude: Tensor) -> Tensor:
    """Keep 8 to 4 bits of each channel."""
    step = 2 ** (BITS * magnitude.abs()).round()
    return (x.round() / step).floor() * step


def autocontrast(x: Tensor, magnitude: Tensor) -> Tensor:
    """Stretch each channel to the full range."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) * 255 / (high - low).clamp(min=1e-6), x)


def equalize(x: Tensor, magnitude: Tensor) -> Tensor:
    """Equalize each channel's histogram, by Pillow's rule."""
    levels = x.round().long().flatten(2).flatten(0, 1)  # (B·3, H·W)
    counts = levels.new_zeros(len(levels), 256).scatter_add_(1, levels, torch.ones_like(levels))
    last = counts.gather(1, levels.amax(1, keepdim=True))  # the count of the brightest level
    step = (levels.size(1) - last) // 255
    table = ((counts.cumsum(1) - counts + step // 2) // step.clamp(min=1)).clamp(max=255)
    equalized = torch.where(step > 0, table.gather(1, levels), levels)
    return equalized.view(x.shape).to(x.dtype)


PHOTOMETRIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda x, magnitude: blend(x, 0.0, magnitude),
    "contrast": lambda x, magnitude: blend(x, grey(x).mean((2, 3), keepdim=True).round(), magnitude),
    "colour": lambda x, magnitude: blend(x, grey(x), magnitude),
    "sharpness": lambda x, magnitude: blend(x, smooth(x), magnitude),
    "solarize": solarize,
    "posterize": posterize,
    "autocontrast": autocontrast,
    "equalize": equalize,
}
OPERATIONS = ("identity", *GEOMETRIC, *PHOTOMETRIC)


def rand_augment(x: Tensor, which: np.ndarray, magnitude: np.ndarray) -> Tensor:
    """Apply to every image its own operation: an index into OPERATIONS (B,) and a magnitude (B,)."""
    order = np.argsort(which, kind="stable")
    which, magnitude = which[order], magnitude[order].astype(np.float32)
    bounds = np.searchsorted(which, np.arange(len(OPERATIONS) + 1))  # where the images of each operation start
    first, last = bounds[1], bounds[1 + len(GEOMETRIC)]
    x, magnitudes = x[to_tensor(order, x.device)], to_tensor(magnitude, x.device)[:, None, None, None]
    parts = [x[:first]]
    if last > first:
        parts.append(warp(x[first:last], which[first:last] - 1, magnitude[first:last]))
    for operation, start, end in zip(PHOTOMETRIC.values(), bounds[1 + len(GEOMETRIC) :], bounds[2 + len(GEOMETRIC) :]):
        if end > start:
            parts.append(operation(x[start:end], magnitudes[start:end]))
    return torch.cat(parts)[to_tensor(np.argsort(order), x.device)]


def to_tensor(values: np.ndarray, device: torch.device) -> Tensor:
    return to_device(torch.from_numpy(np.ascontiguousarray(values)), device)
