"""A Triton kernel for a norm, with the residual connection before it, in one pass over the features.

    s = x + y;  layer norm: w (s - mean(s)) / √(var(s) + ε) + b;  RMS norm: w s / √(mean(s²) + ε)

One program handles one position. y may come in parts, the sums of a product over some of its inputs each: they are added in their
order, then the bias of that product (`PartialSums`). y and s are rounded to the model's precision before s is normalised, and the
statistics are in float32, as in torch's norms. The kernel must equal `norm(x + y)` (tests/layers/test_norm.py).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.hardware import HAS_TRITON, runs_inference_kernels
from regard.layers.unpadding import is_hooked

if HAS_TRITON:
    import triton
    import triton.language as tl

MAX_WIDTH = 8192
FEATURES_PER_WARP = 256


@dataclass(frozen=True)
class PartialSums:
    """W x + b in parts: the sums over some of the inputs each, to which the bias is still to be added."""

    parts: Tensor  # (parts, …, E) in float32
    bias: Tensor | None
    dtype: torch.dtype
    """That of the model, to which the sum is rounded."""

    def total(self) -> Tensor:
        """Return W x + b (…, E), to the bit what the kernel of a norm adds."""
        total = self.parts[0]
        for part in self.parts[1:]:
            total = total + part
        return (total if self.bias is None else total + self.bias).to(self.dtype)


def can_run(x: Tensor, norm: nn.Module) -> bool:
    """Return whether the kernel computes this norm of a sum like x: a layer or RMS norm in the precision of x, without hooks."""
    return runs_inference_kernels(x) and is_plain_norm(norm, x) and norm.weight.dtype == x.dtype


def is_plain_norm(norm: nn.Module, x: Tensor) -> bool:
    """Return whether this is a layer or RMS norm of the features of x, which fit into one program, and nobody watches it."""
    return (
        isinstance(norm, (nn.LayerNorm, nn.RMSNorm))
        and norm.weight is not None
        and norm.normalized_shape == x.shape[-1:]
        and x.size(-1) <= MAX_WIDTH
        and not is_hooked(norm)
    )


def norm_constants(norm: nn.LayerNorm | nn.RMSNorm, dtype: torch.dtype) -> tuple[bool, float, float]:
    """Return whether this is an RMS norm, its ε for sums of this type, and what it adds to its weight."""
    epsilon = torch.finfo(dtype).eps if norm.eps is None else norm.eps
    return isinstance(norm, nn.RMSNorm), epsilon, getattr(norm, "weight_offset", 0.0)


def add_and_norm(
    x: Tensor, y: Tensor | PartialSums | None, norm: nn.LayerNorm | nn.RMSNorm, *, keep_sum: bool = True
) -> tuple[Tensor | None, Tensor]:
    """Return s = x + y and norm(s), all (…, D); without y, s is x. Without `keep_sum`, s is not written, and None."""
    D, x = x.size(-1), x.contiguous()
    total, normed = torch.empty_like(x) if keep_sum and y is not None else None, torch.empty_like(x)
    (is_rms, epsilon, weight_offset), width = norm_constants(norm, x.dtype), triton.next_power_of_2(D)
    update: Tensor | None
    if isinstance(y, PartialSums):
        update, y_bias, parts = y.parts, y.bias, len(y.parts)
    else:
        update, y_bias, parts = y if y is None else y.contiguous(), None, 0
    add_and_norm_kernel[(x.numel() // D,)](
        x,
        update,
        y_bias,
        total,
        normed,
        norm.weight,
        None if is_rms else norm.bias,
        D,
        epsilon,
        weight_offset,
        (is_rms, width, parts),
        num_warps=min(16, max(1, width // FEATURES_PER_WARP)),
    )
    return x if keep_sum and y is None else total, normed


if HAS_TRITON:

    @triton.jit
    def add_and_norm_kernel(
        x,  # (rows, D)
        y,  # (rows, D), (parts, rows, D) in float32, or None
        y_bias,  # (D,), or None
        sums,  # (rows, D), or None
        norms,  # (rows, D)
        weight,  # (D,)
        bias,  # (D,), or None
        D,
        epsilon,
        weight_offset,
        SETTINGS: tl.constexpr,  # whether it is an RMS norm; a power of two from D on; in how many parts y comes, 0 for y itself
    ):
        PARTS: tl.constexpr = SETTINGS[2]
        features = tl.arange(0, SETTINGS[1])
        inside, place = features < D, tl.program_id(0).to(tl.int64) * D + features
        total = tl.load(x + place, mask=inside, other=0.0)
        scale = tl.load(weight + features, mask=inside, other=0.0).to(tl.float32) + weight_offset  # before the sums wait
        if bias is not None:
            shift = tl.load(bias + features, mask=inside, other=0.0).to(tl.float32)
        if y is not None:
            update = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
            for part in tl.static_range(1, PARTS):
                update += tl.load(y + part * tl.num_programs(0) * D + place, mask=inside, other=0.0)
            if y_bias is not None:
                update += tl.load(y_bias + features, mask=inside, other=0.0).to(tl.float32)
            total = (total.to(tl.float32) + update.to(total.dtype).to(tl.float32)).to(total.dtype)
        if sums is not None:
            tl.store(sums + place, total, mask=inside)
        s = total.to(tl.float32)
        if not SETTINGS[0]:
            s = tl.where(inside, s - tl.sum(s, 0) / D, 0.0)
        normed = s * tl.rsqrt(tl.sum(s * s, 0) / D + epsilon) * scale
        if bias is not None:
            normed += shift
        tl.store(norms + place, normed.to(norms.dtype.element_ty), mask=inside)
