"""Triton kernels for training: the first half of a feed-forward layer, h = m f(W x + b), with m the mask of dropout.

cuBLAS adds the bias to the product and applies ReLU. What is left is one pass each way: forward, other activations f and dropout;
backward, from dh,

    da = m dh f'(a), a = W x + b        db = Σ da

where each program sums db over its own rows, and torch the sums of all programs: the same bits in every run. ReLU keeps h alone,
since f'(a) = [h > 0]; other activations keep a, and the mask is computed again from its seed (`residual_kernel.drop`). They must
equal `dropout(f(linear(x)))` (tests/layers/test_activation_kernel.py).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.hardware import HAS_TRITON, autocast_dtype, runs_training_kernels
from regard.layers.activations import ACTIVATIONS
from regard.layers.residual_kernel import GROUP, dropout_constants, dropout_seed
from regard.layers.unpadding import is_hooked

if HAS_TRITON:
    import triton
    import triton.language as tl

    from regard.layers.residual_kernel import drop

COLUMNS = 1024
"""Features that a program handles at once, of GROUP rows."""
MAX_PROGRAMS = 512
"""Programs of the backward pass for the same features; each sums the gradient of the bias over its rows."""


def can_run(x: Tensor, linear: nn.Module, activation: str, dropout: nn.Module) -> bool:
    """Return whether the kernels compute this activation of a linear layer of x: in training, without hooks or adapters."""
    return (
        linear.training
        and runs_training_kernels(x)
        and type(linear) is nn.Linear
        and activation in ACTIVATIONS
        and not is_hooked(linear)
        and not is_hooked(dropout)
    )


def linear_and_activate(x: Tensor, linear: nn.Linear, activation: str, dropout: float = 0.0) -> Tensor:
    """Return dropout(f(W x + b)), (…, D) -> (…, E); under autocast in its precision."""
    dtype = autocast_dtype(x)
    weights = [None if weight is None else weight.to(dtype) for weight in (linear.weight, linear.bias)]
    rows, seed = x.to(dtype).flatten(0, -2), dropout_seed(dropout, x.device)
    h = _LinearAndActivate.apply(rows, *weights, seed, activation, dropout_constants(dropout))  # type: ignore[no-untyped-call]
    return h.view(*x.shape[:-1], -1)


class _LinearAndActivate(torch.autograd.Function):
    """x (rows, D), weight (E, D), bias (E,), the seed of dropout -> h (rows, E)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        seed: Tensor | None,
        activation: str,
        dropout: tuple[float, float],
    ) -> Tensor:
        is_relu = activation == "relu"
        if bias is None:
            a = x @ weight.t()
        else:
            a = torch._addmm_activation(bias, x, weight.t()) if is_relu else torch.addmm(bias, x, weight.t())
        h = a
        if not is_relu or bias is None or seed is not None:
            h, (rows, E) = a if is_relu else torch.empty_like(a), a.shape
            grid = triton.cdiv(rows, GROUP), triton.cdiv(E, COLUMNS)
            forward_kernel[grid](a, h, seed, rows, E, dropout, activation, COLUMNS)
        ctx.save_for_backward(x, weight, h if is_relu else a, None if is_relu else seed)
        ctx.activation, ctx.dropout, ctx.has_bias = activation, dropout, bias is not None
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, saved, seed = ctx.saved_tensors
        rows, E = saved.shape
        groups = max(1, triton.cdiv(rows, GROUP * MAX_PROGRAMS))
        programs = triton.cdiv(rows, GROUP * groups)
        da, sums = torch.empty_like(saved), saved.new_empty(programs, E, dtype=torch.float32)
        backward_kernel[programs, triton.cdiv(E, COLUMNS)](
            (da, sums), dh.contiguous(), saved, seed, rows, E, ctx.dropout, groups, ctx.activation, COLUMNS
        )
        return (
            da @ weight if ctx.needs_input_grad[0] else None,
            da.t() @ x if ctx.needs_input_grad[1] else None,
            sums.sum(0).to(weight.dtype) if ctx.has_bias else None,
            None,
            None,
            None,
        )


if HAS_TRITON:

    @triton.jit
    def value_and_slope(a, ACTIVATION: tl.constexpr):
        """Return f(a) and f'(a); for ReLU f'(h), which is the same."""
        if ACTIVATION == "relu":
            value, slope = tl.maximum(a, 0.0), tl.where(a > 0, 1.0, 0.0)
        elif ACTIVATION == "gelu":  # a Φ(a)
            normal = 0.5 * (1 + tl.erf(a * 0.7071067811865476))
            value, slope = a * normal, normal + a * 0.3989422804014327 * tl.exp(-0.5 * a * a)
        else:  # a σ(u)
            if ACTIVATION == "gelu_tanh":  # (1 + tanh v) / 2 = σ(2v), v = √(2/π) (a + 0.044715 a³)
                u, du = 1.5957691216057308 * (a + 0.044715 * a * a * a), 1.5957691216057308 * (1 + 0.134145 * a * a)
            elif ACTIVATION == "quick_gelu":
                u, du = 1.702 * a, 1.702
            else:
                u, du = a, 1.0
            gate = tl.sigmoid(u)
            value, slope = a * gate, gate + a * gate * (1 - gate) * du
        return value, slope

    @triton.jit(do_not_specialize=["rows"])
    def forward_kernel(
        a,  # (rows, E)
        h,  # (rows, E)
        seed,  # (1,), or None without dropout
        rows,
        E,
        dropout,  # the probability to drop, and the factor of what is kept
        ACTIVATION: tl.constexpr,
        COLUMNS: tl.constexpr,
        GROUP: tl.constexpr = GROUP,
    ):
        group, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        row = group * GROUP + tl.arange(0, GROUP)[:, None]
        inside, place = (row < rows) & (columns < E)[None, :], row * E + columns[None, :]
        value, _ = value_and_slope(tl.load(a + place, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
        if seed is not None:
            value = drop(value, seed, group, E, columns, dropout)
        tl.store(h + place, value.to(h.dtype.element_ty), mask=inside)

    @triton.jit(do_not_specialize=["rows", "groups"])
    def backward_kernel(
        out,  # da, (rows, E), and the sums of db of each program, (programs, E)
        dh,  # (rows, E)
        saved,  # a, or h for ReLU, (rows, E)
        seed,  # (1,), or None without dropout, and for ReLU
        rows,
        E,
        dropout,  # the probability to drop, and the factor of what is kept
        groups,  # of rows, for each program
        ACTIVATION: tl.constexpr,
        COLUMNS: tl.constexpr,
        GROUP: tl.constexpr = GROUP,
    ):
        program, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        db = tl.zeros((COLUMNS,), tl.float32)
        for group in range(program * groups, (program + 1) * groups):
            row = group * GROUP + tl.arange(0, GROUP)[:, None]
            inside, place = (row < rows) & (columns < E)[None, :], row * E + columns[None, :]
            _, slope = value_and_slope(tl.load(saved + place, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
            da = tl.load(dh + place, mask=inside, other=0.0).to(tl.float32) * slope
            if seed is not None:
                da = drop(da, seed, group, E, columns, dropout)
            elif ACTIVATION == "relu":
                da *= dropout[1]
            da = da.to(out[0].dtype.element_ty)
            db += tl.sum(da.to(tl.float32), 0)
            tl.store(out[0] + place, da, mask=inside)
        tl.store(out[1] + program * E + columns, db, mask=columns < E)
