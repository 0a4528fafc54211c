"""The decoding state: what a decoder keeps between steps, in the protocol that every search is written against.

A state has one part per source sentence, computed once and never reordered, and one part per hypothesis. The hypotheses of one
sentence are adjacent rows, and equally many for all sentences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.kv_cache import KVCache, RowIndex
from regard.attention.masks import Mask
from regard.layers.block import SourceKV


class LayerCache(Protocol):
    """What one layer keeps of the hypotheses: a KV cache, or the state of recurrent cells."""

    @property
    def rows(self) -> int: ...
    def reorder(self, rows: Tensor) -> None: ...
    @staticmethod
    def join(caches: Any, trim: int = 0) -> "LayerCache": ...


@dataclass
class DecoderState:
    """The state of a decoder after some tokens."""

    sentences: int
    """Number of source sentences."""
    sources: list[SourceKV]
    """Each layer's keys and values of them; empty where the decoder has no cross-attention."""
    caches: list[Any]
    """Each layer's cache of the hypotheses so far."""
    starts: Tensor | None = None
    """(hypotheses,) the first used position of each in the caches, if not 0 for all."""

    def reorder(self, rows: Tensor) -> "DecoderState":
        """Return the state in which hypothesis i continues what hypothesis rows[i] was. Rows stay with their source sentence."""
        for cache in self.caches:
            cache.reorder(rows)
        return replace(self, starts=None if self.starts is None else self.starts[rows])

    def keep(self, rows: Tensor) -> "DecoderState":
        """Return the state of these source sentences only, each with all its hypotheses."""
        each = max(1, self.caches[0].rows // self.sentences)
        hypotheses = (rows[:, None] * each + torch.arange(each, device=rows.device)).flatten()
        sources = [
            SourceKV(s.keys[rows], s.values[rows], None if s.mask is None else s.mask.select_batch(rows)) for s in self.sources
        ]
        return replace(self.reorder(hypotheses), sentences=len(rows), sources=sources)

    @staticmethod
    def join(states: "Sequence[DecoderState]") -> "DecoderState":
        """Return one state of all sentences: sources are padded to the longest, hypotheses are aligned at their ends, and cache
        positions that no row uses any more are dropped."""
        sources = [_join_sources(layer) for layer in zip(*(state.sources for state in states))]
        starts = _join_starts(states)
        trim = 0 if starts is None else int(starts.min())
        caches = [type(layer[0]).join(list(layer), trim) for layer in zip(*(state.caches for state in states))]
        return DecoderState(sum(state.sentences for state in states), sources, caches, None if starts is None else starts - trim)


def prefill(
    read: Callable[[Tensor, DecoderState], Tensor],
    sentences: int,
    sources: list[SourceKV],
    layers: int,
    prefix: Tensor | None,
    capacity: int,
) -> DecoderState:
    """Return the state of a Transformer decoder after its sources and a prefix (B, P), short rows padded with -1 on the left.
    `read` fills the caches; the logits of the prefix are skipped."""
    index = RowIndex()
    state = DecoderState(sentences, sources, [KVCache(capacity, index) for _ in range(layers)])
    if prefix is not None and prefix.size(1):
        state = replace(state, starts=leading_padding(prefix)) if _is_padded(prefix) else state
        read(prefix.clamp(min=0), state)
    return state


def _is_padded(prefix: Tensor) -> bool:
    """Return whether any row is padded. False during CUDA graph capture, which allows no host–device synchronisation: captured
    searches have no padded prefixes."""
    capturing = prefix.is_cuda and torch.cuda.is_current_stream_capturing()
    return not capturing and bool((prefix[:, 0] < 0).any())


def leading_padding(tokens: Tensor) -> Tensor:
    """Return the number of padding positions at the start of each row: (B, P) -> (B,)."""
    return (tokens < 0).long().cumprod(1).sum(1)


def _join_starts(states: Sequence[DecoderState]) -> Tensor | None:
    """Return the first used position of each hypothesis once all caches end together; None for recurrent decoders."""
    kv_caches = [next((cache for cache in state.caches if isinstance(cache, KVCache)), None) for state in states]
    length = max(0 if cache is None else cache.length for cache in kv_caches)
    starts = []
    for state, cache in zip(states, kv_caches):
        if cache is None:
            return None
        start = state.starts
        if start is None:
            device = state.sources[0].keys.device if cache.keys is None else cache.keys.device
            start = torch.zeros(cache.rows or state.sentences, dtype=torch.long, device=device)
        starts.append(start + length - cache.length)
    return torch.cat(starts)


def _join_sources(sources: Sequence[SourceKV]) -> SourceKV:
    lengths = [
        source.mask.lengths
        if source.mask is not None and source.mask.lengths is not None
        else torch.full((source.keys.size(0),), source.keys.size(2), device=source.keys.device)
        for source in sources
    ]
    longest = int(torch.cat(lengths).max())

    def pad(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, longest - x.size(2)))

    return SourceKV(
        torch.cat([pad(s.keys) for s in sources]), torch.cat([pad(s.values) for s in sources]), Mask(lengths=torch.cat(lengths))
    )
