"""Masking: the right fraction of tokens, masked, replaced or kept, never special tokens; deterministic per epoch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.batches.batch import IGNORE_INDEX
from regard.batches.batches import Batches, sequential_batches
from regard.batches.masked_rows import MaskedPairRows, MaskedRows, lines_with_successor, word_starts
from regard.batches.ragged import Ragged
from regard.batches.rows import encoder_pair_inputs
from regard.batches.token_store import TokenStore
from regard.recipe import Masking
from regard.tokens.special_tokens import BOS, BOS_AND_EOS, EOS

MASK, V = 4, 1000
TEXTS = [[5 + (7 * i + 13 * j) % (V - 5) for j in range(1 + i % 9)] for i in range(400)]


def masked(texts=TEXTS, heads=None, **masking):
    return MaskedRows(TokenStore(Ragged.from_rows(texts)), Masking(**masking), MASK, V, heads, special_tokens=BOS_AND_EOS)


@given(st.sampled_from([0.1, 0.15, 0.5]), st.integers(0, 5))
def test_masked_labels_are_the_original_tokens_and_never_special_tokens(fraction, epoch):
    rows = masked(fraction=fraction)
    num_chosen = total = num_kept = num_masked = 0
    for batch in (Batches(rows, 512, seed=1).batch(epoch, i) for i in range(len(Batches(rows, 512, seed=1).plan(epoch)))):
        source_lengths = batch.inputs["source"], batch.inputs["lengths"].tolist()
        for row, source, length, labels in zip(batch.rows, *source_lengths, batch.labels):
            whole = torch.tensor([BOS, *TEXTS[row], EOS])
            assert length == len(whole) and (labels[length:] == IGNORE_INDEX).all()
            source, labels = source[:length], labels[:length]
            chosen = labels != IGNORE_INDEX
            assert not chosen[0] and not chosen[-1] and source[0] == BOS and source[-1] == EOS
            assert torch.equal(labels[chosen], whole[chosen]) and torch.equal(source[~chosen], whole[~chosen])
            num_chosen, total = num_chosen + int(chosen.sum()), total + length - 2
            num_kept += int((source[chosen] == whole[chosen]).sum())
            num_masked += int((source[chosen] == MASK).sum())
    assert abs(num_chosen / total - fraction) < 4 * (fraction / total) ** 0.5
    assert (
        abs(num_masked / num_chosen - 0.8) < 4 * (0.16 / num_chosen) ** 0.5
        and abs(num_kept / num_chosen - 0.1) < 4 * (0.09 / num_chosen) ** 0.5 + 2 / V
    )


def test_masking_is_deterministic_and_differs_between_epochs():
    rows, some = masked(), np.arange(50)
    first, again, later = rows.batch(some, 1, 0), rows.batch(some, 1, 0), rows.batch(some, 1, 1)
    assert torch.equal(first.labels, again.labels) and torch.equal(first.inputs["source"], again.inputs["source"])
    assert not torch.equal(first.labels, later.labels)
    alone = rows.batch(np.array([17]), 1, 0)
    assert torch.equal(alone.labels[0], first.labels[17, : alone.labels.size(1)]), "the other rows of the batch must not matter"


def test_whole_word_masking_masks_all_subwords():
    words = [[j // 3 for j in range(len(text))] for text in TEXTS]
    ids = Ragged.from_rows(TEXTS)
    rows = masked(heads=word_starts(ids, words), whole_words=True, fraction=0.4)
    for batch in sequential_batches(rows, 512):
        for row, labels in zip(batch.rows, batch.labels != IGNORE_INDEX):
            for word in set(words[row]):
                of = [bool(labels[1 + j]) for j, w in enumerate(words[row]) if w == word]
                assert all(of) or not any(of)


SHORT = st.lists(st.integers(5, 99), max_size=4)
PAIRS = st.lists(st.tuples(SHORT, SHORT), min_size=1, max_size=6)


@given(PAIRS)
def test_encoder_pair_inputs_have_separators_and_segments(pairs):
    found = encoder_pair_inputs(Ragged.from_rows([a for a, _ in pairs]), Ragged.from_rows([b for _, b in pairs]), BOS_AND_EOS)
    for (a, b), source, length, segments in zip(pairs, found["source"], found["lengths"].tolist(), found["segments"]):
        assert source[:length].tolist() == [BOS, *a, EOS, *b, EOS]
        assert segments[:length].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)


def test_next_sentence_pairs_follow_in_half_of_the_rows():
    documents = np.repeat(np.arange(100), 4)
    firsts = lines_with_successor(documents)
    assert (documents[firsts] == documents[firsts + 1]).all() and len(firsts) == 300
    rows = MaskedPairRows(
        TokenStore(Ragged.from_rows(TEXTS)), Masking(fraction=0.01), MASK, V, None, firsts, special_tokens=BOS_AND_EOS
    ).truncate(64)
    follows = 0
    for batch in sequential_batches(rows, 512):
        for row, source, length, true in zip(batch.rows, *(batch.inputs[name] for name in ("source", "lengths", "follows"))):
            ends = (source[:length] == EOS).nonzero()[:, 0]
            assert len(ends) == 2 and int(ends[0]) - 1 == len(TEXTS[firsts[row]])
            if true:
                assert int(ends[1] - ends[0]) - 1 == len(TEXTS[firsts[row] + 1])
            follows += int(true)
    assert abs(follows / 300 - 0.5) < 0.12
    with pytest.raises(IndexError):
        rows.batch(np.array([300]), 0, 0)


def test_a_randomly_drawn_successor_is_labelled_as_following():
    rows = MaskedPairRows(
        TokenStore(Ragged.from_rows(TEXTS[:6])), Masking(), MASK, V, None, np.array([0, 2, 4]), special_tokens=BOS_AND_EOS
    )
    for epoch in range(20):
        first, second, follows = rows.pairs(np.arange(3), 1, epoch)
        assert ((second == first + 1) == follows).all()
