"""Span corruption (T5, Raffel et al. 2020, sec. 3.1.4): which spans are cut out is a pure function of (seed, epoch, text).

Deviation: a text may start with a span and end without one, so that every position of a short text is equally likely.
"""

from dataclasses import dataclass

import numpy as np

from regard.batches.batch import Batch
from regard.batches.ragged import Ragged
from regard.batches.rows import TextRows, decoder_inputs, decoder_labels, encoder_inputs
from regard.recipe import SpanCorruption

SPAN_STREAM = 7


@dataclass
class SpanCorruptionRows(TextRows):
    """Texts with spans replaced by sentinels; the target is every sentinel followed by its span, and one more sentinel."""

    corruption: SpanCorruption
    sentinels: range

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        lengths, max_spans = self.text.lengths(seed, epoch), len(self.sentinels) - 1
        counts = np.array([span_counts(int(length), self.corruption, max_spans) for length in lengths]).reshape(-1, 2)
        return [lengths - counts[:, 0] + counts[:, 1] + self.special_tokens.num_added, counts.sum(1) + 2]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        text = self.text.take(rows, seed, epoch)
        pairs = [
            corrupt_spans(
                text[i].tolist(), self.corruption, self.sentinels, np.random.default_rng([seed, SPAN_STREAM, epoch, int(row)])
            )
            for i, row in enumerate(rows)
        ]
        source, target = Ragged.from_rows([a for a, _ in pairs]), Ragged.from_rows([b for _, b in pairs])
        inputs = {**encoder_inputs(source, self.special_tokens), "target": decoder_inputs(target, self.special_tokens)}
        return Batch(inputs, decoder_labels(target, self.special_tokens), rows)


def span_counts(length: int, corruption: SpanCorruption, max_spans: int) -> tuple[int, int]:
    """Return how many tokens of a text are cut out, and in how many spans; at least one token stays."""
    if length < 2:
        return 0, 0
    tokens = min(max(round(length * corruption.fraction), 1), length - 1)
    spans = min(max(round(tokens / corruption.mean_span_length), 1), tokens, length - tokens, max_spans)
    return tokens, spans


def corrupt_spans(
    ids: list[int], corruption: SpanCorruption, sentinels: range, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Return the source and the target of a text. The lengths of the spans, and of the gaps before, between and after them, are
    drawn uniformly; the first and the last gap may be empty."""
    tokens, spans = span_counts(len(ids), corruption, len(sentinels) - 1)
    span_lengths = random_partition(tokens, spans, rng)
    gaps = random_partition(len(ids) - tokens + 2, spans + 1, rng)
    gaps[0] -= 1
    source: list[int] = []
    target: list[int] = []
    at = 0
    for sentinel, gap, length in zip(sentinels, gaps, span_lengths):
        source += [*ids[at : at + gap], sentinel]
        target += [sentinel, *ids[at + gap : at + gap + length]]
        at += gap + length
    return source + ids[at:], [*target, sentinels[spans]]


def random_partition(total: int, parts: int, rng: np.random.Generator) -> list[int]:
    """Cut `total` into so many parts of at least one, all ways equally likely."""
    if parts == 0:
        return []
    ends = np.sort(rng.permutation(total - 1)[: parts - 1]) + 1
    return [int(length) for length in np.diff([0, *ends, total])]
