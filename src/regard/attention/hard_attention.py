"""Attention that learns from how it looked: weights that are remembered while training, and hard attention, which looks at one
place, drawn from them (Xu et al. 2015, sec. 4.1).

Of a hard choice no gradient comes back; who trains it asks `chances` how likely it was (REINFORCE, Williams 1992).
"""

import torch
from torch import Tensor

from regard.attention.core import DecomposableScore, attention_weights, mix
from regard.attention.masks import Mask
from regard.attention.multihead import Attention


class SoftAttention(Attention):
    """`attend`, whose weights of each call since `begin` are kept while training."""

    def __init__(self, dropout: float = 0.0, scale: float | None = None, score: DecomposableScore | None = None):
        super().__init__(dropout, scale, score)
        self.seen: list[Tensor] = []  # (B, H, T, S) each

    def begin(self, rows: int, device: torch.device) -> None:
        self.seen = []

    def weights(self) -> Tensor:
        """Of all calls, one after another: (B, H, T, S)."""
        return torch.cat(self.seen, dim=2)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None) -> Tensor:
        if not self.training:
            return super().forward(q, k, v, mask=mask, bias=bias)
        self.seen.append(attention_weights(q, k, score=self.score, mask=mask, bias=bias, scale=self.scale))
        return mix(self.seen[-1], v)


class HardAttention(SoftAttention):
    """One place for each query: drawn from the weights while training, the likeliest one otherwise. With the chance `expected`, a
    row is given the mean under the weights instead, which makes learning steadier."""

    expected = 0.0

    def begin(self, rows: int, device: torch.device) -> None:
        super().begin(rows, device)
        self.places: list[Tensor] = []  # (B, H, T) each
        self.soft = torch.rand(rows, device=device) < self.expected  # (B,)

    def draw(self, weights: Tensor) -> Tensor:
        return torch.multinomial(weights.flatten(0, 2), 1).view(weights.shape[:3])

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None) -> Tensor:
        w = attention_weights(q, k, score=self.score, mask=mask, bias=bias, scale=self.scale)
        places = self.draw(w) if self.training else w.argmax(-1)
        one = torch.zeros_like(w).scatter_(-1, places[..., None], 1.0)
        if not self.training:
            return mix(one, v)
        self.seen.append(w)
        self.places.append(places)
        return mix(torch.where(self.soft[:, None, None, None], w, one), v)

    def chances(self) -> Tensor:
        """log p of each place that was drawn, 0 where none was: (B, H, T)."""
        at = torch.cat(self.places, dim=2)[..., None]
        log_p = self.weights().gather(-1, at)[..., 0].clamp(min=1e-30).log()
        return torch.where(self.soft[:, None, None], 0.0, log_p)

    def entropy(self) -> Tensor:
        """Of the places, in nats: (B, H, T)."""
        w = self.weights()
        return -(w * w.clamp(min=1e-30).log()).sum(-1)
