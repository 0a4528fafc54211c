"""Packed rows: every text once and whole, nothing asked across texts, the same again for the same seed; long texts in windows."""

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

ROOM = 12
TEXTS = st.lists(st.lists(st.integers(5, 99), max_size=9), min_size=1, max_size=30)


def sentences(texts):
    return LanguageModelRows(TokenStore(Ragged.from_rows(texts)))


def masked(texts, **masking):
    return MaskedRows(TokenStore(Ragged.from_rows(texts)), Masking(**masking), 4, 100, special_tokens=BOS_AND_EOS)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(20, 40), st.integers(0, 5))
def test_the_best_fit_wastes_little(lengths, room, seed):
    lengths, order = np.array(lengths), np.random.default_rng(seed).permutation(len(lengths))
    rows = best_fit_rows(lengths, room, order)
    assert sorted(rows.flat.tolist()) == list(range(len(lengths)))
    filled = [int(lengths[rows[i]].sum()) for i in range(len(rows))]
    assert max(filled) <= room
    assert sum(length <= room / 2 for length in filled) <= 1, "two rows that are half empty would have been one"


def test_a_text_goes_where_it_leaves_the_least():
    rows = best_fit_rows(np.array([6, 7, 3, 4]), 10, np.arange(4))
    assert [rows[i].tolist() for i in range(len(rows))] == [[0, 3], [1, 2]]


def documents_of(batch, name):
    """What is read and what should be said, document by document; what fills a row up says nothing."""
    for read, numbers, labels in zip(batch.inputs[name], batch.inputs["documents"], batch.labels):
        assert (labels[numbers == 0] == IGNORE_INDEX).all()
        real = numbers[numbers > 0]
        assert (real.diff() >= 0).all() and sorted(set(real.tolist())) == list(range(1, int(real.max()) + 1))
        for number in range(1, int(real.max()) + 1):
            yield read[numbers == number].tolist(), labels[numbers == number].tolist()


@given(TEXTS, st.integers(0, 3), st.sampled_from(["language", "masked"]))
def test_every_text_is_read_once_an_epoch_as_it_would_be_alone(texts, epoch, task):
    rows, name = (sentences(texts), "target") if task == "language" else (masked(texts, fraction=0.5), "source")
    batches = Batches(PackedRows(rows, ROOM), 40, seed=3)
    found = []
    for i in range(len(batches.plan(epoch))):
        batch = batches.batch(epoch, i)
        assert batch.inputs[name].size(1) <= ROOM
        if task == "masked":
            assert batch.inputs["lengths"].tolist() == (batch.inputs["documents"] > 0).sum(1).tolist()
        found += documents_of(batch, name)
    read, said = rows.ragged(np.arange(len(texts)), 3, epoch)
    assert sorted(found) == sorted((read[i].tolist(), said[i].tolist()) for i in range(len(texts)))


def test_a_row_is_a_pure_function_of_seed_and_epoch():
    texts = [[5 + i] * (i % 7) for i in range(200)]
    one, other = PackedRows(sentences(texts), ROOM), PackedRows(sentences(texts), ROOM)
    other.batch(np.arange(3), 1, 5)  # having been elsewhere changes nothing
    batches = [
        packed.batch(np.arange(9), seed, epoch)
        for packed, seed, epoch in ((one, 1, 2), (other, 1, 2), (other, 1, 3), (one, 2, 2))
    ]
    assert all(torch.equal(part, batches[1].inputs[name]) for name, part in batches[0].inputs.items())
    assert all(not torch.equal(batches[0].labels, later.labels) for later in batches[2:])


def test_little_is_padding():
    texts = [[5] * (3 + 7 * i % 40) for i in range(2000)]
    assert Batches(PackedRows(sentences(texts), 64), 64 * 8, seed=1).padding_fraction() < 0.02


@given(TEXTS, st.integers(2, 5), st.booleans())
def test_windows_say_every_word_once_and_pack(texts, most, pack):
    windows = sentences(texts).split(most)
    whole = sentences(texts)
    if not pack:
        said = {i: [] for i in range(len(windows))}
        for batch in sequential_batches(windows, 20):
            for row, labels in zip(batch.rows, batch.labels):
                said[row] = [label for label in labels.tolist() if label != IGNORE_INDEX]
        assert [label for labels in said.values() for label in labels] == [label for text in texts for label in (*text, EOS)]
        assert max(map(len, said.values())) <= most
        return
    batches = Batches(PackedRows(windows, 2 * most), 40, seed=1)
    found = [pair for i in range(len(batches.plan(1))) for pair in documents_of(batches.batch(1, i), "target")]
    read, said = whole.ragged(np.arange(len(texts)), 1, 1)
    assert sorted(found) == sorted(
        (read[i][at : at + most].tolist(), said[i][at : at + most].tolist())
        for i in range(len(texts))
        for at in range(0, len(read[i]), most)
    )


@given(TEXTS, st.integers(3, 6))
def test_masked_texts_are_split_into_texts_with_marks(texts, most):
    pieces = masked(texts, fraction=0.5).split(most)
    said = []
    for i in range(len(pieces)):
        read, asked = (part[0].tolist() for part in pieces.ragged(np.array([i]), 1, 0))
        assert len(read) <= most and read[0] == BOS and read[-1] == EOS and asked[0] == asked[-1] == IGNORE_INDEX
        said += [a if b == IGNORE_INDEX else b for a, b in zip(read[1:-1], asked[1:-1])]
    assert said == [token for text in texts for token in text]
