"""The confusion matrix and the scores of single classes, against their definitions and against the scores of the whole set."""

import io
from contextlib import redirect_stdout

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.cli.output import print_confusion
from regard.scoring import Confusion, classification_scores
from regard.show.figures.matrix import confusion_matrix

PAIRS = st.lists(st.tuples(*[st.sampled_from("abcd")] * 2), min_size=1, max_size=40)


@given(PAIRS)
def test_confusion_counts_every_pair_and_keeps_the_order_of_labels(pairs):
    gold, predicted = zip(*pairs)
    found = Confusion.count(gold, predicted, "dcx")
    assert found.labels == [label for label in "dcab" if label in {*gold, *predicted}]
    for i, row in enumerate(found.labels):
        for j, column in enumerate(found.labels):
            assert found.counts[i, j] == pairs.count((row, column))


@given(PAIRS)
def test_class_scores_are_precision_recall_and_f1_by_definition(pairs):
    gold, predicted = zip(*pairs)
    found = Confusion.count(gold, predicted).per_class()
    for one in found:
        right = pairs.count((one.label, one.label))
        assert one.support == gold.count(one.label)
        assert one.precision == pytest.approx(100 * right / max(1, predicted.count(one.label)))
        assert one.recall == pytest.approx(100 * right / max(1, gold.count(one.label)))
    macro = classification_scores(predicted, gold, samples=2)["f1"].score
    assert np.mean([one.f1 for one in found]) == pytest.approx(macro)


@given(PAIRS)
def test_most_confused_are_all_errors_the_most_frequent_first(pairs):
    found = Confusion.count(*zip(*pairs)).most_confused(100)
    assert {(a, b): n for a, b, n in found} == {pair: pairs.count(pair) for pair in pairs if pair[0] != pair[1]}
    assert [n for *_, n in found] == sorted((n for *_, n in found), reverse=True)


def printed(number, label="c"):
    labels = [f"{label}{i}" for i in range(number)]
    confusion = Confusion.count(labels * 3, [*labels * 2, *labels[1:], labels[0]], labels)
    with redirect_stdout(io.StringIO()) as out:
        print_confusion("mine", confusion)
    return confusion, out.getvalue()


def test_few_classes_print_the_matrix_and_many_the_most_frequent_errors():
    _, few = printed(3)
    assert "as predicted (columns)" in few and "most frequent errors" not in few
    assert [line.split() for line in few.splitlines()[-3:]] == [
        ["c0", "2", "1", "0"],
        ["c1", "0", "2", "1"],
        ["c2", "1", "0", "2"],
    ]
    confusion, many = printed(60, "a long label ")
    assert "as predicted (columns)" not in many and "the 20 classes of 60 with the lowest F1" in many
    assert max(map(len, many.splitlines())) <= 100
    first = confusion.most_confused(1)[0]
    assert f"{first[0]}  " in many.split("most frequent errors")[1] and many.count("\n") < 40


@pytest.mark.parametrize("number", [1, 2, 14, 15, 80])
def test_confusion_figure_shades_the_fraction_of_each_row_and_counts_few_labels(number):
    confusion, _ = printed(number)
    figure = confusion_matrix(confusion, title="mine")
    axes = figure.axes[0]
    shown = min(number, 64)
    shares = axes.images[0].get_array()
    assert shares.shape == (shown, shown)
    assert shares[0, 0] == pytest.approx(confusion.counts[0, 0] / confusion.counts[0].sum())
    counts = [text.get_text() for text in axes.texts]
    assert counts == ([str(count) for count in confusion.counts.ravel()] if number <= 14 else [])
