"""The operations of RandAugment (Cubuk et al. 2020, sec. 3), on images (B, 3, H, W) of 0 to 255.

A magnitude goes from -1 to 1; its sign is a direction where there are two. The ranges are those of the authors' code; the border
is filled with grey. Images with the same operation are processed together, and all geometric operations in one call. No
host–device synchronisation.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.batches.batch import to_device

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
    red, green, blue = x.split(1, dim=1)
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
