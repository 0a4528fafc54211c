"""Convolutional encoders that map an image to a grid of feature vectors (B, S, D), which a captioner attends to (Xu et al. 2015,
sec. 3.1.1).

The small network has residual blocks (He et al. 2016, fig. 2) with group norm (Wu & He 2018), which does not depend on the batch.
Convolutions hardly encode positions in the image, so these are added, unlike in Xu et al.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.attention.positions import LearnedPositions, build_grid_positions
from regard.layers.convolution import NormalizePixels

if TYPE_CHECKING:
    from regard.recipe.image_models import CnnEncoderModel, MapEncoderModel

GROUPS = 8


class ImageFeatureMap(nn.Module):
    """Pixels (B, 3, H, W) -> a vector for each position of a grid (B, S, D), row by row; subclasses have the network."""

    def __init__(self, settings: "MapEncoderModel", grid: tuple[int, int]):
        super().__init__()
        self.positions = build_grid_positions(settings.positions, width=settings.width, grid=grid, prefix_tokens=0)
        if isinstance(self.positions, LearnedPositions):
            nn.init.normal_(self.positions.table.weight, std=0.02)  # small beside the features at first

    def channels(self, pixels: Tensor) -> Tensor:
        """Return the feature map (B, D, rows, columns)."""
        raise NotImplementedError

    def feature_map(self, pixels: Tensor) -> Tensor:
        """Return the feature map (B, S, D), before positions are added."""
        return self.channels(pixels).flatten(2).transpose(1, 2)

    def add_positions(self, x: Tensor) -> Tensor:
        return self.positions.embed(x, torch.arange(x.size(1), device=x.device))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.add_positions(self.feature_map(pixels))


class Cnn(ImageFeatureMap):
    """A small residual network."""

    def __init__(self, settings: "CnnEncoderModel", size: tuple[int, int]):
        super().__init__(settings, settings.grid(size))
        self.normalize = NormalizePixels(settings.mean, settings.std)
        self.blocks = nn.Sequential(
            *(
                ResidualConvBlock(before, width, stride)
                for before, width, stride in zip([3, *settings.widths], settings.widths, settings.strides)
            )
        )

    def channels(self, pixels: Tensor) -> Tensor:
        return self.blocks(self.normalize(pixels).to(next(self.parameters()).dtype))


class ResidualConvBlock(nn.Module):
    """relu(Wx + f(x)), f = convolution, norm, ReLU, convolution, norm."""

    def __init__(self, width: int, out: int, stride: int):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, out, 3, stride, padding=1, bias=False),
            group_norm(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            group_norm(out),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), group_norm(out))

    def forward(self, x: Tensor) -> Tensor:
        return (self.shortcut(x) + self.inner(x)).relu()


def group_norm(width: int) -> nn.Module:
    return nn.GroupNorm(math.gcd(GROUPS, width), width)
