"""What a decoder remembers between steps: the state of the protocol that every search is written against.

A state has one part per source sentence, computed once and never reordered, and one part per hypothesis. The hypotheses of
one sentence lie next to each other and are equally many for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.kv_cache import KVCache
from regard.attention.masks import Mask
from regard.layers.block import SourceKV


class LayerCache(Protocol):
    """What one layer keeps of the hypotheses: a cache of keys and values, or the state of recurrent cells."""

    @property
    def rows(self) -> int: ...
    def reorder(self, rows: Tensor) -> None: ...
    @staticmethod
    def join(caches: Any, spare: int = 0) -> "LayerCache": ...


@dataclass
class DecoderState:
    number: int
    """Source sentences."""
    sources: list[SourceKV]
    """Each layer's view of them; none where the decoder does not look back."""
    caches: list[Any]
    """Each layer's memory of the hypotheses so far."""
    starts: Tensor | None = None
    """(hypotheses,) where each began in the caches, when not all at 0."""

    def reorder(self, rows: Tensor) -> "DecoderState":
        """Hypothesis i goes on from what hypothesis rows[i] was. Rows stay with their source sentence."""
        for memory in self.caches:
            memory.reorder(rows)
        return replace(self, starts=None if self.starts is None else self.starts[rows])

    def keep(self, rows: Tensor) -> "DecoderState":
        """Go on with these source sentences only, each with all its hypotheses."""
        each = max(1, self.caches[0].rows // self.number)
        hypotheses = (rows[:, None] * each + torch.arange(each, device=rows.device)).flatten()
        sources = [SourceKV(s.keys[rows], s.values[rows], None if s.mask is None else s.mask.rows(rows)) for s in self.sources]
        return replace(self.reorder(hypotheses), number=len(rows), sources=sources)

    @staticmethod
    def join(states: "Sequence[DecoderState]") -> "DecoderState":
        """One state of all the sentences in several; sources are padded to the longest, hypotheses end together. What the longest
        of those that have left needed is given up."""
        sources = [join_sources(layer) for layer in zip(*(state.sources for state in states))]
        starts = join_starts(states)
        spare = 0 if starts is None else int(starts.min())
        caches = [type(layer[0]).join(list(layer), spare) for layer in zip(*(state.caches for state in states))]
        return DecoderState(sum(state.number for state in states), sources, caches, None if starts is None else starts - spare)


def prefill(
    read: Callable[[Tensor, DecoderState], Tensor],
    number: int,
    sources: list[SourceKV],
    layers: int,
    prefix: Tensor | None,
    capacity: int,
) -> DecoderState:
    """The state of a Transformer's decoder that has read its sources and what is already written (B, P), short rows filled with
    -1 on the left. What would be said after each of its words is not asked."""
    state = DecoderState(number, sources, [KVCache(capacity) for _ in range(layers)])
    if prefix is not None and prefix.size(1):
        state = replace(state, starts=leading_padding(prefix)) if begins_late(prefix) else state
        read(prefix.clamp(min=0), state)
    return state


def begins_late(prefix: Tensor) -> bool:
    """Whether any row does; not where the device cannot be asked, because a search is recorded, which is of rows that do not."""
    recorded = prefix.is_cuda and torch.cuda.is_current_stream_capturing()
    return not recorded and bool((prefix[:, 0] < 0).any())


def leading_padding(tokens: Tensor) -> Tensor:
    """How many places at the beginning of each row are empty: (B, P) -> (B,)."""
    return (tokens < 0).long().cumprod(1).sum(1)


def join_starts(states: Sequence[DecoderState]) -> Tensor | None:
    """Caches are moved right so that all end together; what has no positions has no starts either."""
    caches = [next((memory for memory in state.caches if isinstance(memory, KVCache)), None) for state in states]
    length = max(0 if cache is None else cache.length for cache in caches)
    starts = []
    for state, cache in zip(states, caches):
        if cache is None:
            return None
        begun = state.starts
        if begun is None:
            where = state.sources[0].keys.device if cache.keys is None else cache.keys.device
            begun = torch.zeros(cache.rows or state.number, dtype=torch.long, device=where)
        starts.append(begun + length - cache.length)
    return torch.cat(starts)


def join_sources(sources: Sequence[SourceKV]) -> SourceKV:
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
