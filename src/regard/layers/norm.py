"""Layer norm (Ba et al. 2016), RMS norm (Zhang & Sennrich 2019), batch norm, and the residual connection around a sub-layer."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers import norm_kernel


def build_norm(kind: str, width: int, epsilon: float | None = None) -> nn.Module:
    match kind:
        case "rms":
            return nn.RMSNorm(width, eps=epsilon or 1e-6)
        case "zero_centered_rms":
            return ZeroCenteredRMSNorm(width, eps=epsilon or 1e-6)
        case "layer_no_bias":
            return nn.LayerNorm(width, eps=epsilon or 1e-5, bias=False)
        case "batch":
            return BatchNorm(width, eps=epsilon or 1e-5)
        case _:
            return nn.LayerNorm(width, eps=epsilon or 1e-5)


class ZeroCenteredRMSNorm(nn.RMSNorm):
    """RMS norm times 1 + weight, so that weights start at 0 and weight decay draws them to the plain norm (Gemma)."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)  # in bf16, 1 + weight would round small weights away
        return F.rms_norm(x.to(dtype), self.normalized_shape, 1 + self.weight.to(dtype), self.eps).to(x.dtype)


def add_and_norm(x: Tensor, y: Tensor | None, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return x + y and norm(x + y), in one kernel where there is one; None is no y."""
    if norm_kernel.can_run(x, norm) and (y is None or x.dtype == y.dtype) and isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
        return norm_kernel.add_and_norm(x, y, norm, weight_offset=float(isinstance(norm, ZeroCenteredRMSNorm)))
    total = x if y is None else x + y
    return total, norm(total)


class BatchNorm(nn.BatchNorm1d):
    """Normalise each feature over all positions of a batch (Ioffe & Szegedy 2015), padding included: (B, T, D) -> (B, T, D)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).view_as(x)


class Residual(nn.Module):
    """x + sublayer(norm(x)) with the norm first, norm(x + sublayer(x)) as published (Vaswani et al. 2017, sec. 5.4).

    Where the sub-layer changes the width, x is projected to it. While training, the sub-layer's output may be dropped for whole
    examples (stochastic depth, Huang et al. 2016). It may be multiplied by a learned vector that starts small (LayerScale in
    CaiT, Touvron et al. 2021, eq. 9). With the norm first, `sandwich` normalises it too (Ding et al. 2021, sec. 2.4).
    """

    def __init__(
        self,
        width: int,
        out_width: int,
        *,
        norm: str,
        norm_first: bool,
        dropout: float,
        residual: bool = True,
        epsilon: float | None = None,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        sandwich: bool = False,
    ):
        super().__init__()
        self.norm_first, self.residual = norm_first, residual
        self.norm = build_norm(norm, width if norm_first else out_width, epsilon)
        self.output_norm = build_norm(norm, out_width, epsilon) if sandwich else nn.Identity()
        self.skip: nn.Module = nn.Identity() if width == out_width else nn.Linear(width, out_width, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.drop_path = drop_path if residual else 0.0
        self.scale = None if layer_scale is None else nn.Parameter(torch.full((out_width,), layer_scale))

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        x, update = self.stream(x, None, sublayer)
        return x if update is None else x + update

    def stream(self, x: Tensor, update: Tensor | None, sublayer: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
        """Do the same to x + update, and return the result as such a pair: the norm that comes next also adds the update."""
        if not self.norm_first:
            x = x if update is None else x + update
            y = self._regularize(sublayer(x))
            return (add_and_norm(self.skip(x), y, self.norm) if self.residual else add_and_norm(y, None, self.norm))[1], None
        x, normed = add_and_norm(x, update, self.norm)
        y = self._regularize(self.output_norm(sublayer(normed)))
        return (self.skip(x), y) if self.residual else (y, None)

    def _regularize(self, y: Tensor) -> Tensor:
        """Apply layer scale, dropout and stochastic depth to a sub-layer's output (B, T, D)."""
        y = y if self.scale is None else self.scale * y
        if not self.training:
            return y
        y = self.dropout(y)
        if not self.drop_path:
            return y
        kept = torch.rand(len(y), 1, 1, device=y.device) >= self.drop_path
        return y * (kept / (1 - self.drop_path)).to(y.dtype)
