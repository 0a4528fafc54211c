"""Laws of perplexity."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.scoring.classification import perplexity

counts = st.lists(st.integers(1, 50), min_size=1, max_size=20)


@settings(max_examples=25, deadline=None)
@given(counts, st.integers(2, 50_000))
def test_uniform_distribution_over_v_tokens_has_perplexity_v(lengths, vocabulary):
    score = perplexity([-n * math.log(vocabulary) for n in lengths], lengths, samples=20)
    assert score.score == pytest.approx(vocabulary) and score.low == pytest.approx(score.high)


def model(n, seed=0):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(5, 30, n)
    return -lengths * generator.gamma(4, 0.5, n), lengths


def test_perplexity_is_of_the_corpus_not_the_mean_over_sentences():
    assert perplexity([-1.0, -30.0], [1, 10]).score == pytest.approx(math.exp(31 / 11))


def test_perplexity_does_not_depend_on_the_order_of_sentences():
    sums, lengths = model(200)
    order = np.random.default_rng(1).permutation(200)
    assert perplexity(sums[order], lengths[order]).score == pytest.approx(perplexity(sums, lengths).score, rel=1e-12)


def test_perplexity_interval_holds_the_score_and_shrinks():
    wide, narrow = (perplexity(*model(n)) for n in (50, 3200))
    assert all(s.low < s.score < s.high for s in (wide, narrow))
    assert narrow.high - narrow.low < (wide.high - wide.low) / 3


def test_sentences_without_tokens_are_left_out():
    sums, lengths = model(20)
    assert perplexity([*sums, 0.0], [*lengths, 0]) == perplexity(sums, lengths)


@pytest.mark.parametrize(
    ("sums", "lengths", "message"),
    [
        ([-1.0], [1, 2], "1 log-probabilities but 2 token counts"),
        ([], [], "empty"),
        ([-1.0, math.nan], [1, 1], "sentence 2 has log-probability nan"),
        ([3.0], [1], "not the loss"),
    ],
)
def test_malformed_input_of_perplexity_is_refused_in_one_line(sums, lengths, message):
    with pytest.raises(UserError, match=message) as error:
        perplexity(sums, lengths)
    assert "\n" not in str(error.value)
