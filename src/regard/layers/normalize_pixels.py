"""Pixels as numbers that a network reads well."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class NormalizePixels(nn.Module):
    """Pixels (B, 3, H, W), 0 to 255 in uint8 -> (x / 255 - mean) / deviation; what is normalised already stays as it is."""

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]):
        super().__init__()
        self.mean: Tensor
        self.deviation: Tensor
        for name, values in (("mean", mean), ("deviation", deviation)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels if pixels.is_floating_point() else (pixels / 255 - self.mean) / self.deviation
