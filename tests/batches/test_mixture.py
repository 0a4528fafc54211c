"""Task mixtures: the given number of examples of each task, each example before any repeats, deterministic."""

from collections import Counter

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.batches.batches import Batches
from regard.batches.mixture import MixtureRows, examples_per_epoch, shuffled_passes
from regard.batches.ragged import Ragged
from regard.batches.rows import TranslationRows
from regard.batches.token_store import TokenStore
from regard.tokens.special_tokens import EOS


def part(number, size):
    """Return texts that identify their task, 10 · number + 5, several times, and then the example."""
    rows = [[10 * number + 5] * (1 + (7 * i + number) % 5) + [100 + i] for i in range(size)]
    return TranslationRows(TokenStore(Ragged.from_rows(rows)), TokenStore(Ragged.from_rows([row[::-1] for row in rows])))


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)


@given(SIZES, st.data())
def test_an_epoch_has_the_given_number_of_examples_of_each_task(sizes, data):
    drawn = [data.draw(st.integers(1, 60)) for _ in sizes]
    batches = Batches(MixtureRows([part(i, size) for i, size in enumerate(sizes)], drawn), 60, seed=3)
    read = Counter()
    for epoch in range(3):
        for index in range(len(batches.plan(epoch))):
            batch = batches.batch(epoch, index)
            for source, length, target, labels in zip(*batch.inputs.values(), batch.labels):
                text = source[: length - 1].tolist()
                assert source[length - 1] == EOS and labels.tolist()[:length] == [*text[::-1], EOS]
                assert target[1:length].tolist() == text[::-1] and (labels[length:] < 0).all()
                read[(text[0] - 5) // 10, text[-1] - 100] += 1
        for number, (size, often) in enumerate(zip(sizes, drawn)):
            times = [read[number, i] for i in range(size)]
            assert sum(times) == (epoch + 1) * often
            assert max(times) - min(times) <= 1, "all examples of a task before one repeats"


def test_a_mixture_batch_is_a_pure_function_of_seed_and_epoch():
    made = [Batches(MixtureRows([part(0, 50), part(1, 20)], [40, 40]), 120, seed=1) for _ in range(2)]
    made[1].batch(3, 1)
    one, other = (batches.batch(2, 1) for batches in made)
    assert all(torch.equal(x, other.inputs[name]) for name, x in one.inputs.items()) and torch.equal(one.labels, other.labels)
    assert any(len({int(text[0]) for text in made[0].batch(2, i).inputs["source"]}) == 2 for i in range(len(made[0].plan(2))))


@given(st.integers(1, 9), st.integers(0, 30), st.integers(1, 30), st.integers(1, 30))
def test_shuffled_passes_continue_where_they_stopped(size, first, number, more):
    both = shuffled_passes(size, first, number + more, [1])
    assert np.array_equal(
        both, np.concatenate([shuffled_passes(size, first, number, [1]), shuffled_passes(size, first + number, more, [1])])
    )
    assert sorted(shuffled_passes(size, 3 * size, size, [1])) == list(range(size))


@given(SIZES)
def test_proportional_mixing_reads_every_example_once(sizes):
    assert examples_per_epoch(sizes, [1.0] * len(sizes)) == sizes


def test_examples_per_epoch_are_those_of_the_paper():
    sizes = [1000, 100, 10]
    assert examples_per_epoch(sizes, [1, 1, 1], temperature=np.inf) == [370, 370, 370]
    assert examples_per_epoch(sizes, [1, 1, 1], size_limit=100) == [529, 529, 53]  # min(e, K)
    roots = np.sqrt(sizes)
    assert examples_per_epoch(sizes, [1, 1, 1], temperature=2) == np.rint(1110 * roots / roots.sum()).astype(int).tolist()
    assert examples_per_epoch(sizes, [1, 1, 2], temperature=np.inf) == [278, 278, 555]
    assert examples_per_epoch([10_000, 1], [1, 1e-9])[1] == 1, "no task is left out"


def test_concatenated_batches_are_padded_to_the_longest():
    mixed = MixtureRows([part(0, 3), part(1, 3)], [3, 3])
    whole = mixed.batch(np.arange(6), 1, 0)
    assert whole.inputs["source"].shape[1] == int(whole.inputs["lengths"].max()) and whole.rows.tolist() == list(range(6))
