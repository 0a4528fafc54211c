"""The position-wise feed-forward layer (Vaswani et al. 2017, eq. 2) and its gated forms (Shazeer 2020)."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.hardware import runs_inference_kernels

gelu_tanh: Callable[[Tensor], Tensor] = partial(F.gelu, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """Return x σ(1.702 x), the faster of the two approximations in Hendrycks & Gimpel 2016, sec. 2."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "quick_gelu": quick_gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
}
FUSED = ("relu", "gelu_tanh")
"""Activations that cuBLAS computes together with the product."""
GATED: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "geglu": gelu_tanh, "geglu_exact": F.gelu}


def is_plain_linear(layer: nn.Module, x: Tensor) -> bool:
    """Return whether a layer is W x + b in the precision of x, without hooks."""
    same = type(layer) is nn.Linear and layer.bias is not None and layer.weight.dtype == x.dtype
    return same and not layer._forward_hooks and not layer._forward_pre_hooks and not torch.is_autocast_enabled("cuda")


class FeedForward(nn.Module):
    """W2 f(W1 x); gated, W2 (f(W3 x) * W1 x)."""

    def __init__(self, width: int, inner: int, activation: str, dropout: float = 0.0, *, bias: bool = True):
        super().__init__()
        self.activation = activation
        self.inner = nn.Linear(width, inner, bias=bias)
        self.gate = nn.Linear(width, inner, bias=bias) if activation in GATED else None
        self.outer = nn.Linear(inner, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is not None:
            h = GATED[self.activation](self.gate(x)) * self.inner(x)
        elif self.activation in FUSED and x.is_cuda and runs_inference_kernels(x) and is_plain_linear(self.inner, x):
            h = torch._addmm_activation(
                self.inner.bias, x.flatten(0, -2), self.inner.weight.t(), use_gelu=self.activation == "gelu_tanh"
            )
            h = h.view(*x.shape[:-1], -1)
        else:
            h = ACTIVATIONS[self.activation](self.inner(x))
        return self.outer(self.dropout(h) if self.training else h)
