"""The changes of RandAugment (Cubuk et al. 2020, sec. 3), on pictures (B, 3, H, W) of 0 to 255.

How far goes from -1 to 1; its sign is a direction where there are two. The ranges are those of the authors' code; what comes in
from outside is grey. Pictures with the same change are done together, and all that only move pixels in one go; nothing here
waits for the device.
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
SHEAR, SHIFT, TURN, BLEND, BITS = 0.3, 0.45, math.radians(30), 0.9, 4

GEOMETRIC: dict[str, Callable[[np.ndarray, int, int], Matrix]] = {
    "shear x": lambda far, height, width: [[1.0, SHEAR * far, 0.0], [0.0, 1.0, 0.0]],
    "shear y": lambda far, height, width: [[1.0, 0.0, 0.0], [SHEAR * far, 1.0, 0.0]],
    "shift x": lambda far, height, width: [[1.0, 0.0, SHIFT * width * far], [0.0, 1.0, 0.0]],
    "shift y": lambda far, height, width: [[1.0, 0.0, 0.0], [0.0, 1.0, SHIFT * height * far]],
    "turn": lambda far, height, width: [
        [np.cos(TURN * far), -np.sin(TURN * far), 0.0],
        [np.sin(TURN * far), np.cos(TURN * far), 0.0],
    ],
}
"""What is at (across, down), in pixels from the middle, comes from this matrix times (across, down, 1)."""


def warp(x: Tensor, which: np.ndarray, far: np.ndarray) -> Tensor:
    """Every picture moved by its own matrix; `which` numbers the WARPS."""
    height, width = x.shape[2:]
    half = (width / 2, height / 2, 1.0)  # torch counts in halves of the picture
    theta = np.zeros((len(x), 2, 3), np.float32)
    for number, matrix in enumerate(GEOMETRIC.values()):
        rows = which == number
        for i, values in enumerate(matrix(far[rows], height, width)):
            for j, value in enumerate(values):
                theta[rows, i, j] = value * (half[j] / half[i])
    grid = F.affine_grid(to_device(torch.from_numpy(theta), x.device), list(x.shape), align_corners=False)
    return F.grid_sample(x - GREY, grid, align_corners=False) + GREY


def blend(x: Tensor, base: Tensor | float, far: Tensor) -> Tensor:
    """From the picture towards `base`, or away from it."""
    return (base + (1 + BLEND * far) * (x - base)).clamp(0, 255)


def grey(x: Tensor) -> Tensor:
    """Luma (ITU-R 601-2), as Pillow has it: (B, 1, H, W)."""
    red, green, blue = x.split(1, dim=1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def smooth(x: Tensor) -> Tensor:
    """Each pixel 5 parts of itself and 1 of each neighbour; the border stays. A convolution would be planned anew for each number
    of pictures, which takes longer than all the rest."""
    if min(x.shape[2:]) < 3:
        return x
    softer = x.clone()
    softer[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(x, 3, stride=1) + 4 * x[:, :, 1:-1, 1:-1]) / 13
    return softer


def solarize(x: Tensor, far: Tensor) -> Tensor:
    """Invert what is lighter than a threshold."""
    return torch.where(x >= 256 * (1 - far.abs()), 255 - x, x)


def posterize(x: Tensor, far: Tensor) -> Tensor:
    """Keep 8 to 4 bits of each colour."""
    step = 2 ** (BITS * far.abs()).round()
    return (x.round() / step).floor() * step


def autocontrast(x: Tensor, far: Tensor) -> Tensor:
    """Stretch each colour from its darkest to its lightest."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) * 255 / (high - low).clamp(min=1e-6), x)


def equalize(x: Tensor, far: Tensor) -> Tensor:
    """Make each colour's histogram even, by Pillow's rule."""
    levels = x.round().long().flatten(2).flatten(0, 1)  # (B·3, H·W)
    counts = levels.new_zeros(len(levels), 256).scatter_add_(1, levels, torch.ones_like(levels))
    last = counts.gather(1, levels.amax(1, keepdim=True))  # how many have the lightest level
    step = (levels.size(1) - last) // 255
    table = ((counts.cumsum(1) - counts + step // 2) // step.clamp(min=1)).clamp(max=255)
    even = torch.where(step > 0, table.gather(1, levels), levels)
    return even.view(x.shape).to(x.dtype)


PHOTOMETRIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda x, far: blend(x, 0.0, far),
    "contrast": lambda x, far: blend(x, grey(x).mean((2, 3), keepdim=True).round(), far),
    "colour": lambda x, far: blend(x, grey(x), far),
    "sharpness": lambda x, far: blend(x, smooth(x), far),
    "solarize": solarize,
    "posterize": posterize,
    "autocontrast": autocontrast,
    "equalize": equalize,
}
OPERATIONS = ("identity", *GEOMETRIC, *PHOTOMETRIC)


def rand_augment(x: Tensor, which: np.ndarray, far: np.ndarray) -> Tensor:
    """Every picture with its own change: which of the CHANGES (B,), and how far (B,)."""
    order = np.argsort(which, kind="stable")
    which, far = which[order], far[order].astype(np.float32)
    bounds = np.searchsorted(which, np.arange(len(OPERATIONS) + 1))  # where the pictures of each change begin
    first, last = bounds[1], bounds[1 + len(GEOMETRIC)]
    x, there = x[to_tensor(order, x.device)], to_tensor(far, x.device)[:, None, None, None]
    parts = [x[:first]]
    if last > first:
        parts.append(warp(x[first:last], which[first:last] - 1, far[first:last]))
    for change, begin, end in zip(PHOTOMETRIC.values(), bounds[1 + len(GEOMETRIC) :], bounds[2 + len(GEOMETRIC) :]):
        if end > begin:
            parts.append(change(x[begin:end], there[begin:end]))
    return torch.cat(parts)[to_tensor(np.argsort(order), x.device)]


def to_tensor(values: np.ndarray, device: torch.device) -> Tensor:
    return to_device(torch.from_numpy(np.ascontiguousarray(values)), device)
