"""Triton kernels for training: dropout of a sub-layer's output, the residual connection and the norm after it, in one pass.

Written out in torch, under autocast, the residual stream is read and written some ten times for one sub-layer, in float32. Here
the forward pass reads it and the sub-layer's output y once, and writes the sum s and its norm n, this one in the precision of the
products that read it. With m the mask of dropout divided by the probability to keep, ŝ = (s - mean(s)) r, r = 1 / √(var(s) + ε),

    s = x + m y        n = w ŝ + b
    dx = ds + r (g - mean(g) - ŝ mean(g ŝ)), g = w dn        dy = m dx        dw = Σ dn ŝ        db = Σ dn

(an RMS norm has no means to subtract). The backward pass computes ŝ and r again from s, and m from a seed: random numbers are
Philox's (Salmon et al. 2011), a pure function of the seed, which torch's generator draws on the device, so that runs repeat and
CUDA graphs draw new masks. Each program sums dw and db over its own rows, and torch the sums of all programs: no atomic
additions, the same bits in every run. The kernels must equal `norm(x + dropout(y))` (tests/layers/test_residual_kernel.py).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.hardware import HAS_TRITON, runs_training_kernels
from regard.layers.norm_kernel import is_plain_norm, norm_constants

if HAS_TRITON:
    import triton
    import triton.language as tl

MAX_WIDTH = 2048
FEATURES_PER_WARP = 128
GROUP = 4
"""Rows that a program handles at once; Philox makes four random numbers at once, one for each."""
MAX_PROGRAMS = 1024
"""Programs of the backward pass; each sums the gradients of weight and bias over its rows."""


def can_run(x: Tensor, norm: nn.Module) -> bool:
    """Return whether the kernels compute this norm of a sum like x: a layer or RMS norm in training, without hooks."""
    return norm.training and runs_training_kernels(x) and is_plain_norm(norm, x) and x.size(-1) <= MAX_WIDTH


def add_and_norm(
    x: Tensor, y: Tensor | None, norm: nn.LayerNorm | nn.RMSNorm, dropout: float = 0.0, precision: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Return s = x + dropout(y) and norm(s) in this precision, by default that of s, all (…, D); without y, s is x."""
    seed = None if y is None else dropout_seed(dropout, x.device)
    bias = None if isinstance(norm, nn.RMSNorm) else norm.bias
    dtype = x.dtype if y is None else torch.promote_types(x.dtype, y.dtype)
    is_rms, *constants = norm_constants(norm, dtype)
    settings = _NormSettings(is_rms, tuple(constants), dropout_constants(dropout), dtype, precision or dtype)
    total, normed = _AddAndNorm.apply(x, y, norm.weight, bias, seed, settings)  # type: ignore[no-untyped-call]
    return (x if total is None else total), normed


def dropout_seed(dropout: float, device: torch.device) -> Tensor | None:
    """Return a seed for the masks of one call, drawn by torch's generator on the device, without a synchronisation."""
    return torch.randint(2**62, (1,), device=device) if dropout else None


def dropout_constants(dropout: float) -> tuple[float, float]:
    """Return the probability to drop an element, and the factor of those that are kept."""
    return dropout, 0.0 if dropout == 1 else 1 / (1 - dropout)


class _NormSettings(NamedTuple):
    is_rms: bool
    constants: tuple[float, ...]
    """ε, and what is added to the weight."""
    dropout: tuple[float, float]
    dtype: torch.dtype
    norm_dtype: torch.dtype


