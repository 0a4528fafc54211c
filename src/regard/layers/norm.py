"""Layer norm (Ba et al. 2016), RMS norm (Zhang & Sennrich 2019), and the residual connection around a sub-layer."""

from collections.abc import Callable

from torch import Tensor, nn


def build_norm(kind: str, width: int) -> nn.Module:
    return nn.RMSNorm(width, eps=1e-6) if kind == "rms" else nn.LayerNorm(width, eps=1e-5)


class Residual(nn.Module):
    """x + sublayer(norm(x)) with the norm first, norm(x + sublayer(x)) as published (Vaswani et al. 2017, sec. 5.4).

    Where the sub-layer changes the width, x is projected to it.
    """

    def __init__(self, width: int, out_width: int, *, norm: str, norm_first: bool, dropout: float):
        super().__init__()
        self.norm_first = norm_first
        self.norm = build_norm(norm, width if norm_first else out_width)
        self.skip: nn.Module = nn.Identity() if width == out_width else nn.Linear(width, out_width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return self.skip(x) + self.dropout(sublayer(self.norm(x)))
        return self.norm(self.skip(x) + self.dropout(sublayer(x)))
