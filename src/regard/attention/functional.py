"""Attention as plain functions, without a parameter: what the lectures write on the board.

Sequences are (B, T, D); a mask says what may be looked at. Each returns the new sequence and, if asked, the weights (B, T, S).
"""

from torch import Tensor

from regard.attention.core import Score, attend
from regard.attention.masks import Mask


def self_attention(x: Tensor, *, mask: Mask | None = None, weights: bool = False, scale: float | None = 1.0):
    """y_i = Σ_j softmax_j(x_i·x_j) x_j: every element becomes a mean of all, by likeness. (B, T, D) -> (B, T, D)."""
    return key_value_attention(x, x, x, mask=mask, weights=weights, scale=scale)


def context_attention(x: Tensor, context: Tensor, *, mask: Mask | None = None, weights: bool = False, scale: float | None = 1.0):
    """y_i = Σ_j softmax_j(x_i·c_j) c_j: one sequence looks at another of the same width. (B, T, D), (B, S, D) -> (B, T, D)."""
    return key_value_attention(x, context, context, mask=mask, weights=weights, scale=scale)


def key_value_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: Score | None = None,
    mask: Mask | None = None,
    weights: bool = False,
    scale: float | None = None,
):
    """y_i = Σ_j softmax_j(score(q_i, k_j)) v_j: what is asked, what answers, and what is said may differ in width.

    (B, T, K), (B, S, K), (B, S, J) -> (B, T, J). The score is the dot product, scaled by 1/√K unless `scale` is given; another
    one takes (B, 1, T, ·) and (B, 1, S, ·), so that even queries and keys may differ in width.
    """
    one_head = (q[:, None], k[:, None], v[:, None])
    if weights:
        mixed, seen = attend(*one_head, score=score, mask=mask, scale=scale, weights=True)
        return mixed[:, 0], seen[:, 0]
    return attend(*one_head, score=score, mask=mask, scale=scale)[:, 0]
