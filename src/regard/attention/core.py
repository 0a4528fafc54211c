"""Score, mask, softmax, mix: the one mechanism of this package (Bahdanau et al. 2015; Vaswani et al. 2017, eq. 1).

B batch, T queries, S keys, H heads, K key width, J value width. Keys and values may have fewer heads G than the queries; each
then serves a group of them (grouped-query attention, Ainslie et al. 2023).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Protocol, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from regard.attention.kernels import decode_kernel, short_attention
from regard.attention.masks import NO_MASK, Mask, Rows, select_rows
from regard.attention.sparse_attention import attend_documents, local_attention, local_attention_pairs

Score = Callable[[Tensor, Tensor], Tensor]


class DecomposableScore(Protocol):
    """A score that is a sum over the components of queries and keys."""

    def __call__(self, q: Tensor, k: Tensor) -> Tensor: ...

    def terms(self, q: Tensor, k: Tensor) -> Tensor:
        """Return what each component adds to the score: (B, H, T, S, K)."""

    def formula(self, width: int) -> str:
        """Return the score as a formula, for figures."""


Attend = TypeVar("Attend", bound=Callable[..., Tensor])
VISIBLE_ATTENTION: set[Callable[..., Tensor]] = set()
"""The functions that `visible_attention` decorated."""


def visible_attention(function: Attend) -> Attend:
    """Let `watch` and `edit` see the calls of a function `f(q, k, v, *, score, mask, bias, scale, dropout)`, as they see those of
    `F.scaled_dot_product_attention`: through torch's function modes."""

    @wraps(function)
    def visible(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        if has_torch_function((q,)):
            return handle_torch_function(visible, (q, k, v), q, k, v, **options)
        return function(q, k, v, **options)

    VISIBLE_ATTENTION.add(visible)
    return cast(Attend, visible)


@visible_attention
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
) -> Tensor:
    """Return softmax(score(q, k) + bias) v over the keys that `mask` allows: (B, H, T, K), (B, G, S, K), (B, G, S, J) ->
    (B, H, T, J).

    `score(q, k) -> (B, H, T, S)`; None is the scaled dot product q·k / √K, the only one that may run in a fused kernel.
    A query that may look nowhere gives zeros, in value and gradient.
    """
    if score is None:
        return fused_attention(q, k, v, mask or NO_MASK, bias, scale, dropout)
    return attend_with_weights(q, k, v, score=score, mask=mask, bias=bias, scale=scale, dropout=dropout)[0]


