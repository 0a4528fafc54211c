"""Soft and hard attention of Xu et al. 2015 (sec. 4): modules that keep their weights while training, for losses on attention.

Hard attention looks at one position, sampled from the weights. No gradient flows through a sample: training uses its
`log_probs` (REINFORCE, Williams 1992).
"""

import torch
from torch import Tensor

from regard.attention.core import DecomposableScore, attention_weights, mix, visible_attention
from regard.attention.masks import Mask
from regard.attention.multihead import Attention


class SoftAttention(Attention):
    """`attend`, which keeps the weights of each call since `reset` while training."""

    def __init__(self, dropout: float = 0.0, scale: float | None = None, score: DecomposableScore | None = None):
        super().__init__(dropout, scale, score)
        self.step_weights: list[Tensor] = []  # (B, H, T, S) each

    def reset(self, rows: int, device: torch.device) -> None:
        """Forget the weights of earlier calls; a batch of `rows` sequences begins."""
        self.step_weights = []

    def weights(self) -> Tensor:
        """Return the weights of all calls, concatenated along the queries: (B, H, T, S)."""
        return torch.cat(self.step_weights, dim=2)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None) -> Tensor:
        if not self.training:
            return super().forward(q, k, v, mask=mask, bias=bias)
        self.step_weights.append(attention_weights(q, k, score=self.score, mask=mask, bias=bias, scale=self.scale))
        return mix(self.step_weights[-1], v)


class HardAttention(SoftAttention):
    """Attention to one position per query: sampled from the weights while training, the most likely one otherwise. With the
    probability `soft_probability`, a training sequence gets the mean under the weights instead, which reduces the variance."""

    soft_probability = 0.0

    def reset(self, rows: int, device: torch.device) -> None:
        super().reset(rows, device)
        self.samples: list[Tensor] = []  # (B, H, T) each
        self.soft = torch.rand(rows, device=device) < self.soft_probability  # (B,)

    def sample(self, weights: Tensor) -> Tensor:
        """Sample a position for each query: (B, H, T, S) -> (B, H, T)."""
        return torch.multinomial(weights.flatten(0, 2), 1).view(weights.shape[:3])

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None) -> Tensor:
        return attend_hard(q, k, v, module=self, score=self.score, mask=mask, bias=bias, scale=self.scale)

    def select(self, weights: Tensor) -> Tensor:
        """Return the weights (B, H, T, S) that mix the values: 1 at one position of each query."""
        positions = self.sample(weights) if self.training else weights.argmax(-1)
        one_hot = torch.zeros_like(weights).scatter_(-1, positions[..., None], 1.0)
        if not self.training:
            return one_hot
        self.step_weights.append(weights)
        self.samples.append(positions)
        return torch.where(self.soft[:, None, None, None], weights, one_hot)

    def log_probs(self) -> Tensor:
        """Return log p of each sampled position, 0 in sequences with soft attention: (B, H, T)."""
        positions = torch.cat(self.samples, dim=2)[..., None]
        log_p = self.weights().gather(-1, positions)[..., 0].clamp(min=1e-30).log()
        return torch.where(self.soft[:, None, None], 0.0, log_p)

    def entropy(self) -> Tensor:
        """Return the entropy of the weights of each query, in nats: (B, H, T)."""
        weights = self.weights()
        return -(weights * weights.clamp(min=1e-30).log()).sum(-1)


@visible_attention
def attend_hard(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    module: HardAttention,
    score: DecomposableScore | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return the values at the positions that `module` selects by the weights of `attend`."""
    return mix(module.select(attention_weights(q, k, score=score, mask=mask, bias=bias, scale=scale)), v)
