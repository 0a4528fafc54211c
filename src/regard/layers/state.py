"""What a decoder remembers between steps: the state of the protocol that every search is written against.

A state has one part per source sentence, computed once and never reordered, and one part per hypothesis. The hypotheses of
one sentence lie next to each other and are equally many for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.cache import Cache
from regard.attention.masks import Mask
from regard.layers.block import Source


@dataclass
class State:
    sources: list[Source]
    """Each layer's view of the source sentences."""
    caches: list[Cache]
    """Each layer's keys and values of the hypotheses so far."""
    starts: Tensor | None = None
    """(hypotheses,) where each began, when not all at 0."""

    def reorder(self, rows: Tensor) -> "State":
        """Hypothesis i goes on from what hypothesis rows[i] was. Rows stay with their source sentence."""
        for cache in self.caches:
            cache.reorder(rows)
        return replace(self, starts=None if self.starts is None else self.starts[rows])

    def keep(self, rows: Tensor) -> "State":
        """Go on with these source sentences only, each with all its hypotheses."""
        before = self.sources[0].keys.size(0)
        cached = self.caches[0].keys
        each = 1 if cached is None else cached.size(0) // before
        hypotheses = (rows[:, None] * each + torch.arange(each, device=rows.device)).flatten()
        sources = [Source(s.keys[rows], s.values[rows], None if s.mask is None else s.mask.rows(rows)) for s in self.sources]
        return replace(self.reorder(hypotheses), sources=sources)

    @staticmethod
    def join(states: "Sequence[State]") -> "State":
        """One state of all the sentences in several; sources are padded to the longest, hypotheses end together."""
        length = max(state.caches[0].length for state in states)
        starts = []
        for state in states:
            rows = state.sources[0].keys.size(0) if state.caches[0].keys is None else state.caches[0].keys.size(0)
            begun = state.starts if state.starts is not None else torch.zeros(rows, dtype=torch.long, device=state.sources[0].keys.device)
            starts.append(begun + length - state.caches[0].length)
        sources = [join_sources(layer) for layer in zip(*(state.sources for state in states))]
        caches = [Cache.join(list(layer)) for layer in zip(*(state.caches for state in states))]
        return State(sources, caches, torch.cat(starts))


def join_sources(sources: Sequence[Source]) -> Source:
    longest = max(source.keys.size(2) for source in sources)

    def pad(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, longest - x.size(2)))

    lengths = [source.mask.lengths if source.mask is not None and source.mask.lengths is not None
               else torch.full((source.keys.size(0),), source.keys.size(2), device=source.keys.device) for source in sources]
    return Source(torch.cat([pad(s.keys) for s in sources]), torch.cat([pad(s.values) for s in sources]), Mask(lengths=torch.cat(lengths)))
