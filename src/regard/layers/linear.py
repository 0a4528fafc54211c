"""Linear layers for inference on a GPU: y = f(W x + b) in one kernel, with an activation f or without.

For few rows x, as in a step of decoding, the time is that of reading W once, and a Triton kernel takes less than cuBLAS (see
RESULTS.md). Each program handles a few outputs of all rows. Where a norm follows, it reads only a part of the inputs, so that the
programs of small layers fill the GPU too, and the norm adds up the parts (`PartialSums`). For more rows cuBLAS computes the
product, and ReLU and the tanh form of GELU with it. All must equal the written-out form (tests/layers/test_linear.py).
"""

from functools import cache
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.hardware import HAS_TRITON, TRITON_INTERPRETED, runs_inference_kernels
from regard.layers.activations import ACTIVATIONS
from regard.layers.norm_kernel import PartialSums
from regard.layers.unpadding import is_hooked

if HAS_TRITON:
    import triton
    import triton.language as tl

    from regard.layers.activation_kernel import value_and_slope

MAX_ROWS, MAX_OUTPUTS = 64, 16_384
"""cuBLAS is as fast for more: they fill the GPU."""
FEW_ROWS, MAX_WEIGHTS = 16, 2**22
"""Rows of the smallest product on tensor cores. With more rows, larger weights than this are left to cuBLAS: the kernel was
measured up to 2.4 million."""
STAGES = 5
"""Blocks of weights that are on their way at once, most of them before the first product."""
DTYPES = (torch.float16, torch.float32) if TRITON_INTERPRETED else (torch.float16, torch.bfloat16)
"""float32 stays with cuBLAS; the interpreter, which has no products in bfloat16, tests the kernel in it."""


class InferenceLinear(nn.Linear):
    """A linear layer of a model that was converted for inference."""

    def forward(self, x: Tensor, activation: str | None = None) -> Tensor:
        """Return W x + b, or with one of ACTIVATIONS its activation: (…, D) -> (…, E)."""
        if can_run(self, x):
            return few_rows_linear(x, self, activation)
        fused = activation in ("relu", "gelu_tanh") and self.bias is not None and x.is_cuda and runs_inference_kernels(x)
        if fused and x.dtype == self.weight.dtype and not torch.is_autocast_enabled(x.device.type):
            use_gelu = activation == "gelu_tanh"
            y = torch._addmm_activation(self.bias, x.flatten(0, -2), self.weight.t(), use_gelu=use_gelu)
            return y.view(*x.shape[:-1], -1)
        y = F.linear(x, self.weight, self.bias)
        return y if activation is None else ACTIVATIONS[activation](y)


def can_run(linear: nn.Module, x: Tensor) -> TypeGuard[InferenceLinear]:
    """Return whether the kernel computes a layer of as many rows as x has: few, at inference, in the precision of the layer."""
    if not isinstance(linear, InferenceLinear) or torch.compiler.is_compiling():  # which must not depend on the number of rows
        return False
    rows, weight = x.numel() // max(1, x.size(-1)), linear.weight
    return (
        0 < rows <= (MAX_ROWS if weight.numel() <= MAX_WEIGHTS else FEW_ROWS)
        and runs_inference_kernels(x)
        and 0 < linear.out_features <= MAX_OUTPUTS
        and x.dtype == weight.dtype
        and x.dtype in DTYPES
        and weight.is_contiguous()
        and weight.numel() < 2**31
        and not torch.is_autocast_enabled(x.device.type)
    )


def may_split(linear: nn.Module, x: Tensor) -> TypeGuard[InferenceLinear]:
    """Return whether the kernel computes a layer of as many rows as x has, and nobody watches its output."""
    return can_run(linear, x) and not is_hooked(linear)


