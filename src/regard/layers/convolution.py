"""A convolutional encoder layer (Gehring et al. 2017, sec. 3.2, 3.4 and 3.5).

    y_i = (x_i + (A w_i + a) ⊙ σ(B w_i + b)) · √½,    w_i = [x_{i-(k-1)/2}; …; x_{i+(k-1)/2}]

A gated linear unit (Dauphin et al. 2017) over the k positions around each one; beyond the ends of a sequence are zeros. The
factor √½ halves the variance of the sum. Weights start at N(0, √(4p/kd)), p what dropout leaves, since a gate passes a quarter of
the variance of small inputs.

Deviations: no weight normalisation (Salimans & Kingma 2016); the width stays the same from layer to layer, so that nothing is
projected on the residual path.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GatedConvolution(nn.Module):
    """(B, T, D) -> (B, T, D); each output sees the `kernel` inputs around its place."""

    def __init__(self, width: int, kernel: int = 3, *, dropout: float = 0.0):
        super().__init__()
        assert kernel % 2 == 1, f"a neighbourhood has a centre: expected an odd kernel, got {kernel}"
        self.convolve = nn.Conv1d(width, 2 * width, kernel, padding=kernel // 2)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.convolve.weight, std=math.sqrt(4 * (1 - dropout) / (kernel * width)))
        nn.init.zeros_(self.convolve.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """With `lengths` (B,), what stands after the end of a sequence counts as zeros; what comes out there means nothing."""
        if lengths is not None:
            padding = torch.arange(x.size(1), device=x.device) >= lengths[:, None]  # (B, T)
            x = x.masked_fill(padding[..., None], 0.0)
        gated = F.glu(self.convolve(self.dropout(x).transpose(1, 2)), dim=1)  # (B, D, T)
        return (x + gated.transpose(1, 2)) * math.sqrt(0.5)
