"""The position-wise feed-forward layer (Vaswani et al. 2017, eq. 2) and its gated forms (Shazeer 2020)."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers import activation_kernel
from regard.layers.linear import FUSED_ACTIVATIONS, InferenceLinear

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
GATED: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "geglu": gelu_tanh, "geglu_exact": F.gelu}


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
        if self.gate is None and activation_kernel.can_run(x, self.inner, self.activation, self.dropout):
            return self.outer(activation_kernel.linear_and_activate(x, self.inner, self.activation, self.dropout.p))
        if self.gate is not None:
            h = GATED[self.activation](self.gate(x)) * self.inner(x)
        elif isinstance(self.inner, InferenceLinear) and self.activation in FUSED_ACTIVATIONS:
            h = self.inner(x, self.activation)
        else:
            h = ACTIVATIONS[self.activation](self.inner(x))
        return self.outer(self.dropout(h) if self.training else h)
