"""Texts with spans cut out (T5, Raffel et al. 2020, sec. 3.1.4): which is a pure function of (seed, epoch, text).

Deviation: a text may begin with a span and end without one, so that in a short text every place is as likely as another.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from regard.batches.batch import Batch
from regard.batches.ragged import Ragged
from regard.batches.rows import TextRows, decoder_inputs, decoder_labels, encoder_inputs

if TYPE_CHECKING:
    from regard.recipe import SpanCorruption

CUT = 7


@dataclass
class SpanCorruptionRows(TextRows):
    """Read a text in which each cut-out span is one sentinel; say every sentinel and after it what it stands for, then one more
    sentinel."""

    corruption: "SpanCorruption"
    sentinels: range

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        whole, most = self.text.lengths(seed, epoch), len(self.sentinels) - 1
        cut = np.array([cuts(int(length), self.corruption, most) for length in whole]).reshape(-1, 2)
        return [whole - cut[:, 0] + cut[:, 1] + self.special_tokens.num_added, cut.sum(1) + 2]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        text = self.text.take(rows, seed, epoch)
        pairs = [
            corrupt(text[i].tolist(), self.corruption, self.sentinels, np.random.default_rng([seed, CUT, epoch, int(row)]))
            for i, row in enumerate(rows)
        ]
        source, target = Ragged.from_rows([a for a, _ in pairs]), Ragged.from_rows([b for _, b in pairs])
        return Batch(
            {**encoder_inputs(source, self.special_tokens), "target": decoder_inputs(target, self.special_tokens)},
            decoder_labels(target, self.special_tokens),
            rows,
        )


def cuts(length: int, corruption: "SpanCorruption", most: int) -> tuple[int, int]:
    """How many tokens of a text are cut out, and in how many spans; something always stays, if there is anything."""
    if length < 2:
        return 0, 0
    tokens = min(max(round(length * corruption.fraction), 1), length - 1)
    spans = min(max(round(tokens / corruption.mean_span_length), 1), tokens, length - tokens, most)
    return tokens, spans


def corrupt(
    ids: list[int], corruption: "SpanCorruption", sentinels: range, chance: np.random.Generator
) -> tuple[list[int], list[int]]:
    """What is read of a text and what is said: the lengths of the spans, and of what is before, between and after them, are drawn
    evenly; nothing may be before the first or after the last."""
    tokens, spans = cuts(len(ids), corruption, len(sentinels) - 1)
    cut = lengths_of(tokens, spans, chance)
    kept = lengths_of(len(ids) - tokens + 2, spans + 1, chance)
    kept[0] -= 1
    source: list[int] = []
    target: list[int] = []
    at = 0
    for sentinel, stays, goes in zip(sentinels, kept, cut):
        source += [*ids[at : at + stays], sentinel]
        target += [sentinel, *ids[at + stays : at + stays + goes]]
        at += stays + goes
    return source + ids[at:], [*target, sentinels[spans]]


def lengths_of(total: int, parts: int, chance: np.random.Generator) -> list[int]:
    """A way to cut `total` into so many parts of at least one, all equally likely."""
    if parts == 0:
        return []
    ends = np.sort(chance.permutation(total - 1)[: parts - 1]) + 1
    return np.diff([0, *ends, total]).tolist()
