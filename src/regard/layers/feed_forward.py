"""The position-wise feed-forward layer (Vaswani et al. 2017, eq. 2) and its gated forms (Shazeer 2020)."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers import activation_kernel
from regard.layers.activations import ACTIVATIONS, gelu_tanh
from regard.layers.linear import InferenceLinear
from regard.layers.unpadding import is_hooked

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
        return self.outer(self.hidden(x))

    def hidden(self, x: Tensor) -> Tensor:
        """Return the activations (…, inner) that the last layer reads."""
        if self.gate is None and activation_kernel.can_run(x, self.inner, self.activation, self.dropout):
            return activation_kernel.linear_and_activate(x, self.inner, self.activation, self.dropout.p)
        if self.gate is not None:
            h = GATED[self.activation](self.gate(x)) * self.inner(x)
        elif isinstance(self.inner, InferenceLinear) and not is_hooked(self.inner):
            h = self.inner(x, self.activation)
        else:
            h = ACTIVATIONS[self.activation](self.inner(x))
        return self.dropout(h) if self.training else h
