"""The position-wise feed-forward layer (Vaswani et al. 2017, eq. 2) and its gated form (Shazeer 2020)."""

import torch.nn.functional as F
from torch import Tensor, nn


class FeedForward(nn.Module):
    """W2 f(W1 x), with f ReLU or GELU; for SwiGLU, W2 (silu(W1 x) * W3 x)."""

    def __init__(self, width: int, inner: int, activation: str, dropout: float = 0.0):
        super().__init__()
        self.activation = activation
        self.inner = nn.Linear(width, inner)
        self.gate = nn.Linear(width, inner) if activation == "swiglu" else None
        self.outer = nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is not None:
            h = F.silu(self.gate(x)) * self.inner(x)
        else:
            h = F.relu(self.inner(x)) if self.activation == "relu" else F.gelu(self.inner(x))
        return self.outer(self.dropout(h))
