"""Linear layers for inference on a GPU: y = f(W x + b) in one kernel, with an activation f or without.

For a few rows x, as when one text is decoded, the time is that of reading W once, and a Triton kernel takes a half of the time
of cuBLAS: each program handles a few outputs of all rows, and reads all their weights at once. For more rows cuBLAS computes
the product, and ReLU and the tanh form of GELU with it. Both must equal the written-out form (tests/layers/test_linear.py).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.hardware import HAS_TRITON, runs_inference_kernels

if HAS_TRITON:
    import triton
    import triton.language as tl

MAX_ROWS = 8
MAX_OUTPUTS = 16_384
"""cuBLAS is as fast for more: they fill the GPU."""
TILE = 4096
"""Weights that a program reads at once."""
FUSED_ACTIVATIONS = ("relu", "gelu_tanh")


class InferenceLinear(nn.Linear):
    """A linear layer of a model that was converted for inference."""

    def forward(self, x: Tensor, activation: str | None = None) -> Tensor:
        """Return W x + b, or with one of FUSED_ACTIVATIONS its activation: (…, D) -> (…, E)."""
        fused = runs_inference_kernels(x) and x.dtype == self.weight.dtype and not torch.is_autocast_enabled(x.device.type)
        if fused and x.numel() <= MAX_ROWS * self.in_features and self.out_features <= MAX_OUTPUTS:
            return few_rows_linear(x, self.weight, self.bias, activation)
        if fused and activation is not None and self.bias is not None and x.is_cuda:
            use_gelu = activation == "gelu_tanh"
            y = torch._addmm_activation(self.bias, x.flatten(0, -2), self.weight.t(), use_gelu=use_gelu)
            return y.view(*x.shape[:-1], -1)
        y = F.linear(x, self.weight, self.bias)
        return y if activation is None else y.relu() if activation == "relu" else F.gelu(y, approximate="tanh")


def few_rows_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> Tensor:
    """Return f(W x + b) of at most MAX_ROWS rows: (…, D), (E, D), (E,) -> (…, E)."""
    (E, D), x = weight.shape, x.contiguous()
    y, rows = x.new_empty(*x.shape[:-1], E), x.numel() // D
    chunk = min(TILE, triton.next_power_of_2(D))
    padded_rows = triton.next_power_of_2(rows)
    few_rows_linear_kernel[(triton.cdiv(E, TILE // chunk),)](
        x,
        weight,
        bias,
        y,
        rows,
        D,
        E,
        activation,
        padded_rows,
        TILE // chunk,
        chunk,
        num_warps=4 if padded_rows <= 2 else 8,
    )
    return y


if HAS_TRITON:

    @triton.jit(do_not_specialize=["rows"])
    def few_rows_linear_kernel(
        x,  # (rows, D)
        weight,  # (E, D)
        bias,  # (E,), or None
        y,  # (rows, E)
        rows,
        D,
        E,
        ACTIVATION: tl.constexpr,
        ROWS: tl.constexpr,  # a power of two from `rows` on
        OUTPUTS: tl.constexpr,
        CHUNK: tl.constexpr,
    ):
        row, output = tl.arange(0, ROWS), tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
        total = tl.zeros((ROWS, OUTPUTS), tl.float32)
        for first in range(0, D, CHUNK):
            d = (first + tl.arange(0, CHUNK))[None, None, :]
            of_output, of_row = output[None, :, None], row[:, None, None]
            w = tl.load(weight + of_output.to(tl.int64) * D + d, mask=(of_output < E) & (d < D), other=0.0)
            inputs = tl.load(x + of_row * D + d, mask=(of_row < rows) & (d < D), other=0.0)
            total += tl.sum(inputs.to(tl.float32) * w.to(tl.float32), 2)
        if bias is not None:
            total += tl.load(bias + output, mask=output < E, other=0.0).to(tl.float32)[None, :]
        if ACTIVATION == "relu":
            total = tl.maximum(total, 0.0)
        elif ACTIVATION == "gelu_tanh":  # x σ(2u) = x (1 + tanh u) / 2, u = √(2/π) (x + 0.044715 x³)
            total = total * tl.sigmoid(1.5957691216057308 * (total + 0.044715 * total * total * total))
        place = row[:, None] * E + output[None, :]
        tl.store(y + place, total.to(y.dtype.element_ty), mask=(row[:, None] < rows) & (output[None, :] < E))
