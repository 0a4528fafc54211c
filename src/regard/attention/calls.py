"""Calls of attention: what a model attended with, whoever wrote it.

`ProjectedCall` holds queries, keys and values; its weights are computed again when they are needed. `SoftmaxCall` holds the
weights that a model computed itself and multiplied with its values. Both are (B, H, T, S), whatever layout the model uses.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.core import (
    DecomposableScore,
    DotProductScore,
    Score,
    attention_scores,
    attention_weights,
    mix,
    repeat_kv,
)
from regard.attention.lazy_maps import LazyMap, existing_map, gradient_map, select_heads, weights_map
from regard.attention.masks import NO_MASK, Mask
from regard.attention.sparse_attention import PackedDocuments


@dataclass(frozen=True, kw_only=True)
class AttentionCall(ABC):
    """One application of attention by a model."""

    name: str
    """The path of the module that attends, such as `encoder.layer.3.attention.self`."""
    kind: str
    """self or cross."""

    def padded(self) -> "AttentionCall":
        """Return the call as of padded rows (B, H, T, ·), where the model runs without their padding."""
        return self

    @property
    @abstractmethod
    def heads(self) -> int: ...

    @abstractmethod
    def is_causal(self) -> bool:
        """Return whether no query sees a later key, in a call with as many keys as queries; may synchronise with the device."""

    @abstractmethod
    def lazy_weights(self, heads: list[int] | None) -> LazyMap:
        """Return the weights of these heads, to be computed or copied in chunks."""

    @abstractmethod
    def weights(self) -> Tensor:
        """Return the weights (B, H, T, S) before dropout."""

    @abstractmethod
    def values(self) -> Tensor | None:
        """Return the values (B, G, S, J), where they are known."""

    @abstractmethod
    def queries_and_keys(self, heads: list[int] | None) -> tuple[Tensor, Tensor] | None:
        """Return the queries of these heads (B, H, T, K) and the keys that each sees (B, H, S, K), where they are known."""

    @abstractmethod
    def score_function(self) -> DecomposableScore | None:
        """Return how queries and keys are scored, before any bias, where that is known."""

    @abstractmethod
    def scores(self, heads: list[int] | None, rows: Tensor | slice) -> Tensor:
        """Return the input of the softmax (B, H, T, S): scores with bias, -∞ where a key is hidden."""

    @abstractmethod
    def output(self, weights: Tensor) -> Tensor:
        """Return what the call gives with other weights (B, H, T, S)."""

    @abstractmethod
    def on_gradient(self, output: Tensor, record: Callable[[LazyMap], None], heads: list[int] | None) -> None:
        """Call `record` with the gradient of the loss by the weights once backward() computes it."""


@dataclass(frozen=True, kw_only=True)
class ProjectedCall(AttentionCall):
    """Attention of known queries (B, H, T, K), keys (B, G, S, K) and values (B, G, S, J)."""

    q: Tensor
    k: Tensor
    v: Tensor
    score: Score | None = None
    mask: Mask | None = None
    bias: Tensor | None = None
    scale: float | None = None
    dropout: float = 0.0
    output_shape: tuple[int, ...] | None = None
    """The shape of the output without its last dimension, where the model's layout is not (B, H, T, ·)."""
    packed: PackedDocuments | None = None
    """Where each row lies in `v` and in the output, if the model runs without padding; `q` and `k` are padded."""

    def padded(self) -> "ProjectedCall":
        if self.mask is None or self.mask.padded is None or self.mask.packed_documents is None:
            return self
        rows, packed = self.mask.padded, self.mask.packed_documents
        q, k = (packed.unpack(x, rows.length) for x in (self.q, self.k))
        return replace(self, q=q, k=k, mask=rows.mask, packed=packed)

    @property
    def heads(self) -> int:
        return self.q.size(1)

    def is_causal(self) -> bool:
        (T, S), mask = (self.q.size(2), self.k.size(2)), self.mask or NO_MASK
        if mask.causal or T != S or T == 1:
            return mask.causal
        hidden = self.bias.lt(torch.finfo(self.bias.dtype).min / 2) if self.bias is not None and not mask.structure else None
        hidden = ~mask.allowed if mask.structure == {"allowed"} and mask.allowed is not None else hidden
        return hidden is not None and hides_later_keys(hidden)

    def lazy_weights(self, heads: list[int] | None) -> LazyMap:
        q, k, mask, bias = select_heads(self.q.detach(), self.k.detach(), heads, mask=self.mask, bias=_detach(self.bias))
        return weights_map(q, k, score=self.score, mask=mask, bias=bias, scale=self.scale)

    def weights(self) -> Tensor:
        return attention_weights(self.q, self.k, score=self.score, mask=self.mask, bias=self.bias, scale=self.scale)

    def values(self) -> Tensor | None:
        return self._padded_values().detach()

    def _padded_values(self) -> Tensor:
        return self.v if self.packed is None else self.packed.unpack(self.v, self.q.size(2))

    def queries_and_keys(self, heads: list[int] | None) -> tuple[Tensor, Tensor] | None:
        q, k, _, _ = select_heads(self.q.detach(), repeat_kv(self.k.detach(), self.heads), heads)
        return q, k

    def score_function(self) -> DecomposableScore | None:
        return DotProductScore(self.scale) if self.score is None else cast(DecomposableScore, self.score)

    def scores(self, heads: list[int] | None, rows: Tensor | slice) -> Tensor:
        q, k, mask, bias = select_heads(self.q, self.k, heads, mask=self.mask, bias=self.bias)
        return attention_scores(q, k, score=self.score, mask=mask, bias=bias, scale=self.scale, rows=rows).detach()

    def output(self, weights: Tensor) -> Tensor:
        mixed = mix(F.dropout(weights, self.dropout) if self.dropout else weights, self._padded_values())  # (B, H, T, J)
        mixed = mixed if self.packed is None else self.packed.pack(mixed)
        return mixed if self.output_shape is None else mixed.reshape(*self.output_shape, mixed.size(-1))

    def on_gradient(self, output: Tensor, record: Callable[[LazyMap], None], heads: list[int] | None) -> None:
        shape, v = (*self.q.shape[:3], self.v.size(-1)), self.v.detach()
        if output.requires_grad:
            output.register_hook(lambda gradient: record(gradient_map(gradient.reshape(shape), v, heads)))


