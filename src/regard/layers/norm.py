"""Layer norm (Ba et al. 2016), RMS norm (Zhang & Sennrich 2019), batch norm, and the residual connection around a sub-layer."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.hardware import autocast_dtype, runs_training_kernels
from regard.layers import norm_kernel, residual_kernel
from regard.layers.norm_kernel import PartialSums
from regard.layers.unpadding import is_hooked


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

    weight_offset = 1.0

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)  # in bf16, 1 + weight would round small weights away
        return F.rms_norm(x.to(dtype), self.normalized_shape, 1 + self.weight.to(dtype), self.eps).to(x.dtype)


Sublayer = Callable[[Tensor], Tensor | PartialSums]
"""A sub-layer of a block; it returns partial sums only to a residual connection that takes them (`takes_parts`)."""


class Update(NamedTuple):
    """The output of a sub-layer that is still to be dropped out and added to the residual stream."""

    y: Tensor | PartialSums  # (B, T, D)
    dropout: nn.Dropout | None = None

    def drop(self) -> Tensor | PartialSums:
        return self.y if self.dropout is None or isinstance(self.y, PartialSums) else self.dropout(self.y)

    def add_to(self, x: Tensor) -> Tensor:
        y = self.drop()
        return x + (y.total() if isinstance(y, PartialSums) else y)


def add_and_norm(x: Tensor, update: Update | None, norm: nn.Module, *, is_stream: bool = False) -> tuple[Tensor, Tensor]:
    """Return x + update and its norm, in one kernel where there is one; None is no update.

    Under autocast, the kernel for training rounds the norm to the precision of the products that read it, unless it `is_stream`:
    the residual stream itself, which stays in full precision. Nothing reads the sum then; the kernel for inference does not write
    it, and the norm stands in its place.
    """
    if residual_kernel.can_run(x, norm) and isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
        y, p = (None, 0.0) if update is None else (update.y, 0.0 if update.dropout is None else update.dropout.p)
        assert not isinstance(y, PartialSums), "there are none while gradients are recorded"
        return residual_kernel.add_and_norm(x, y, norm, p, None if is_stream else autocast_dtype(x))
    update = None if update is None else Update(update.drop())
    y = None if update is None else update.y
    if norm_kernel.can_run(x, norm) and (y is None or x.dtype == y.dtype) and isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
        written, normed = norm_kernel.add_and_norm(x, y, norm, keep_sum=not is_stream)
        return normed if written is None else written, normed
    total = x if update is None else update.add_to(x)
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

    @property
    def takes_parts(self) -> bool:
        """Whether the sub-layer's output is added as it is, so that it may come in parts, which the norm that follows adds up."""
        return self.residual and not self.training and self.scale is None and isinstance(self.output_norm, nn.Identity)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        x, update = self.stream(x, None, sublayer)
        return x if update is None else update.add_to(x)

    def stream(self, x: Tensor, update: Update | None, sublayer: Sublayer) -> tuple[Tensor, Update | None]:
        """Do the same to x + update, and return the result as such a pair: the norm that comes next also adds the update."""
        if self.norm_first:
            x, normed = add_and_norm(x, update, self.norm)
            y = self.output_norm(sublayer(normed))
            return (self.skip(x), self._update(y)) if self.residual else (self._regularize(y), None)
        x = x if update is None else update.add_to(x)
        rounded = x.to(autocast_dtype(x)) if self.training and runs_training_kernels(x) else x  # once, not for each product
        y = sublayer(rounded)
        if self.residual:
            return add_and_norm(self.skip(x), self._update(y), self.norm, is_stream=True)[1], None
        assert isinstance(y, Tensor)
        return add_and_norm(self._regularize(y), None, self.norm, is_stream=True)[1], None

    def _update(self, y: Tensor | PartialSums) -> Update:
        """Return a sub-layer's output (B, T, D), regularized but for the dropout, where this comes last and nobody watches it."""
        if isinstance(y, PartialSums):
            return Update(y)
        if self.drop_path or not self.training or is_hooked(self.dropout):
            return Update(self._regularize(y))
        return Update(y if self.scale is None else self.scale * y, self.dropout)

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
