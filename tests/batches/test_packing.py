"""Packing: every text once and complete, no labels across texts, deterministic; long texts in chunks."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.batches.batch import IGNORE_INDEX
from regard.batches.batches import Batches, sequential_batches
from regard.batches.language_rows import LanguageModelRows, PackedRows, best_fit_rows
from regard.batches.masked_rows import MaskedRows
from regard.batches.ragged import Ragged
from regard.batches.token_store import TokenStore
from regard.recipe import Masking
from regard.tokens.special_tokens import BOS, BOS_AND_EOS, EOS

ROW_LENGTH = 12
TEXTS = st.lists(st.lists(st.integers(5, 99), max_size=9), min_size=1, max_size=30)


def sentences(texts):
    return LanguageModelRows(TokenStore(Ragged.from_rows(texts)))


def masked(texts, **masking):
    return MaskedRows(TokenStore(Ragged.from_rows(texts)), Masking(**masking), 4, 100, special_tokens=BOS_AND_EOS)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(20, 40), st.integers(0, 5))
def test_best_fit_packs_every_text_once_with_little_waste(lengths, room, seed):
    lengths, order = np.array(lengths), np.random.default_rng(seed).permutation(len(lengths))
    rows = best_fit_rows(lengths, room, order)
    assert sorted(rows.flat.tolist()) == list(range(len(lengths)))
    filled = [int(lengths[rows[i]].sum()) for i in range(len(rows))]
    assert max(filled) <= room
    assert sum(length <= room / 2 for length in filled) <= 1, "two half-empty rows would have been packed into one"


def test_best_fit_chooses_the_row_with_the_least_space_left():
    rows = best_fit_rows(np.array([6, 7, 3, 4]), 10, np.arange(4))
    assert [rows[i].tolist() for i in range(len(rows))] == [[0, 3], [1, 2]]


def documents_of(batch, name):
    """Yield the inputs and labels of each document; padding has no labels."""
    for input_rows, numbers, labels in zip(batch.inputs[name], batch.inputs["documents"], batch.labels):
        assert (labels[numbers == 0] == IGNORE_INDEX).all()
        real = numbers[numbers > 0]
        assert (real.diff() >= 0).all() and sorted(set(real.tolist())) == list(range(1, int(real.max()) + 1))
        for number in range(1, int(real.max()) + 1):
            yield input_rows[numbers == number].tolist(), labels[numbers == number].tolist()


@given(TEXTS, st.integers(0, 3), st.sampled_from(["language", "masked"]))
def test_packed_texts_equal_unpacked_texts_once_per_epoch(texts, epoch, task):
    rows, name = (sentences(texts), "target") if task == "language" else (masked(texts, fraction=0.5), "source")
    batches = Batches(PackedRows(rows, ROW_LENGTH), 40, seed=3)
    found = []
    for i in range(len(batches.plan(epoch))):
        batch = batches.batch(epoch, i)
        assert batch.inputs[name].size(1) <= ROW_LENGTH
        if task == "masked":
            assert batch.inputs["lengths"].tolist() == (batch.inputs["documents"] > 0).sum(1).tolist()
        found += documents_of(batch, name)
    input_rows, label_rows = rows.ragged(np.arange(len(texts)), 3, epoch)
    assert sorted(found) == sorted((input_rows[i].tolist(), label_rows[i].tolist()) for i in range(len(texts)))


def test_packing_is_a_pure_function_of_seed_and_epoch():
    texts = [[5 + i] * (i % 7) for i in range(200)]
    one, other = PackedRows(sentences(texts), ROW_LENGTH), PackedRows(sentences(texts), ROW_LENGTH)
    other.batch(np.arange(3), 1, 5)  # earlier calls must not matter
    batches = [
        packed.batch(np.arange(9), seed, epoch)
        for packed, seed, epoch in ((one, 1, 2), (other, 1, 2), (other, 1, 3), (one, 2, 2))
    ]
    assert all(torch.equal(part, batches[1].inputs[name]) for name, part in batches[0].inputs.items())
    assert all(not torch.equal(batches[0].labels, later.labels) for later in batches[2:])


def test_packed_batches_have_less_than_2_percent_padding():
    texts = [[5] * (3 + 7 * i % 40) for i in range(2000)]
    assert Batches(PackedRows(sentences(texts), 64), 64 * 8, seed=1).padding_fraction() < 0.02


@given(TEXTS, st.integers(2, 5), st.booleans())
def test_chunks_predict_every_token_once_also_when_packed(texts, max_length, pack):
    windows = sentences(texts).split(max_length)
    whole = sentences(texts)
    if not pack:
        label_rows = {i: [] for i in range(len(windows))}
        for batch in sequential_batches(windows, 20):
            for row, labels in zip(batch.rows, batch.labels):
                label_rows[row] = [label for label in labels.tolist() if label != IGNORE_INDEX]
        assert [label for labels in label_rows.values() for label in labels] == [
            label for text in texts for label in (*text, EOS)
        ]
        assert max(map(len, label_rows.values())) <= max_length
        return
    batches = Batches(PackedRows(windows, 2 * max_length), 40, seed=1)
    found = [pair for i in range(len(batches.plan(1))) for pair in documents_of(batches.batch(1, i), "target")]
    input_rows, label_rows = whole.ragged(np.arange(len(texts)), 1, 1)
    assert sorted(found) == sorted(
        (input_rows[i][at : at + max_length].tolist(), label_rows[i][at : at + max_length].tolist())
        for i in range(len(texts))
        for at in range(0, len(input_rows[i]), max_length)
    )


@given(TEXTS, st.integers(3, 6))
def test_masked_texts_split_into_texts_with_special_tokens(texts, max_length):
    pieces = masked(texts, fraction=0.5).split(max_length)
    label_rows = []
    for i in range(len(pieces)):
        input_rows, row_labels = (part[0].tolist() for part in pieces.ragged(np.array([i]), 1, 0))
        assert (
            len(input_rows) <= max_length
            and input_rows[0] == BOS
            and input_rows[-1] == EOS
            and row_labels[0] == row_labels[-1] == IGNORE_INDEX
        )
        label_rows += [a if b == IGNORE_INDEX else b for a, b in zip(input_rows[1:-1], row_labels[1:-1])]
    assert label_rows == [token for text in texts for token in text]
