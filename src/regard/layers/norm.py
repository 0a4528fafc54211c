"""Layer norm (Ba et al. 2016), RMS norm (Zhang & Sennrich 2019), and the residual connection around a sub-layer."""

from collections.abc import Callable

from torch import Tensor, nn


def build_norm(kind: str, width: int, epsilon: float | None = None) -> nn.Module:
    match kind:
        case "rms":
            return nn.RMSNorm(width, eps=epsilon or 1e-6)
        case "batch":
            return BatchNorm(width, eps=epsilon or 1e-5)
        case _:
            return nn.LayerNorm(width, eps=epsilon or 1e-5)


class BatchNorm(nn.BatchNorm1d):
    """Each feature normalised over all positions of a batch (Ioffe & Szegedy 2015), padding included: (B, T, D) -> (B, T, D)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).view_as(x)


class Residual(nn.Module):
    """x + sublayer(norm(x)) with the norm first, norm(x + sublayer(x)) as published (Vaswani et al. 2017, sec. 5.4).

    Where the sub-layer changes the width, x is projected to it.
    """

    def __init__(self, width: int, out_width: int, *, norm: str, norm_first: bool, dropout: float, residual: bool = True,
                 epsilon: float | None = None):
        super().__init__()
        self.norm_first, self.residual = norm_first, residual
        self.norm = build_norm(norm, width if norm_first else out_width, epsilon)
        self.skip: nn.Module = nn.Identity() if width == out_width else nn.Linear(width, out_width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        kept = self.skip(x) if self.residual else 0.0
        if self.norm_first:
            return kept + self.dropout(sublayer(self.norm(x)))
        return self.norm(kept + self.dropout(sublayer(x)))
