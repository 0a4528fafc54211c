"""Span corruption: spans put back give the text; as many as set; deterministic."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.batches.batch import IGNORE_INDEX
from regard.batches.batches import sequential_batches
from regard.batches.ragged import Ragged
from regard.batches.span_rows import SpanCorruptionRows, corrupt_spans, random_partition, span_counts
from regard.batches.token_store import TokenStore
from regard.recipe import SpanCorruption
from regard.tokens.special_tokens import BOS, EOS

SENTINELS = range(4, 24)


def restore(source, target):
    """Return the text: every sentinel of the source replaced by its span in the target."""
    spans, last = {}, None
    for token in target:
        last = token if token in SENTINELS else last
        spans.setdefault(last, []).append(token)
    return [word for token in source for word in (spans[token][1:] if token in SENTINELS else [token])]


TEXT = st.lists(st.integers(30, 99), max_size=60)


@given(TEXT, st.sampled_from([0.1, 0.15, 0.5]), st.sampled_from([1.0, 3.0]), st.integers(0, 99))
def test_spans_put_back_at_their_sentinels_give_the_text(ids, share, mean_length, seed):
    settings = SpanCorruption(fraction=share, mean_span_length=mean_length)
    source, target = corrupt_spans(ids, settings, SENTINELS, np.random.default_rng(seed))
    assert restore(source, target) == ids
    tokens, spans = span_counts(len(ids), settings, len(SENTINELS) - 1)
    assert [token for token in source if token in SENTINELS] == list(SENTINELS[:spans])
    assert [token for token in target if token in SENTINELS] == list(SENTINELS[: spans + 1])
    assert len(source) == len(ids) - tokens + spans and len(target) == tokens + spans + 1
    if len(ids) > 1:
        assert abs(tokens - share * len(ids)) <= 1


def test_every_position_of_a_short_text_can_be_cut_out():
    places = {
        corrupt_spans([30, 31, 32, 33], SpanCorruption(), SENTINELS, np.random.default_rng(seed))[0].index(4)
        for seed in range(60)
    }
    assert places == {0, 1, 2, 3}


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 50))
def test_random_partition_sums_to_the_total(total, parts, seed):
    parts = min(total, parts)
    found = random_partition(total, parts, np.random.default_rng(seed))
    assert sum(found) == total and len(found) == parts and min(found) >= 1


def test_span_batches_have_the_announced_lengths_and_are_deterministic():
    texts = [[30 + (7 * i + j) % 60 for j in range(1 + i % 40)] for i in range(200)]
    rows = SpanCorruptionRows(TokenStore(Ragged.from_rows(texts)), SpanCorruption(), SENTINELS)
    longest = rows.lengths(0, 0)
    for batch in sequential_batches(rows, 512):
        source, lengths, target = batch.inputs.values()
        for row, encoder_input, length, decoder_input, labels in zip(batch.rows, source, lengths.tolist(), target, batch.labels):
            assert length == longest[0][row] and encoder_input[length - 1] == EOS
            target_ids = labels[labels != IGNORE_INDEX].tolist()
            assert len(target_ids) == longest[1][row] and target_ids[-1] == EOS and decoder_input[0] == BOS
            assert restore(encoder_input[: length - 1].tolist(), target_ids[:-1]) == texts[row]
    one, again, later = (rows.batch(np.arange(9), 1, epoch) for epoch in (0, 0, 1))
    assert torch.equal(one.labels, again.labels) and one.labels.tolist() != later.labels.tolist()