def few_rows_linear(x: Tensor, linear: InferenceLinear, activation: str | None = None) -> Tensor:
    """Return f(W x + b) of at most MAX_ROWS rows: (…, D) -> (…, E)."""
    y = x.new_empty(*x.shape[:-1], linear.out_features)
    _launch(x, linear.weight, linear.bias, y, activation, _tiling(y.numel() // y.size(-1), *linear.weight.shape))
    return y


def partial_sums(x: Tensor, linear: InferenceLinear) -> PartialSums:
    """Return W x + b of at most MAX_ROWS rows (…, D), in parts."""
    E, D = linear.weight.shape
    tiles = _tiling(x.numel() // D, E, D, split=True)
    parts = x.new_empty(tiles[3], *x.shape[:-1], E, dtype=torch.float32)
    _launch(x, linear.weight, None, parts, None, tiles)
    return PartialSums(parts, linear.bias, x.dtype)


@cache
def _tiling(rows: int, E: int, D: int, split: bool = False) -> tuple[int, int, int, int, int]:
    """Return the rows, outputs and inputs that a program multiplies at once, the parts of the inputs, and the stages.

    There are about 64 to 200 programs, each with a few blocks of inputs: those were fastest of 21 to 56 tilings of each layer of
    GPT-2 (RESULTS.md). With many rows, every program reads them all, and fewer programs are better.
    """
    few = rows <= FEW_ROWS
    splits = 1 if not split else 4 if few else 2
    outputs = 32 if triton.cdiv(E, 32) * splits >= (96 if few else 64) else 16
    inputs = 128 if D % (128 * splits) == 0 else 64
    return FEW_ROWS if few else MAX_ROWS, outputs, inputs, splits, min(STAGES, triton.cdiv(D, splits * inputs))


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, activation: str | None, tiles: tuple[int, int, int, int, int]
) -> None:
    (E, D), x = weight.shape, x.contiguous()
    grid = triton.cdiv(E, tiles[1]), tiles[3]
    few_rows_linear_kernel[grid](x, weight, bias, y, x.numel() // D, D, E, activation, tiles, num_warps=4)


if HAS_TRITON:

    @triton.jit(do_not_specialize=["rows"])
    def few_rows_linear_kernel(
        x,  # (rows, D)
        weight,  # (E, D)
        bias,  # (E,), or None
        y,  # (rows, E), or (splits, rows, E)
        rows,
        D: tl.constexpr,
        E: tl.constexpr,
        ACTIVATION: tl.constexpr,
        TILES: tl.constexpr,  # rows, outputs and inputs of a product, splits of D, stages
    ):
        ROWS: tl.constexpr = TILES[0]
        OUTPUTS: tl.constexpr = TILES[1]
        INPUTS: tl.constexpr = TILES[2]
        EVEN: tl.constexpr = D % (TILES[3] * INPUTS) == 0  # no block is cut off
        row, output = tl.arange(0, ROWS)[:, None], tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)[:, None]
        part, blocks = tl.program_id(1), tl.cdiv(D, TILES[3] * INPUTS)
        total, column = tl.zeros((ROWS, OUTPUTS), tl.float32), tl.trans(output)
        if bias is not None:
            added = tl.load(bias + column, mask=column < E, other=0.0).to(tl.float32)  # before the loop waits
        for block in tl.range(part * blocks, (part + 1) * blocks, num_stages=TILES[4]):
            d = block * INPUTS + tl.arange(0, INPUTS)[None, :]
            inputs = tl.load(x + row * D + d, mask=(row < rows) & (EVEN | (d < D)), other=0.0)
            w = tl.load(weight + output * D + d, mask=(output < E) & (EVEN | (d < D)), other=0.0)
            total = tl.dot(inputs, tl.trans(w), total, input_precision="ieee")
        if bias is not None:
            total += added
        if ACTIVATION is not None:
            total, _ = value_and_slope(total, ACTIVATION)
        place = y + (part * rows + row) * E + column
        tl.store(place, total.to(y.dtype.element_ty), mask=(row < rows) & (column < E))
