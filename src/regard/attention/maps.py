"""Weights, and the gradients of a loss with respect to them, as maps to be computed part by part."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from regard.attention import weights_kernel
from regard.attention.core import Dot, attention_weights
from regard.attention.masks import Mask
from regard.attention.modules import Chosen
from regard.attention.multihead import Attend
from regard.attention.record import Map
from regard.errors import Mistake


def weights_map(
    q: Tensor, k: Tensor, place: Attend, heads: list[int] | None = None, *, mask: Mask | None = None, bias: Tensor | None = None
) -> Map:
    """The weights at a place, to be computed part by part."""
    (B, _, T, _), S = q.shape, k.size(-2)
    q, k, mask, bias = of_heads(q, k, heads, mask=mask, bias=bias)

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
        fill = partial(weights_kernel.fill, q=q, k=k, mask=mask, bias=bias, scale=place.scale)
        return Map((B, q.size(1), T, S), q.dtype, q.device, part, fill=fill)
    return Map((B, q.size(1), T, S), q.dtype, q.device, part, width=1 if place.score is None else k.size(-1))


def of_heads(
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


def gradient_map(gradient: Tensor, v: Tensor, heads: list[int] | None = None) -> Map:
    """dL/dW = dO·Vᵀ, for the mix O = W V."""
    (B, H, T, _), S = gradient.shape, v.size(-2)
    if heads is not None:
        shared = H // v.size(1)
        gradient, v = gradient[:, heads], v[:, [head // shared for head in heads]]
    return Map(
        (B, gradient.size(1), T, S),
        gradient.dtype,
        gradient.device,
        lambda batch, rows: Dot(1.0)(gradient[batch][:, :, rows], v[batch]),
        signed=True,
    )


def heads_of(heads: Chosen, q: Tensor, name: str) -> list[int] | None:
    for head in heads or ():
        if not 0 <= head < q.size(1):
            raise Mistake(f"heads = {list(heads or ())}: {name} has {q.size(1)}, counted from 0")
    return None if heads is None else list(heads)


def of_rows(whole: Map, rows: Chosen, name: str) -> Map:
    return whole if rows is None else whole.only(numbers_of(rows, whole.shape[2], name, whole.device))


def numbers_of(rows: Sequence[int], queries: int, name: str, device: torch.device) -> Tensor:
    for row in rows:
        if not -queries <= row < queries:
            raise Mistake(f"rows = {list(rows)}: a call of {name} has {queries} queries, counted from 0")
    return torch.tensor([row % queries for row in rows], device=device)
