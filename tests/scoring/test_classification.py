"""Accuracy, F1 and Matthews's correlation against their definitions written out."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.scoring.classification import accuracy, classification_scores, compare_accuracy, grouped_accuracy, sign_test

TWO, MANY = (st.lists(st.tuples(*[st.sampled_from(names)] * 2), min_size=1, max_size=40) for names in ("ab", "abcd"))


def f1_by_definition(predicted, labels, label):
    """2 · precision · recall / (precision + recall)."""
    right = sum(a == b == label for a, b in zip(predicted, labels))
    if not right:
        return 0.0
    precision, recall = right / predicted.count(label), right / labels.count(label)
    return 200 * precision * recall / (precision + recall)


@given(TWO)
def test_f1_of_the_positive_label_and_mcc_of_two_labels(pairs):
    predicted, labels = map(list, zip(*pairs))
    for positive in "ab":
        assert classification_scores(predicted, labels, positive=positive, samples=3)["f1"].score == pytest.approx(
            f1_by_definition(predicted, labels, positive)
        )
    found = classification_scores(predicted, labels, samples=3)["mcc"].score
    one, other = (np.array([label == "b" for label in labels], float) for labels in (predicted, labels))
    assume(one.std() and other.std())
    assert found == pytest.approx(100 * np.corrcoef(one, other)[0, 1])


@given(MANY)
def test_macro_f1_and_mcc_of_several_labels(pairs):
    predicted, labels = map(list, zip(*pairs))
    found = classification_scores(predicted, labels, samples=3)
    occurring = sorted({*predicted, *labels})
    assert found["f1"].score == pytest.approx(np.mean([f1_by_definition(predicted, labels, label) for label in occurring]))
    one, other = (np.array([[label == name for name in "abcd"] for label in labels], float) for labels in (predicted, labels))
    one, other = one - one.mean(0), other - other.mean(0)  # cov(X, Y) / √(cov(X, X) cov(Y, Y))
    scale = np.sqrt((one**2).sum() * (other**2).sum())
    assert found["mcc"].score == pytest.approx(100 * (one * other).sum() / scale if scale else 0.0, abs=1e-6)


def test_f1_and_mcc_intervals_hold_the_score_and_shrink():
    chance = np.random.default_rng(0)
    widths = []
    for n in (60, 6000):
        labels = chance.integers(0, 2, n)
        predicted = np.where(chance.random(n) < 0.8, labels, 1 - labels)
        found = classification_scores([*map(str, predicted)], [*map(str, labels)], positive="1", samples=200)
        for score in found.values():
            assert 0 < score.low < score.score < score.high < 100
        widths.append(found["mcc"].high - found["mcc"].low)
    assert widths[1] < widths[0] / 5
    assert "metric:f1|positive:1|bs:200|seed:12345|n:6000|units:percent" in found["f1"].signature
    assert "average:macro" in classification_scores(["a"], ["a"], samples=2)["f1"].signature


def test_label_missing_from_a_resample_is_left_out_of_macro_f1():
    labels = ["rare", *["a", "b"] * 20]
    assert classification_scores(labels, labels, samples=50)["f1"].low == 100


def test_constant_predictions_have_mcc_zero_and_empty_input_is_refused():
    assert classification_scores(["a"] * 5, ["a", "b"] * 2 + ["a"], samples=2)["mcc"].score == 0
    assert classification_scores(["a"] * 5, ["a"] * 5, positive="b", samples=2)["f1"].score == 0
    with pytest.raises(UserError, match="at least one"):
        classification_scores([], [])
    with pytest.raises(UserError, match="equally many of both"):
        classification_scores(["a"], ["a", "b"])


@settings(max_examples=100)
@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_accuracy_is_the_percentage_within_its_wilson_interval(right):
    score = accuracy(right)
    assert score.score == pytest.approx(100 * sum(right) / len(right))
    assert 0 <= score.low <= score.score <= score.high <= 100 and score.high - score.low > 0
    assert "ci:wilson" in score.signature


@settings(max_examples=50)
@given(st.integers(0, 200), st.integers(1, 200))
def test_wilson_bounds_are_196_standard_errors_of_their_own_away(hits, misses):
    score = accuracy([True] * hits + [False] * misses)  # Wilson's definition of the ends
    n, p = hits + misses, score.score / 100
    for end in (score.low / 100, score.high / 100):
        assert abs(p - end) == pytest.approx(1.9599640 * math.sqrt(end * (1 - end) / n), abs=1e-6)


def test_accuracy_interval_shrinks_and_an_empty_set_is_refused():
    wide, narrow = (accuracy(np.arange(n) % 4 != 0) for n in (40, 4000))
    assert narrow.high - narrow.low < (wide.high - wide.low) / 5
    with pytest.raises(UserError, match="no items to compute the exact match of"):
        accuracy([], name="exact match")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda x: (min(x), max(x))), min_size=1, max_size=30))
def test_grouped_accuracy_is_that_of_all_items(groups):
    total = sum(words for _, words in groups)
    if not total:
        with pytest.raises(UserError, match="empty"):
            grouped_accuracy(groups)
        return
    found = grouped_accuracy(groups, samples=50)
    assert found.score == pytest.approx(100 * sum(right for right, _ in groups) / total)
    assert found.low <= found.score <= found.high


@given(st.integers(0, 60), st.integers(0, 60))
def test_sign_test_is_the_exact_binomial_test(a, b):
    n = a + b
    p = [math.comb(n, k) / 2**n for k in range(n + 1)]
    expected = min(1.0, sum(share for k, share in enumerate(p) if abs(k - n / 2) >= abs(a - n / 2)))
    assert sign_test(a, b) == sign_test(b, a) == pytest.approx(expected)


def test_mcnemar_compares_classifiers_on_the_items_they_differ_on():
    one = [True] * 50 + [False] * 50
    better = [True] * 90 + [False] * 10
    first, same, other = compare_accuracy({"one": one, "same": one, "better": better})
    assert first["p_value"] is None and same["p_value"] == 1.0 and other["p_value"] < 1e-9
