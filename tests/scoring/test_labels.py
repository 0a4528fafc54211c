"""F1 and Matthews's correlation against their definitions written out."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.scoring.classification import classification_scores

TWO, MANY = (st.lists(st.tuples(*[st.sampled_from(names)] * 2), min_size=1, max_size=40) for names in ("ab", "abcd"))


def written_out(said, meant, label):
    """2 · precision · recall / (precision + recall)."""
    right = sum(a == b == label for a, b in zip(said, meant))
    if not right:
        return 0.0
    precision, recall = right / said.count(label), right / meant.count(label)
    return 200 * precision * recall / (precision + recall)


@given(TWO)
def test_of_two_labels_f1_is_the_positive_ones_and_mcc_is_pearsons(pairs):
    said, meant = map(list, zip(*pairs))
    for positive in "ab":
        assert classification_scores(said, meant, positive=positive, samples=3)["f1"].score == pytest.approx(
            written_out(said, meant, positive)
        )
    found = classification_scores(said, meant, samples=3)["mcc"].score
    one, other = (np.array([label == "b" for label in labels], float) for labels in (said, meant))
    assume(one.std() and other.std())
    assert found == pytest.approx(100 * np.corrcoef(one, other)[0, 1])


@given(MANY)
def test_of_more_f1_is_the_mean_and_mcc_is_the_correlation_of_indicators(pairs):
    said, meant = map(list, zip(*pairs))
    found = classification_scores(said, meant, samples=3)
    occurring = sorted({*said, *meant})
    assert found["f1"].score == pytest.approx(np.mean([written_out(said, meant, label) for label in occurring]))
    one, other = (np.array([[label == name for name in "abcd"] for label in labels], float) for labels in (said, meant))
    one, other = one - one.mean(0), other - other.mean(0)  # cov(X, Y) / √(cov(X, X) cov(Y, Y))
    scale = np.sqrt((one**2).sum() * (other**2).sum())
    assert found["mcc"].score == pytest.approx(100 * (one * other).sum() / scale if scale else 0.0, abs=1e-6)


def test_intervals_hold_the_score_and_shrink_and_signatures_say_how():
    chance = np.random.default_rng(0)
    widths = []
    for n in (60, 6000):
        meant = chance.integers(0, 2, n)
        said = np.where(chance.random(n) < 0.8, meant, 1 - meant)
        found = classification_scores([*map(str, said)], [*map(str, meant)], positive="1", samples=200)
        for score in found.values():
            assert 0 < score.low < score.score < score.high < 100
        widths.append(found["mcc"].high - found["mcc"].low)
    assert widths[1] < widths[0] / 5
    assert "metric:f1|positive:1|bs:200|seed:12345|n:6000|units:percent" in found["f1"].signature
    assert "average:macro" in classification_scores(["a"], ["a"], samples=2)["f1"].signature


def test_a_label_that_is_not_drawn_does_not_count_against_the_mean():
    labels = ["rare", *["a", "b"] * 20]
    assert classification_scores(labels, labels, samples=50)["f1"].low == 100


def test_always_the_same_label_goes_together_with_nothing_and_of_none_there_is_no_score():
    assert classification_scores(["a"] * 5, ["a", "b"] * 2 + ["a"], samples=2)["mcc"].score == 0
    assert classification_scores(["a"] * 5, ["a"] * 5, positive="b", samples=2)["f1"].score == 0
    with pytest.raises(UserError, match="at least one"):
        classification_scores([], [])
    with pytest.raises(UserError, match="as many of both"):
        classification_scores(["a"], ["a", "b"])
