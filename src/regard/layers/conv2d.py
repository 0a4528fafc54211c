"""Convolutions over pictures and grids."""

import torch.nn.functional as F
from torch import Tensor, nn


class GridConv2d(nn.Conv2d):
    """What comes out has the size `grid`; weights start so that ReLUs pass the variance on (He et al. 2015)."""

    def __init__(self, width: int, out: int, kernel: int, grid: tuple[int, int], *, stride: int = 1):
        super().__init__(width, out, kernel, stride=stride, padding=(kernel - 1) // 2)
        self.grid = grid
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]


class ResidualConv2d(nn.Module):
    """x + W₁ relu(W₃ relu(x)): (B, D, h, w) -> (B, D, h, w) (van den Oord et al. 2017, sec. 4.1)."""

    def __init__(self, width: int, grid: tuple[int, int]):
        super().__init__()
        self.wide = GridConv2d(width, width, 3, grid)
        self.narrow = GridConv2d(width, width, 1, grid)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.relu(self.wide(F.relu(x))))
