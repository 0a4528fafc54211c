"""Batches: every pair once per epoch, within the token budget, little padding, a pure function of (seed, epoch, index)."""

import threading
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import rng
from regard.batches.batch import IGNORE_INDEX, Batch, MixedLabels
from regard.batches.batches import Batches, group_by_length, sequential_batches
from regard.batches.ragged import Ragged
from regard.batches.rows import TranslationRows, cache_per_epoch, evaluation_rows, training_rows
from regard.batches.token_store import build_token_store, open_token_store
from regard.corpus.examples import SentencePairs
from regard.errors import UserError
from regard.files import cache_root
from regard.recipe import TokenSettings
from regard.tokens.special_tokens import BOS, EOS, PAD
from regard.tokens.tokenizer import train_tokenizer
from regard.worlds import bilingual

GOLD = bilingual.generate(3000, 7, level=2)
PAIRS = SentencePairs([pair.source for pair in GOLD], [pair.target for pair in GOLD], name="world")


@pytest.fixture(scope="module")
def tokenizers():
    tokenizer = train_tokenizer(TokenSettings(size=800), PAIRS.source + PAIRS.target)
    return tokenizer, tokenizer


def translations(pairs, tokenizers, **options):
    return TranslationRows(
        *(open_token_store(texts, tokenizer, **options) for texts, tokenizer in zip(pairs.texts(), tokenizers))
    )


@pytest.fixture(params=[0.0, 0.1], ids=["plain", "bpe-dropout"])
def store(request, tokenizers):
    return translations(PAIRS, tokenizers, bpe_dropout=request.param, seed=3)


ROWS = st.lists(st.lists(st.integers(4, 99), max_size=6), min_size=1, max_size=8)


@given(ROWS, st.data())
def test_ragged_take_truncate_and_pad_equal_list_operations(rows, data):
    ragged = Ragged.from_rows(rows)
    chosen = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)), dtype=np.int64)
    assert [list(row) for row in (ragged.take(chosen)[i] for i in range(len(chosen)))] == [rows[i] for i in chosen]
    longest_side = data.draw(st.integers(0, 6))
    cut = ragged.truncate(longest_side)
    assert [list(cut[i]) for i in range(len(rows))] == [row[:longest_side] for row in rows]
    rectangle = ragged.to_padded(pad=0, prefix=[1], suffix=[2])
    assert [[x for x in row if x] for row in rectangle.tolist()] == [[1, *row, 2] for row in rows]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=200), st.integers(30, 200))
def test_group_by_length_has_every_row_once_within_the_token_budget(lengths, budget):
    source, target = np.array(lengths).T
    batches = group_by_length([source, target], budget, np.random.default_rng(0).permutation(len(source)))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(source)))
    assert all(len(rows) * max(source[rows].max(), target[rows].max()) <= budget for rows in batches)


def test_an_epoch_has_every_sentence_pair_once_and_decodes_to_the_text(store, tokenizers):
    batches = Batches(store, 512, seed=1)
    seen = {}
    for i in range(len(batches.plan(2))):
        batch = batches.batch(2, i)
        for row, source, length, target, labels in zip(batch.rows, *batch.inputs.values(), batch.labels):
            assert row not in seen
            assert source[length - 1] == EOS and target[0] == BOS and (source[length:] == PAD).all()
            end = labels.tolist().index(EOS)
            assert target[1 : end + 1].tolist() == labels[:end].tolist() and (labels[end + 1 :] == IGNORE_INDEX).all()
            seen[row] = tokenizers[0].decode([source[: length - 1].tolist()])[0], tokenizers[1].decode([labels[:end].tolist()])[0]
    assert [seen[i] for i in range(len(PAIRS))] == list(zip(PAIRS.source, PAIRS.target))


def test_a_batch_is_a_pure_function_of_seed_epoch_and_index(store):
    one, other = Batches(store, 512, seed=1), Batches(store, 512, seed=1)
    other.batch(4, 3)  # earlier calls must not matter
    for epoch, index in ((0, 0), (3, 5), (1, 2)):
        assert torch.equal(one.batch(epoch, index).inputs["source"], other.batch(epoch, index).inputs["source"])
    orders = [np.concatenate(Batches(store, 512, seed=seed).plan(epoch)).tolist() for seed, epoch in ((1, 0), (1, 1), (2, 0))]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_bpe_dropout_segments_differently_in_each_epoch(tokenizers):
    store = translations(PAIRS, tokenizers, bpe_dropout=0.3, seed=3)
    rows = np.arange(50)
    first, second = store.source.take(rows, 1, 0), store.source.take(rows, 1, 1)
    assert first.flat.tolist() != second.flat.tolist()
    assert first.lengths.tolist() == store.source.lengths(1, 0)[:50].tolist()


