"""Laws of a score and of the bootstrap."""

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.scoring.classification import sign_test
from regard.scoring.score import (
    Score,
    bootstrap_interval,
    bootstrap_score,
    make_signature,
    paired_randomization_test,
    paired_t_test,
)


def mean(total):
    return float(total[0] / total[1])


def statistics(n, seed=0):
    """N sentences that each add a value and a 1: the metric of their sum is the mean value."""
    return np.stack([np.random.default_rng(seed).normal(5, 2, n), np.ones(n)], axis=1)


def test_bootstrap_interval_of_a_mean_is_the_textbook_one():
    data = statistics(2000)
    low, high = bootstrap_interval(data, mean, samples=2000)
    half = 1.96 * data[:, 0].std() / np.sqrt(2000)
    centre = data[:, 0].mean()
    assert low == pytest.approx(centre - half, abs=half / 5)
    assert high == pytest.approx(centre + half, abs=half / 5)


def test_bootstrap_interval_covers_the_truth_about_95_times_in_100():
    inside = [low <= 5 <= high for low, high in (bootstrap_interval(statistics(50, s), mean, samples=200) for s in range(200))]
    assert 0.88 <= np.mean(inside) <= 0.99


def test_bootstrap_interval_shrinks_with_the_number_of_sentences():
    narrow, wide = (np.diff(bootstrap_interval(statistics(n), mean, samples=300))[0] for n in (3200, 50))
    assert wide / narrow == pytest.approx(8, rel=0.4)  # √(3200 / 50)


def test_bootstrap_interval_depends_on_the_seed_only():
    data = statistics(100)
    assert bootstrap_interval(data, mean) == bootstrap_interval(data, mean)
    assert bootstrap_interval(data, mean) != bootstrap_interval(data, mean, seed=1)


def test_statistics_of_any_rank_are_summed_over_sentences():
    seen = []
    bootstrap_interval(np.ones((7, 2, 3)), lambda total: seen.append(total) or 0.0, samples=3)
    assert all((total == 7).all() and total.shape == (2, 3) for total in seen)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_bootstrap_interval_holds_the_score(values):
    data = np.stack([values, np.ones(len(values))], axis=1)
    score = bootstrap_score("mean", data, mean, "", samples=50)
    assert score.low <= score.score <= score.high


def test_one_resample_is_refused():
    with pytest.raises(UserError, match="samples = 1"):
        bootstrap_interval(statistics(5), mean, samples=1)


def test_score_as_text_and_json():
    score = Score("BLEU", np.float64(42.123456), np.float32(40.9), 43.4, "tok:13a")
    assert str(score) == "BLEU 42.1 [40.9, 43.4]"
    assert str(Score("AER", 0.1234, 0.1, 0.15, "")) == "AER 0.123 [0.100, 0.150]"
    assert json.loads(json.dumps(score.to_json())) == {"score": 42.1235, "low": 40.9, "high": 43.4, "signature": "tok:13a"}


def test_signature_has_sacrebleus_format():
    fields = dict(part.split(":") for part in make_signature("aer", bs=1000, seed=12345).split("|"))
    assert list(fields) == ["metric", "bs", "seed", "regard"] and fields["metric"] == "aer"


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12))
def test_paired_t_test_equals_scipy(differences):
    stats = pytest.importorskip("scipy.stats")
    assume(np.std(differences, ddof=1) > 1e-6 * max(1.0, np.abs(differences).max()))
    expected = stats.ttest_1samp(differences, 0).pvalue
    assert paired_t_test(differences) == pytest.approx(expected, abs=1e-9)


def test_paired_t_test_of_constant_differences():
    assert paired_t_test([0.0, 0.0]) == 1 and paired_t_test([1.0, 1.0]) == 0


@given(st.integers(0, 30), st.integers(0, 30))
@settings(max_examples=10)
def test_randomization_of_right_and_wrong_answers_approximates_mcnemar(a, b):
    """With one answer to each example, a randomization test is McNemar's."""
    differences = [1.0] * a + [-1.0] * b + [0.0] * 20
    assert paired_randomization_test(differences) == pytest.approx(sign_test(a, b), abs=0.02)
    assert paired_randomization_test([-x for x in differences]) == pytest.approx(sign_test(a, b), abs=0.02)