class _AddAndNorm(torch.autograd.Function):
    """x, y, weight, bias, the seed of dropout -> s (None without y), norm(s)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor | None, seed: Tensor | None, settings: _NormSettings
    ) -> tuple[Tensor | None, Tensor]:
        D, x, y = x.size(-1), x.contiguous(), None if y is None else y.contiguous()
        total = None if y is None else torch.empty_like(x, dtype=settings.dtype)
        normed, rows = torch.empty_like(x, dtype=settings.norm_dtype), x.numel() // D
        forward_kernel[(triton.cdiv(rows, GROUP),)](
            (x, y), (total, normed), (weight, bias), seed, rows, D, settings.constants, settings.dropout, **_options(settings, D)
        )
        ctx.save_for_backward(x if total is None else total, weight, seed)
        ctx.settings, ctx.dtypes = settings, (x.dtype, None if y is None else y.dtype, None if bias is None else bias.dtype)
        ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor | None, d_normed: Tensor | None) -> tuple[Tensor | None, ...]:
        total, weight, seed = ctx.saved_tensors
        (x_dtype, y_dtype, bias_dtype), settings = ctx.dtypes, ctx.settings
        D, rows = total.size(-1), total.numel() // total.size(-1)
        grad = (
            None if d_total is None else d_total.contiguous(),
            torch.zeros_like(total) if d_normed is None else d_normed.contiguous(),
        )
        dx = torch.empty_like(total, dtype=x_dtype)
        dy = None if y_dtype is None else torch.empty_like(total, dtype=y_dtype)
        groups = max(1, triton.cdiv(rows, GROUP * MAX_PROGRAMS))
        programs = triton.cdiv(rows, GROUP * groups)
        sums = total.new_empty(programs, 2, D, dtype=torch.float32)
        constants, dropout, options = settings.constants, settings.dropout, _options(settings, D)
        backward_kernel[(programs,)]((dx, dy, sums), grad, (total, weight), seed, rows, D, constants, dropout, groups, **options)
        dw, db = sums.sum(0)
        return dx, dy, dw.to(weight.dtype), None if bias_dtype is None else db.to(bias_dtype), None, None


def _options(settings: _NormSettings, D: int) -> dict[str, int]:
    """Return what both kernels are compiled for."""
    width = triton.next_power_of_2(D)
    return dict(RMS=settings.is_rms, WIDTH=width, num_warps=min(16, max(1, width // FEATURES_PER_WARP)))


if HAS_TRITON:

    @triton.jit
    def places(row, D, features):
        """Return the places of rows (rows, 1) of features. A thread reads four in a row in any precision: were it eight in bf16,
        the threads would have to exchange them to add float32."""
        return tl.max_contiguous(row * D + features[None, :], [1, 4])

    @triton.jit
    def normalize_rows(s, inside, D, epsilon, RMS: tl.constexpr):
        """Return ŝ and r (rows, 1) of some rows s (rows, WIDTH)."""
        if not RMS:
            s = tl.where(inside, s - tl.sum(s, 1, keep_dims=True) / D, 0.0)
        r = tl.rsqrt(tl.sum(s * s, 1, keep_dims=True) / D + epsilon)
        return s * r, r

    @triton.jit
    def drop(y, seed, group, D, features, dropout):
        """Return y (4, WIDTH) times the mask of dropout divided by the probability to keep."""
        u0, u1, u2, u3 = tl.rand4x(tl.load(seed), group * D + features)
        row = tl.arange(0, 4)[:, None]
        u = tl.where(row == 0, u0[None, :], tl.where(row == 1, u1[None, :], tl.where(row == 2, u2[None, :], u3[None, :])))
        return tl.where(u >= dropout[0], y * dropout[1], 0.0)

    @triton.jit
    def load_features(x, features, D):
        """Return x (D,) as a row (1, WIDTH) in float32."""
        return tl.load(x + features, mask=features < D, other=0.0).to(tl.float32)[None, :]

    @triton.jit(do_not_specialize=["rows"])
    def forward_kernel(
        inputs,  # x and y, (rows, D) each; y may be None
        out,  # s and its norm, (rows, D) each; s is None without y
        parameters,  # weight and bias, (D,) each; the bias may be None
        seed,  # (1,), or None without dropout
        rows,
        D,
        constants,  # ε, and what is added to the weight
        dropout,  # the probability to drop, and the factor of what is kept
        RMS: tl.constexpr,
        WIDTH: tl.constexpr,  # a power of two from D on
        GROUP: tl.constexpr = GROUP,
    ):
        group, features = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
        row = group * GROUP + tl.arange(0, GROUP)[:, None]
        inside, place = (row < rows) & (features < D)[None, :], places(row, D, features)
        s = tl.load(inputs[0] + place, mask=inside, other=0.0).to(tl.float32)
        if inputs[1] is not None:
            y = tl.load(inputs[1] + place, mask=inside, other=0.0).to(tl.float32)
            if seed is not None:
                y = drop(y, seed, group, D, features, dropout)
            s = (s + y).to(out[0].dtype.element_ty)
            tl.store(out[0] + place, s, mask=inside)
        normed, _ = normalize_rows(s.to(tl.float32), inside, D, constants[0], RMS)
        normed *= load_features(parameters[0], features, D) + constants[1]
        if parameters[1] is not None:
            normed += load_features(parameters[1], features, D)
        tl.store(out[1] + place, normed.to(out[1].dtype.element_ty), mask=inside)

    @triton.jit(do_not_specialize=["rows", "groups"])
    def backward_kernel(
        out,  # dx and dy, (rows, D) each; the sums of dw and db of each program, (programs, 2, D); dy may be None
        grad,  # ds and dn, (rows, D) each; ds may be None
        inputs,  # s, (rows, D), and the weight, (D,)
        seed,  # (1,), or None without dropout
        rows,
        D,
        constants,  # ε, and what is added to the weight
        dropout,  # the probability to drop, and the factor of what is kept
        groups,  # of rows, for each program
        RMS: tl.constexpr,
        WIDTH: tl.constexpr,  # a power of two from D on
        GROUP: tl.constexpr = GROUP,
    ):
        program, features = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
        weight = load_features(inputs[1], features, D) + constants[1]
        dw, db = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
        for group in range(program * groups, (program + 1) * groups):
            row = group * GROUP + tl.arange(0, GROUP)[:, None]
            inside, place = (row < rows) & (features < D)[None, :], places(row, D, features)
            s = tl.load(inputs[0] + place, mask=inside, other=0.0).to(tl.float32)
            dn = tl.load(grad[1] + place, mask=inside, other=0.0).to(tl.float32)
            s, r = normalize_rows(s, inside, D, constants[0], RMS)
            dw, db = dw + tl.sum(dn * s, 0), db + tl.sum(dn, 0)
            g = dn * weight
            dx = g - s * (tl.sum(g * s, 1, keep_dims=True) / D)
            if not RMS:
                dx -= tl.sum(g, 1, keep_dims=True) / D
            dx *= r
            if grad[0] is not None:
                dx += tl.load(grad[0] + place, mask=inside, other=0.0).to(tl.float32)
            tl.store(out[0] + place, dx.to(out[0].dtype.element_ty), mask=inside)
            if out[1] is not None:
                if seed is not None:
                    dx = drop(dx, seed, group, D, features, dropout)
                tl.store(out[1] + place, dx.to(out[1].dtype.element_ty), mask=inside)
        sums = out[2] + program * 2 * D + features
        tl.store(sums, dw, mask=features < D)
        tl.store(sums + D, db, mask=features < D)
