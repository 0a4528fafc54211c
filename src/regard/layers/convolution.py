"""Convolutions: a gated layer over sequences, layers over images and code grids, and the normalisation of pixels."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.hardware import autocast_dtype


class GatedConvolution(nn.Module):
    """The convolutional encoder layer of Gehring et al. 2017 (sec. 3.2, 3.4 and 3.5): (B, T, D) -> (B, T, D).

        y_i = (x_i + (A w_i + a) ⊙ σ(B w_i + b)) · √½,    w_i = [x_{i-(k-1)/2}; …; x_{i+(k-1)/2}]

    A gated linear unit (Dauphin et al. 2017) over the k positions around each one, zeros beyond the ends of a sequence. The
    factor √½ halves the variance of the sum. Weights start at N(0, √(4p/kd)), p the fraction that dropout keeps, since a gate
    passes a quarter of the variance of small inputs.

    Deviations: no weight normalisation (Salimans & Kingma 2016); all layers have the same width, so that nothing is projected on
    the residual path.
    """

    def __init__(self, width: int, kernel: int = 3, *, dropout: float = 0.0):
        super().__init__()
        assert kernel % 2 == 1, f"a neighbourhood has a centre: expected an odd kernel, got {kernel}"
        self.convolve = nn.Conv1d(width, 2 * width, kernel, padding=kernel // 2)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.convolve.weight, std=math.sqrt(4 * (1 - dropout) / (kernel * width)))
        nn.init.zeros_(self.convolve.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """With `lengths` (B,), positions after the end of a sequence are read as zeros; their outputs are meaningless."""
        if lengths is not None:
            padding = torch.arange(x.size(1), device=x.device) >= lengths[:, None]  # (B, T)
            x = x.masked_fill(padding[..., None], 0.0)
        gated = F.glu(self.convolve(self.dropout(x).transpose(1, 2)), dim=1)  # (B, D, T)
        return (x + gated.transpose(1, 2)) * math.sqrt(0.5)


class GridConv2d(nn.Conv2d):
    """A convolution whose output has the size `grid`; its initialisation keeps the variance through ReLUs (He et al. 2015)."""

    def __init__(self, width: int, out: int, kernel: int, grid: tuple[int, int], *, stride: int = 1):
        super().__init__(width, out, kernel, stride=stride, padding=(kernel - 1) // 2)
        self.grid = grid
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]


def can_fold_norm(norm: nn.BatchNorm2d, x: Tensor) -> bool:
    """Whether a convolution of `x` may include the batch norm after it: in inference, without gradients, and in full precision,
    since rounding the product of both weights to half precision is less exact than rounding each."""
    is_half = autocast_dtype(x) in (torch.bfloat16, torch.float16)
    return not (norm.training or torch.is_grad_enabled() or is_half)


def fold_norm(weight: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Return the weight and bias of a convolution that includes the batch norm after it, with its running statistics.

    As `torch.nn.utils.fusion.fuse_conv_bn_weights`, which makes parameters, so that torch.compile does not take it.
    """
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale


class BatchNormConv2d(nn.Conv2d):
    """A convolution without bias and a batch norm of its output (Ioffe & Szegedy 2015), which has the size `grid`."""

    def __init__(self, width: int, out: int, kernel: int, grid: tuple[int, int], *, stride: int = 1):
        super().__init__(width, out, kernel, stride=stride, padding=(kernel - 1) // 2, bias=False)
        self.grid = grid
        self.norm = nn.BatchNorm2d(out)
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        if can_fold_norm(self.norm, x):
            return self._conv_forward(x, *fold_norm(self.weight, self.norm))
        return self.norm(super().forward(x))


class BasicBlock(nn.Module):
    """relu(Wx + f(x)), f = convolution, norm, ReLU, convolution, norm; W is the identity where the shape stays (He et al. 2016,
    fig. 5, left, and option B)."""

    def __init__(self, width: int, out: int, grid: tuple[int, int], *, stride: int = 1):
        super().__init__()
        self.first = BatchNormConv2d(width, out, 3, grid, stride=stride)
        self.second = BatchNormConv2d(out, out, 3, grid)
        same = width == out and stride == 1
        self.shortcut = nn.Identity() if same else BatchNormConv2d(width, out, 1, grid, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.second(F.relu(self.first(x))))


class ResidualConv2d(nn.Module):
    """x + W₁ relu(W₃ relu(x)): (B, D, h, w) -> (B, D, h, w) (van den Oord et al. 2017, sec. 4.1)."""

    def __init__(self, width: int, grid: tuple[int, int]):
        super().__init__()
        self.wide = GridConv2d(width, width, 3, grid)
        self.narrow = GridConv2d(width, width, 1, grid)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.relu(self.wide(F.relu(x))))


class NormalizePixels(nn.Module):
    """uint8 pixels (B, 3, H, W) -> (x / 255 - mean) / std; floating-point pixels are normalised already and pass through."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        self.mean: Tensor
        self.std: Tensor
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels if pixels.is_floating_point() else (pixels / 255 - self.mean) / self.std
