"""Laws of correlation, and equality with scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.scoring.correlation import average_ranks, correlation_scores, pearson

NUMBERS = st.lists(st.integers(-20, 20).map(float), min_size=3, max_size=30)


@given(NUMBERS, st.integers(1, 9), st.integers(-9, 9))
def test_pearson_is_invariant_to_scale_and_shift_and_odd(values, scale, place):
    one = np.array(values)
    other = one**2 - 3 * one
    assert pearson(scale * one + place, other) == pytest.approx(pearson(one, other), abs=1e-6)
    assert pearson(-one, other) == pytest.approx(-pearson(one, other), abs=1e-6)
    assert -100 - 1e-6 <= pearson(one, other) <= 100 + 1e-6


@given(NUMBERS)
def test_average_ranks_keep_the_order_and_share_ties(values):
    found = average_ranks(np.array(values))
    assert found.sum() == pytest.approx(len(values) * (len(values) + 1) / 2)
    for i in range(len(values)):
        expected = 1 + sum(v < values[i] for v in values) + (values.count(values[i]) - 1) / 2
        assert found[i] == expected


def test_spearman_depends_only_on_the_order():
    one = np.arange(20.0)
    found = correlation_scores(np.exp(one / 3), one)
    assert found["spearman"].score == pytest.approx(100) and found["pearson"].score < 95
    assert found["pearson"].low <= found["pearson"].score <= found["pearson"].high
    assert correlation_scores(np.ones(5), np.arange(5.0))["pearson"].score == 0
    with pytest.raises(UserError, match="at least three"):
        correlation_scores(np.ones(2), np.ones(2))


@given(NUMBERS, st.integers(0, 100))
def test_correlations_equal_scipy(values, seed):
    stats = pytest.importorskip("scipy.stats")
    x, y = np.array(values), np.random.default_rng(seed).normal(size=len(values))
    if len({*values}) == 1:
        assert pearson(x, y) == 0
        return
    assert pearson(x, y) == pytest.approx(100 * stats.pearsonr(x, y).statistic, abs=1e-6)
    assert pearson(average_ranks(x), average_ranks(y)) == pytest.approx(100 * stats.spearmanr(x, y).statistic, abs=1e-6)