@pytest.mark.parametrize("workers", [1, 3])
def test_iterate_is_independent_of_workers_and_of_the_starting_place(store, workers):
    batches = Batches(store, 2048, seed=1)
    alone = list(batches.iterate(len(batches.plan(0)) + 5, workers=0))
    helped = list(Batches(store, 2048, seed=1).iterate(len(alone), workers=workers))
    later = list(Batches(store, 2048, seed=1).iterate(len(alone) - 7, *alone[7][:2], workers=workers))
    for (e, i, a), (f, j, b) in zip(alone + alone[7:], helped + later, strict=True):
        assert (e, i) == (f, j) and torch.equal(a.inputs["source"], b.inputs["source"]) and torch.equal(a.labels, b.labels)


@pytest.mark.parametrize("index", ["middle", "end"])
def test_iterate_plans_each_epoch_during_the_one_before(store, index, monkeypatch):
    """Also from a place in the middle of an epoch and at its end, as after a resume."""
    batches, planned_by = Batches(store, 2048, seed=1), {}
    per_epoch, make_plan = len(batches.plan(0)), Batches._make_plan
    start = per_epoch if index == "end" else per_epoch // 2
    expected = [(e, i) for e in range(4) for i in range(len(batches.plan(e)))][start : start + 2 * per_epoch]

    def record(self, epoch):
        planned_by[epoch] = threading.current_thread()
        return make_plan(self, epoch)

    helped = Batches(store, 2048, seed=1)
    monkeypatch.setattr(Batches, "_make_plan", record)
    found = list(helped.iterate(2 * per_epoch, 0, start, workers=2))
    assert [(e, i) for e, i, _ in found] == expected
    assert [e for e, thread in planned_by.items() if thread is threading.main_thread()] == [0]
    assert set(planned_by) == {0, *(e for e, _ in expected)}, "no epoch is planned that is not needed"
    for e, i, batch in found:
        assert torch.equal(batch.inputs["source"], batches.batch(e, i).inputs["source"])


def test_epochs_that_are_needed_at_once_are_computed_once_each():
    computed = []

    class Counted:
        @cache_per_epoch
        def plan(self, seed, epoch):
            computed.append(epoch)
            return epoch

    counted = Counted()
    order = [0, 1, 0, 1, 2, 0, 1, 2, 3, 2, 3]  # the batches of one epoch, while the next is planned
    assert [counted.plan(7, epoch) for epoch in order] == order and computed == [0, 1, 2, 3]


def test_the_ranks_shards_make_up_each_batch(store):
    whole, first, second = (Batches(store, 512, seed=1, rank=r, world_size=n) for r, n in ((0, 1), (0, 2), (1, 2)))
    for i in range(5):
        both = np.concatenate([first.batch(0, i).rows, second.batch(0, i).rows])
        assert sorted(both) == sorted(whole.batch(0, i).rows)


def test_translation_batches_have_less_than_8_percent_padding(store):
    assert Batches(store, 2048, seed=1).padding_fraction() < 0.08


def test_sequential_batches_have_each_pair_once_without_bpe_dropout(store, tokenizers):
    rows = np.concatenate([batch.rows for batch in sequential_batches(store, 512)])
    assert sorted(rows.tolist()) == list(range(len(PAIRS)))
    batch = next(sequential_batches(store, 512))
    source, lengths, _ = batch.inputs.values()
    assert source[0, : lengths[0] - 1].tolist() == tokenizers[0].encode([PAIRS.source[batch.rows[0]]])[0]


def test_a_token_store_is_built_once_and_found_by_its_content(tokenizers, monkeypatch):
    first = open_token_store(PAIRS.source, tokenizers[0])
    assert isinstance(first.ids.flat, np.memmap)
    monkeypatch.setattr("regard.batches.token_store.build_token_store", lambda *_, **__: pytest.fail("built again"))
    open_token_store(PAIRS.source, tokenizers[0])
    with pytest.raises(pytest.fail.Exception):
        open_token_store(PAIRS.source[:10], tokenizers[0])
    assert not list(cache_root().glob(".building-*"))


