"""Rows of every task: the inputs and labels of their batches; padding is ignored."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regard.batches.batch import IGNORE_INDEX
from regard.batches.batches import Batches, sequential_batches
from regard.batches.language_rows import LanguageModelRows, StreamRows
from regard.batches.ragged import Ragged
from regard.batches.rows import BidirectionalRows, ClassificationRows, TaggingRows
from regard.batches.token_store import TokenStore
from regard.tokens.special_tokens import BOS, EOS, PAD

TEXTS = st.lists(st.lists(st.integers(4, 99), min_size=1, max_size=6), min_size=1, max_size=8)


def not_ignored(labels):
    return [label for label in labels.tolist() if label != IGNORE_INDEX]


@given(TEXTS)
def test_language_model_labels_are_every_token_and_eos(texts):
    for batch in sequential_batches(LanguageModelRows(TokenStore(Ragged.from_rows(texts))), 20):
        for row, target, labels in zip(batch.rows, batch.inputs["target"], batch.labels):
            assert not_ignored(labels) == [*texts[row], EOS]
            assert target.tolist()[: len(texts[row]) + 1] == [BOS, *texts[row]]


@given(TEXTS)
def test_bidirectional_labels_are_the_next_and_the_previous_token(texts):
    for batch in sequential_batches(BidirectionalRows(TokenStore(Ragged.from_rows(texts))), 20):
        for row, length, labels in zip(batch.rows, batch.inputs["lengths"].tolist(), batch.labels):
            whole = [*texts[row], EOS]
            assert length == len(whole)
            assert labels[:length, 0].tolist() == [*whole[1:], IGNORE_INDEX] and labels[:length, 1].tolist() == [
                IGNORE_INDEX,
                *whole[:-1],
            ]
            assert (labels[length:] == IGNORE_INDEX).all()


@given(TEXTS, st.integers(1, 7))
def test_tags_stay_aligned_with_their_tokens_when_truncated(texts, max_tokens):
    tags = [[token + 1000 if i % 2 == 0 else IGNORE_INDEX for i, token in enumerate(text)] for text in texts]
    rows = TaggingRows(TokenStore(Ragged.from_rows(texts)), Ragged.from_rows(tags)).truncate(max_tokens + 1)
    for batch in sequential_batches(rows, 20):
        for source, length, labels in zip(batch.inputs["source"], batch.inputs["lengths"].tolist(), batch.labels):
            assert length <= max_tokens + 1 and source[length - 1] == EOS and labels[length - 1] == IGNORE_INDEX
            predicted = labels != IGNORE_INDEX
            assert (labels[predicted] == source[predicted] + 1000).all() and predicted.sum() == (length - 1 + 1) // 2


@given(TEXTS)
def test_a_class_stays_with_its_text(texts):
    classes = np.array([text[0] for text in texts])
    for batch in sequential_batches(ClassificationRows(TokenStore(Ragged.from_rows(texts)), classes), 20):
        assert batch.inputs["source"][:, 0].tolist() == batch.labels.tolist()


@given(st.integers(2, 60), st.integers(1, 9), st.integers(0, 3))
def test_stream_rows_predict_every_token_once_per_epoch(length, window, epoch):
    ids = np.arange(100, 100 + length)
    batches = Batches(StreamRows(ids, window), 20, seed=3)
    pairs = []
    for i in range(len(batches.plan(epoch))):
        batch = batches.batch(epoch, i)
        assert batch.inputs["target"].size(1) <= window
        for read, labels in zip(batch.inputs["target"], batch.labels):
            pairs += [(a, b) for a, b in zip(read.tolist(), labels.tolist()) if b != IGNORE_INDEX]
            assert all(b == IGNORE_INDEX for a, b in zip(read.tolist(), labels.tolist()) if a == PAD)
    ring = {(int(ids[i]), int(ids[(i + 1) % length])) for i in range(length)}
    assert len(pairs) == length - 1 == len(set(pairs)) and set(pairs) <= ring
    if epoch == 0:
        assert set(pairs) == {(int(a), int(b)) for a, b in pairwise(ids)}


@given(st.integers(2, 60), st.integers(2, 9), st.data())
def test_overlapping_stream_windows_predict_every_token_once_with_more_context(length, window, data):
    overlap = data.draw(st.integers(0, window - 1))
    predicted = []
    for batch in sequential_batches(StreamRows(np.arange(100, 100 + length), window, overlap), 20):
        for row, read, labels in zip(batch.rows, batch.inputs["target"].tolist(), batch.labels.tolist()):
            found = [(place, token, label) for place, (token, label) in enumerate(zip(read, labels)) if label != IGNORE_INDEX]
            assert row == 0 or all(place >= overlap for place, _, _ in found)
            predicted += [(token, label) for _, token, label in found]
    assert sorted(predicted) == [(i, i + 1) for i in range(100, 99 + length)]
