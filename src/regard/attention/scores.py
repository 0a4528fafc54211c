"""Score functions: how well a query s matches a key h.

    dot         s·h                     Luong et al. 2015
    scaled      s·h / √K                Vaswani et al. 2017
    general     s·W h                   Luong et al. 2015
    additive    v·tanh(W s + U h)       Bahdanau et al. 2015
    cosine      s·h / (|s| |h|)         Graves et al. 2014

A score takes projected queries (B, H, T, K) and keys (B, H, S, K) and returns (B, H, T, S). The part that depends on the key only
(W h, U h) is its projection, computed once per source. Every score is a sum over components (`terms`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import DecomposableScore, DotProductScore
from regard.attention.masks import Mask
from regard.attention.multihead import Attention


class CosineScore:
    """q·k / (|q| |k|)."""

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        return unit_vectors(q) @ unit_vectors(k).transpose(-2, -1)

    def terms(self, q: Tensor, k: Tensor) -> Tensor:
        return unit_vectors(q)[..., :, None, :] * unit_vectors(k)[..., None, :, :]

    def formula(self, width: int) -> str:
        return "q·k / (|q| |k|)"


def unit_vectors(x: Tensor) -> Tensor:
    """Return x / |x|, and 0 for 0 in half precision too, where the usual epsilon 1e-12 is 0."""
    return F.normalize(x, dim=-1, eps=max(1e-12, torch.finfo(x.dtype).tiny))


class AdditiveScore(nn.Module):
    """v·tanh(q + k), for queries W s and keys U h."""

    def __init__(self, width: int):
        super().__init__()
        self.v = nn.Parameter(nn.init.xavier_uniform_(nn.Linear(width, 1).weight.new_empty(1, width))[0])

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return (q[..., :, None, :] + k[..., None, :, :]).tanh() @ self.v  # (B, H, T, S, K) -> (B, H, T, S)

    def terms(self, q: Tensor, k: Tensor) -> Tensor:
        return (q[..., :, None, :] + k[..., None, :, :]).tanh() * self.v

    def formula(self, width: int) -> str:
        return "v·tanh(q + k)"


class SingleHeadAttention(nn.Module):
    """One head with a score of any kind; the values are the source itself: (B, T, query width) -> (B, T, source width)."""

    def __init__(
        self,
        kind: str,
        query_width: int,
        source_width: int,
        width: int | None = None,
        attention_class: type[Attention] = Attention,
    ):
        super().__init__()
        assert kind in ("general", "additive") or query_width == source_width, (
            f"{kind} needs equal widths, got {query_width}, {source_width}"
        )
        width = width or query_width
        self.width, self.source_width = width, source_width
        self.q_proj: nn.Module = nn.Linear(query_width, width, bias=False) if kind == "additive" else nn.Identity()
        self.k_proj: nn.Module = nn.Identity()
        if kind in ("general", "additive"):
            self.k_proj = nn.Linear(source_width, query_width if kind == "general" else width, bias=False)
        self.attend = attention_class(score=build_score(kind, width))

    def project_kv(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Project a source (B, S, D) once: (B, 1, S, K), (B, 1, S, D)."""
        return self.k_proj(source)[:, None], source[:, None]

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, *, mask: Mask | None = None) -> Tensor:
        return self.attend(self.q_proj(x)[:, None], keys, values, mask=mask)[:, 0]


def build_score(kind: str, width: int) -> DecomposableScore | None:
    match kind:
        case "dot" | "general":
            return DotProductScore(scale=1.0)
        case "additive":
            return AdditiveScore(width)
        case "cosine":
            return CosineScore()
        case _:
            return None  # the scaled dot product, in a fused kernel where there is one