def attend_with_weights(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: Score | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the result of `attend` and its weights (B, H, T, S), both from the written-out path."""
    weights = attention_weights(q, k, score=score, mask=mask, bias=bias, scale=scale)
    return mix(F.dropout(weights, dropout) if dropout else weights, v), weights


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    score: Score | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    rows: Rows = None,
    min_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the softmax over keys (B, H, T, S), in at least `min_dtype`; with `rows`, of these queries only."""
    scores, allowed = _scores_and_mask(q, k, score, mask, bias, scale, rows)
    dtype = torch.promote_types(scores.dtype, min_dtype)
    if allowed is None:
        return scores.softmax(-1, dtype=dtype)
    blind = ~allowed.any(-1, keepdim=True)  # a softmax over no key is NaN: let these rows see every key, then zero them
    broadcast = torch.broadcast_shapes(scores.shape, allowed.shape) != scores.shape
    fill = Tensor.masked_fill if scores.requires_grad or broadcast else Tensor.masked_fill_  # in place where it is safe
    return fill(fill(scores, ~(allowed | blind), -math.inf).softmax(-1, dtype=dtype), blind, 0.0)


def attention_scores(
    q: Tensor,
    k: Tensor,
    *,
    score: Score | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    rows: Rows = None,
) -> Tensor:
    """Return the input of the softmax (B, H, T, S): score(q, k) + bias, and -∞ where `mask` hides the key."""
    scores, allowed = _scores_and_mask(q, k, score, mask, bias, scale, rows)
    return scores if allowed is None else scores.masked_fill(~allowed, -math.inf)


def _scores_and_mask(
    q: Tensor, k: Tensor, score: Score | None, mask: Mask | None, bias: Tensor | None, scale: float | None, rows: Rows
) -> tuple[Tensor, Tensor | None]:
    """Return score(q, k) + bias (B, H, T, S), and the dense mask, None where every key is visible."""
    scores = (score or DotProductScore(scale))(q if rows is None else q[:, :, rows], k)
    if bias is not None:
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        scores = scores + select_rows(bias, rows)
    return scores, (mask or NO_MASK).dense(q.size(-2), k.size(-2), q.device, rows)


@dataclass(frozen=True)
class DotProductScore:
    """q·k · scale; None is 1/√K, which keeps the variance of the scores at that of one component (Vaswani et al., sec. 3.2.1)."""

    scale: float | None = None

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        if q.dtype == torch.float16:  # scores beyond 65,504 would be infinite; the fused kernels accumulate in float32 too
            q, k = q.float(), k.float()
        return (q * self._factor(q)) @ repeat_kv(k, q.size(1)).transpose(-2, -1)

    def terms(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * self._factor(q))[..., :, None, :] * repeat_kv(k, q.size(1))[..., None, :, :]

    def _factor(self, q: Tensor) -> float:
        return q.size(-1) ** -0.5 if self.scale is None else self.scale

    def formula(self, width: int) -> str:
        if self.scale is None or math.isclose(self.scale, width**-0.5):
            return f"q·k / √{width}"
        return "q·k" if self.scale == 1 else f"q·k · {self.scale:.4g}"


@dataclass(frozen=True)
class SoftCappedScore(DotProductScore):
    """The scaled dot product s, kept within ±cap: cap · tanh(s / cap) (Gemma 2, Riviere et al. 2024, sec. 2). No fused kernel of
    torch has it, so that these weights are always written out. `terms` are those of s."""

    cap: float = 50.0

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        return soft_cap(super().__call__(q, k), self.cap)

    def formula(self, width: int) -> str:
        return f"{self.cap:g} · tanh({super().formula(width)} / {self.cap:g})"


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """Return x kept within ±cap, nearly unchanged where it is small: cap · tanh(x / cap)."""
    return cap * torch.tanh(x / cap)


def mix(weights: Tensor, v: Tensor) -> Tensor:
    """Return the mean of the values under the weights: (B, H, T, S), (B, G, S, J) -> (B, H, T, J)."""
    return weights.to(v.dtype) @ repeat_kv(v, weights.size(1))


def repeat_kv(x: Tensor, heads: int) -> Tensor:
    """Repeat grouped keys or values for the query heads that share them: (B, G, S, K) -> (B, H, S, K)."""
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), dim=1)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float | None, dropout: float
) -> Tensor:
    """Return dot-product attention from the fused kernels of torch, or ours for few queries or short sequences, with a dense mask
    only where the structure needs one."""
    T, S = q.size(-2), k.size(-2)
    if bias is None and not dropout and decode_kernel.can_run(q, k, v, mask):
        return decode_kernel.attend_few_queries(q, k, v, mask, scale)
    if bias is None and not dropout and short_attention.can_run(q, k, v, mask):
        return short_attention.short_attention(q, k, v, mask, scale)
    if mask.window is not None and type(S) is int and mask.window >= S:  # symbolic, when traced
        mask = replace(mask, window=None)  # it hides nothing
    causal = mask.structure == {"causal"} and bias is None
    if causal and (T == S or T == 1):  # the last query sees everything
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=bool(T > 1), scale=scale, enable_gqa=k.size(1) != q.size(1)
        )
    window = mask.window if mask.structure == {"window"} and bias is None and T == S else None
    if window and local_attention_pairs(T, window) < T * S:
        return local_attention(q, k, v, window, scale=scale, dropout=dropout)
    documents_only = mask.documents is not None and mask.structure <= {"causal", "documents"}
    packed = mask.packed_documents if documents_only and bias is None and T == S else None
    if packed and len(packed.index) == len(q) and 2 * packed.pairs <= len(q) * T * S:
        return attend_documents(q, k, v, packed, causal=mask.causal, scale=scale, dropout=dropout)
    allowed = attn_mask = mask.dense(T, S, q.device)
    if bias is not None:
        bias = bias.to(q.dtype)
        attn_mask = bias if allowed is None else torch.where(allowed, bias, -math.inf)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*attn_mask.shape[:-2], T, S)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, dropout_p=dropout, scale=scale, enable_gqa=k.size(1) != q.size(1)
    )
    if allowed is None or not q.is_cuda:  # CPU kernels give zeros for rows that see no key; GPU kernels not always
        return out
    return out.masked_fill(~allowed.any(-1, keepdim=True), 0.0)


def self_attention(x: Tensor, *, mask: Mask | None = None, scale: float | None = 1.0) -> Tensor:
    """Return y_i = Σ_j softmax_j(x_i·x_j) x_j, every element as a mean of all, by similarity: (B, T, D) -> (B, T, D)."""
    return key_value_attention(x, x, x, mask=mask, scale=scale)


def context_attention(x: Tensor, context: Tensor, *, mask: Mask | None = None, scale: float | None = 1.0) -> Tensor:
    """Return y_i = Σ_j softmax_j(x_i·c_j) c_j, one sequence attending to another of the same width: (B, T, D), (B, S, D) ->
    (B, T, D)."""
    return key_value_attention(x, context, context, mask=mask, scale=scale)


def key_value_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: Score | None = None,
    mask: Mask | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return y_i = Σ_j softmax_j(score(q_i, k_j)) v_j without heads: (B, T, K), (B, S, K), (B, S, J) -> (B, T, J).

    The score is the dot product, scaled by 1/√K unless `scale` is given; another one takes (B, 1, T, ·) and (B, 1, S, ·), so that
    even queries and keys may differ in width.
    """
    return attend(q[:, None], k[:, None], v[:, None], score=score, mask=mask, scale=scale)[:, 0]
