"""Score, mask, softmax, mix: the one mechanism of this package (Bahdanau et al. 2015; Vaswani et al. 2017, eq. 1).

B batch, T queries, S keys, H heads, K key width, J value width. Keys and values may have fewer heads than the queries;
each then serves a group of them (Ainslie et al. 2023).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.local_attention import local_attention, local_attention_pairs
from regard.attention.masks import ALL_ROWS, NO_MASK, Mask, select_rows
from regard.attention.sparse_attention import attend_documents

Score = Callable[[Tensor, Tensor], Tensor]


class DecomposableScore(Protocol):
    """A score that is a sum over components."""

    def __call__(self, q: Tensor, k: Tensor) -> Tensor: ...

    def terms(self, q: Tensor, k: Tensor) -> Tensor:
        """What each component adds to the score: (B, H, T, S, K)."""

    def formula(self, width: int) -> str:
        """As a formula."""


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: Score | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    weights: Literal[False] = False,
) -> Tensor: ...
@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: Score | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def attend(q, k, v, *, score=None, mask=None, bias=None, scale=None, dropout=0.0, weights=False):
    """softmax(score(q, k) + bias) v, over the keys that `mask` allows: (B, H, T, K), (B, G, S, K), (B, G, S, J) -> (B, H, T, J).

    `score(q, k) -> (B, H, T, S)`; None is the scaled dot product q·k / √K, the only one that may run in a fused kernel.
    A query that may look nowhere gives zeros, in value and gradient. With `weights=True` the weights (B, H, T, S) come too,
    from the written-out path.
    """
    if score is None and not weights:
        return fused_attention(q, k, v, mask or NO_MASK, bias, scale, dropout)
    w = attention_weights(q, k, score=score, mask=mask, bias=bias, scale=scale)
    mixed = mix(F.dropout(w, dropout) if dropout else w, v)
    return (mixed, w) if weights else mixed


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    score: Score | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    rows: Tensor | slice = ALL_ROWS,
    least: torch.dtype = torch.float32,
) -> Tensor:
    """The softmax over keys, written out once: (B, H, T, S), in `least` precision at least. `rows`: of these queries alone."""
    scores, allowed = scores_and_mask(q, k, score, mask, bias, scale, rows)
    dtype = torch.promote_types(scores.dtype, least)
    if allowed is None:
        return scores.softmax(-1, dtype=dtype)
    blind = ~allowed.any(-1, keepdim=True)  # softmax over nothing is NaN: let the blind see, then blank what they saw
    wider = torch.broadcast_shapes(scores.shape, allowed.shape) != scores.shape
    fill = Tensor.masked_fill if scores.requires_grad or wider else Tensor.masked_fill_  # in place, where nobody minds
    return fill(fill(scores, ~(allowed | blind), -math.inf).softmax(-1, dtype=dtype), blind, 0.0)


def attention_scores(
    q: Tensor,
    k: Tensor,
    *,
    score: Score | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    rows: Tensor | slice = ALL_ROWS,
) -> Tensor:
    """What the softmax is taken of (B, H, T, S): score(q, k) + bias, and -∞ where `mask` hides the key."""
    scores, allowed = scores_and_mask(q, k, score, mask, bias, scale, rows)
    return scores if allowed is None else scores.masked_fill(~allowed, -math.inf)


def scores_and_mask(
    q: Tensor, k: Tensor, score: Score | None, mask: Mask | None, bias: Tensor | None, scale: float | None, rows: Tensor | slice
) -> tuple[Tensor, Tensor | None]:
    """score(q, k) + bias (B, H, T, S), and which keys may be looked at, None where all may."""
    scores = (score or DotProductScore(scale))(q[:, :, rows], k)
    if bias is not None:
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        scores = scores + select_rows(bias, rows)
    return scores, (mask or NO_MASK).dense(q.size(-2), k.size(-2), q.device, rows)


@dataclass(frozen=True)
class DotProductScore:
    """q·k · scale; None is 1/√K, which keeps the variance of the scores at that of one component (sec. 3.2.1)."""

    scale: float | None = None

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * self.factor(q)) @ repeat_kv(k, q.size(1)).transpose(-2, -1)

    def terms(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * self.factor(q))[..., :, None, :] * repeat_kv(k, q.size(1))[..., None, :, :]

    def factor(self, q: Tensor) -> float:
        return q.size(-1) ** -0.5 if self.scale is None else self.scale

    def formula(self, width: int) -> str:
        return f"q·k / √{width}" if self.scale is None else "q·k" if self.scale == 1 else f"q·k · {self.scale:.4g}"


def mix(weights: Tensor, v: Tensor) -> Tensor:
    """The mean of the values under the weights: (B, H, T, S), (B, G, S, J) -> (B, H, T, J)."""
    return weights.to(v.dtype) @ repeat_kv(v, weights.size(1))


def repeat_kv(x: Tensor, heads: int) -> Tensor:
    """Repeat grouped keys or values for the query heads that share them: (B, G, S, K) -> (B, H, S, K)."""
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), dim=1)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float | None, dropout: float
) -> Tensor:
    """The dot product in torch's fused kernels; the mask's structure decides whether they need booleans at all."""
    T, S = q.size(-2), k.size(-2)
    causal = mask.structure == {"causal"} and bias is None
    if causal and (T == S or T == 1):  # the last query sees everything
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=bool(T > 1), scale=scale, enable_gqa=k.size(1) != q.size(1)
        )
    window = mask.window if mask.structure == {"window"} and bias is None and T == S else None
    if window and local_attention_pairs(T, window) < T * S:
        return local_attention(q, k, v, window, scale=scale, dropout=dropout)
    alone = mask.documents is not None and mask.structure <= {"causal", "documents"}
    packed = mask.packed if alone and bias is None and T == S else None
    if packed and len(packed.which) == len(q) and 2 * packed.pairs <= len(q) * T * S:
        return attend_documents(q, k, v, packed, causal=mask.causal, scale=scale, dropout=dropout)
    allowed = visible = mask.dense(T, S, q.device)
    if bias is not None:
        bias = bias.to(q.dtype)
        visible = bias if allowed is None else torch.where(allowed, bias, -math.inf)
    if visible is not None:
        visible = visible.expand(*visible.shape[:-2], T, S)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, dropout_p=dropout, scale=scale, enable_gqa=k.size(1) != q.size(1)
    )
    if allowed is None or not q.is_cuda:  # the kernels on the CPU give the blind zeros; those on the GPU not always
        return out
    return out.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