@dataclass(frozen=True, kw_only=True)
class SoftmaxCall(AttentionCall):
    """Attention whose weights the model computed itself: a softmax over keys, then a product with values."""

    operand: Tensor
    """What is multiplied with the values, in the model's layout: the weights, after dropout."""
    undropped: Tensor
    """The same before dropout."""
    softmax_input: Tensor | None
    """The scores in the layout of the softmax; None where it is not that of the product."""
    canonical: Callable[[Tensor], Tensor]
    """Bring a tensor from the model's layout into (B, H, T, S)."""
    restore: Callable[[Tensor], Tensor]
    """Bring it back."""
    product: Callable[[Tensor], Tensor]
    """Multiply other weights, in the model's layout, with the values."""
    model_values: Tensor | None = field(default=None, repr=False)
    """(B, H, S, J) where that is the model's layout."""

    @property
    def heads(self) -> int:
        return self.canonical(self.undropped).size(1)

    def is_causal(self) -> bool:
        first = self.canonical(self.undropped)[0, 0]  # (T, S)
        return first.size(0) == first.size(1) > 1 and not bool(first.triu(1).any())

    def lazy_weights(self, heads: list[int] | None) -> LazyMap:
        return existing_map(self.canonical(self.undropped.detach()), heads)

    def weights(self) -> Tensor:
        return self.canonical(self.undropped)

    def values(self) -> Tensor | None:
        return _detach(self.model_values)

    def queries_and_keys(self, heads: list[int] | None) -> tuple[Tensor, Tensor] | None:
        return None

    def score_function(self) -> DecomposableScore | None:
        return None

    def scores(self, heads: list[int] | None, rows: Tensor | slice) -> Tensor:
        known = self.undropped.log() if self.softmax_input is None else self.softmax_input  # equal up to a constant a row
        scores = self.canonical(known.detach())
        return (scores if heads is None else scores[:, heads])[:, :, rows]

    def output(self, weights: Tensor) -> Tensor:
        return self.product(self.restore(weights).to(self.operand.dtype))

    def on_gradient(self, output: Tensor, record: Callable[[LazyMap], None], heads: list[int] | None) -> None:
        if self.operand.requires_grad:
            self.operand.register_hook(lambda gradient: record(existing_map(self.canonical(gradient), heads, signed=True)))


def sdpa_call(  # the arguments of F.scaled_dot_product_attention
    name: str,
    kind: str,
    heads: int | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> ProjectedCall:
    """Return a call of `F.scaled_dot_product_attention`; `heads` divides a batch into which the heads are folded."""
    q, k, v = (x[None, None] if x.dim() == 2 else canonical_layout(x, heads) for x in (query, key, value))
    T, S = q.size(2), k.size(2)
    mask, bias = NO_MASK, None
    if is_causal:  # aligned at the first key, as in torch; ours aligns at the last
        mask = Mask(causal=True) if T == S else Mask(allowed=torch.ones(T, S, dtype=torch.bool, device=q.device).tril())
    elif attn_mask is not None:
        per_sentence = query.dim() != 4 and attn_mask.dim() == query.dim()
        given = attn_mask.expand(*query.shape[:-2], T, S) if per_sentence else attn_mask
        given = canonical_layout(given, heads) if per_sentence else given[(None,) * (4 - given.dim())]
        mask, bias = (Mask(allowed=given), None) if given.dtype == torch.bool else (NO_MASK, given)
    return ProjectedCall(
        name=name,
        kind=kind,
        q=q,
        k=k,
        v=v,
        mask=mask,
        bias=bias,
        scale=scale,
        dropout=dropout_p,
        output_shape=None if query.dim() == 4 else tuple(query.shape[:-1]),
    )


def hides_later_keys(hidden: Tensor) -> bool:
    """Return whether a mask that broadcasts to (B, H, T, S) hides every later key; synchronises with the device."""
    return hidden.size(-2) > 1 and not bool((~hidden[(0,) * (hidden.dim() - 2)]).triu(1).any())


def canonical_layout(x: Tensor, heads: int | None) -> Tensor:
    """Bring queries, keys or weights into (B, H, ·, ·). The first of three dimensions may hold all heads of each sentence; of
    more than four dimensions, all but the last three are the batch."""
    if x.dim() > 4:
        return x.flatten(0, -4)
    if x.dim() == 3:
        return x.unflatten(0, (-1, heads)) if heads and x.size(0) % heads == 0 else x[:, None]
    return x if x.dim() == 4 else x.reshape(-1, 1, 1, x.size(-1)) if x.dim() == 2 else x[None, None, None]


def _detach(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach()