def test_too_long_examples_are_refused_dropped_or_truncated(tokenizers):
    pairs = SentencePairs(
        [*PAIRS.source[:20], "the dog " * 100], [*PAIRS.target[:20], "der Hund"], name="a.en", lines=list(range(1, 22))
    )
    options = dict(encode=partial(translations, tokenizers=tokenizers), max_length=60)
    with pytest.raises(UserError, match=r"a.en:21 is \d+ tokens long, more than model.max_length = 60"):
        training_rows(pairs, too_long="error", **options)
    dropped, number = training_rows(pairs, too_long="drop", **options)
    assert (len(dropped), number) == (20, 1)
    cut, number = training_rows(pairs, too_long="truncate", **options)
    assert (len(cut), number) == (21, 1) and cut.source.lengths(0, 0).max() == 59
    with pytest.raises(UserError, match=r"a\.en:21"):
        evaluation_rows(pairs, too_long="error", **options)


def test_bpe_dropout_never_exceeds_max_length(tokenizers):
    longest = int(build_token_store(PAIRS.source, tokenizers[0]).ids.lengths.max()) + 1
    segment = partial(translations, tokenizers=tokenizers, bpe_dropout=0.5, seed=0)
    store, _ = training_rows(PAIRS, segment, max_length=longest, too_long="drop")
    batches = Batches(store, 4096, seed=0)
    assert max(batches.batch(0, i).inputs["source"].size(1) for i in range(len(batches.plan(0)))) <= longest


@given(st.integers(0, 2**40), st.integers(0, 1000))
def test_hash_uniform_is_uniform_uncorrelated_and_stateless(seed, epoch):
    numbers = rng.hash_uniform(seed, epoch, np.arange(4000))
    assert np.array_equal(numbers, rng.hash_uniform(seed, epoch, np.arange(4000)))
    assert numbers.min() >= 0 and numbers.max() < 1 and abs(numbers.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.1
    assert abs(np.corrcoef(numbers, rng.hash_uniform(seed, epoch + 1, np.arange(4000)))[0, 1]) < 0.1


def test_pad_to_multiple_of_gives_few_shapes_and_the_same_examples(store):
    """Every pair once; lengths are multiples of eight or the longest of their side; the labels are the same."""
    plain, filled = Batches(store, 600, 3), Batches(store, 600, 3, pad_to_multiple_of=8)
    for epoch in (0, 1):
        longest = [int(side.max()) for side in store.lengths(3, epoch)]
        batches = [filled.batch(epoch, index) for index in range(len(filled.plan(epoch)))]
        assert sorted(np.concatenate([batch.rows for batch in batches])) == list(range(len(store)))
        for batch in batches:
            assert batch.labels.shape == batch.inputs["target"].shape
            for part, longest_side in ((batch.inputs["source"], longest[0]), (batch.inputs["target"], longest[1])):
                assert part.size(1) in (longest_side, longest[0], longest[1]) or part.size(1) % 8 == 0
                assert part.size(1) <= max(longest) and part.numel() <= 600
            again = store.batch(batch.rows, 3, epoch)
            assert batch.label_count() == again.label_count()
            assert torch.equal(batch.inputs["lengths"], again.inputs["lengths"])
            assert torch.equal(batch.inputs["source"][:, : again.inputs["source"].size(1)], again.inputs["source"])
            assert (batch.labels[:, again.labels.size(1) :] == IGNORE_INDEX).all()
        shapes = {tuple(batch.inputs[name].shape for name in ("source", "target")) for batch in batches}
        before = {
            tuple(batch.inputs[name].shape for name in ("source", "target"))
            for batch in (plain.batch(epoch, index) for index in range(len(plain.plan(epoch))))
        }
        assert len(shapes) < len(before) / 2


def test_pad_to_multiple_leaves_labels_of_whole_rows_alone():
    """The two ends of an answer (B, 2) are no labels of tokens."""
    source = torch.ones(3, 7, dtype=torch.int64)
    answers, tokens = torch.tensor([[1, 2], [0, 0], [3, 5]]), torch.ones(3, 7, dtype=torch.int64)
    for labels, width in ((answers, 2), (tokens, 8), (torch.tensor([0, 1, 2]), None)):
        padded = Batch({"source": source}, labels, np.arange(3)).pad_to_multiple(8, [100])
        assert padded.inputs["source"].shape == (3, 8)
        assert padded.labels.shape == ((3,) if width is None else (3, width))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.float32])
def test_a_duplicated_batch_has_every_row_twice_in_its_own_dtype_under_autocast(dtype):
    inputs = torch.arange(12).view(3, 2, 2).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        batch = Batch({"x": inputs}, torch.arange(3), np.arange(3), MixedLabels(torch.ones(3), torch.zeros(3))).duplicate()
    assert torch.equal(batch.inputs["x"], torch.cat([inputs, inputs])) and batch.inputs["x"].dtype == dtype
    assert batch.labels.tolist() == batch.rows.tolist() == [0, 1, 2, 0, 1, 2] and len(batch.mixture.other) == 6
