"""Weights, and the gradients of a loss with respect to them, as maps to be computed part by part."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from regard.attention import weights_kernel
from regard.attention.core import DotProductScore, attention_weights
from regard.attention.lazy_maps import LazyMap
from regard.attention.masks import Mask
from regard.attention.modules import Indices
from regard.attention.multihead import Attention
from regard.errors import UserError


def weights_map(
    q: Tensor,
    k: Tensor,
    place: Attention,
    heads: list[int] | None = None,
    *,
    mask: Mask | None = None,
    bias: Tensor | None = None,
) -> LazyMap:
    """The weights at a place, to be computed part by part."""
    (B, _, T, _), S = q.shape, k.size(-2)
    q, k, mask, bias = select_heads(q, k, heads, mask=mask, bias=bias)

    def part(batch: slice, rows: Tensor | slice) -> Tensor:
        added = bias if bias is None or bias.dim() < 4 or bias.size(0) == 1 else bias[batch]
        return attention_weights(
            q[batch],
            k[batch],
            score=place.score,
            mask=None if mask is None else mask.rows(batch),
            bias=added,
            scale=place.scale,
            rows=rows,
            least=q.dtype,
        )

    if place.score is None and weights_kernel.can_run(q, mask):
        fill = partial(weights_kernel.fill_record, q=q, k=k, mask=mask, bias=bias, scale=place.scale)
        return LazyMap((B, q.size(1), T, S), q.dtype, q.device, part, fill=fill)
    return LazyMap((B, q.size(1), T, S), q.dtype, q.device, part, width=1 if place.score is None else k.size(-1))


def select_heads(
    q: Tensor, k: Tensor, heads: list[int] | None, *, mask: Mask | None = None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Mask | None, Tensor | None]:
    """Everything that the weights of some heads are made of."""
    if heads is None:
        return q, k, mask, bias
    shared = q.size(1) // k.size(1)
    per_head = bias is not None and bias.dim() > 2 and bias.size(-3) > 1
    return (
        q[:, heads],
        k[:, [head // shared for head in heads]],
        None if mask is None else mask.heads(heads),
        bias[..., heads, :, :] if per_head and bias is not None else bias,
    )


def gradient_map(gradient: Tensor, v: Tensor, heads: list[int] | None = None) -> LazyMap:
    """dL/dW = dO·Vᵀ, for the mix O = W V."""
    (B, H, T, _), S = gradient.shape, v.size(-2)
    if heads is not None:
        shared = H // v.size(1)
        gradient, v = gradient[:, heads], v[:, [head // shared for head in heads]]
    return LazyMap(
        (B, gradient.size(1), T, S),
        gradient.dtype,
        gradient.device,
        lambda batch, rows: DotProductScore(1.0)(gradient[batch][:, :, rows], v[batch]),
        signed=True,
    )


def check_heads(heads: Indices, q: Tensor, name: str) -> list[int] | None:
    for head in heads or ():
        if not 0 <= head < q.size(1):
            raise UserError(f"heads = {list(heads or ())}: {name} has {q.size(1)}, counted from 0")
    return None if heads is None else list(heads)


def select_map_rows(whole: LazyMap, rows: Indices, name: str) -> LazyMap:
    return whole if rows is None else whole.only(row_indices(rows, whole.shape[2], name, whole.device))


def row_indices(rows: Sequence[int], queries: int, name: str, device: torch.device) -> Tensor:
    for row in rows:
        if not -queries <= row < queries:
            raise UserError(f"rows = {list(rows)}: a call of {name} has {queries} queries, counted from 0")
    return torch.tensor([row % queries for row in rows], device=device)
