"""Laws of perplexity and accuracy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.scoring.likelihood import accuracy, compare_accuracy, grouped_accuracy, perplexity, sign_test

counts = st.lists(st.integers(1, 50), min_size=1, max_size=20)


@settings(max_examples=25, deadline=None)
@given(counts, st.integers(2, 50_000))
def test_guessing_evenly_among_v_tokens_has_perplexity_v(lengths, vocabulary):
    score = perplexity([-n * math.log(vocabulary) for n in lengths], lengths, samples=20)
    assert score.score == pytest.approx(vocabulary) and score.low == pytest.approx(score.high)


def model(n, seed=0):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(5, 30, n)
    return -lengths * generator.gamma(4, 0.5, n), lengths


def test_perplexity_is_of_the_corpus_not_the_mean_of_sentences():
    assert perplexity([-1.0, -30.0], [1, 10]).score == pytest.approx(math.exp(31 / 11))


def test_the_order_of_sentences_is_nothing_to_perplexity():
    sums, lengths = model(200)
    order = np.random.default_rng(1).permutation(200)
    assert perplexity(sums[order], lengths[order]).score == pytest.approx(perplexity(sums, lengths).score, rel=1e-12)


def test_the_interval_of_perplexity_holds_it_and_shrinks():
    wide, narrow = (perplexity(*model(n)) for n in (50, 3200))
    assert all(s.low < s.score < s.high for s in (wide, narrow))
    assert narrow.high - narrow.low < (wide.high - wide.low) / 3


def test_sentences_without_tokens_say_nothing():
    sums, lengths = model(20)
    assert perplexity([*sums, 0.0], [*lengths, 0]) == perplexity(sums, lengths)


@pytest.mark.parametrize(
    ("sums", "lengths", "words"),
    [
        ([-1.0], [1, 2], "1 log-probabilities but 2 token counts"),
        ([], [], "empty"),
        ([-1.0, math.nan], [1, 1], "sentence 2 has log-probability nan"),
        ([3.0], [1], "not the loss"),
    ],
)
def test_perplexity_says_what_is_wrong_in_one_line(sums, lengths, words):
    with pytest.raises(UserError, match=words) as error:
        perplexity(sums, lengths)
    assert "\n" not in str(error.value)


@settings(max_examples=100)
@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_accuracy_is_the_percentage_within_its_wilson_interval(right):
    score = accuracy(right)
    assert score.score == pytest.approx(100 * sum(right) / len(right))
    assert 0 <= score.low <= score.score <= score.high <= 100 and score.high - score.low > 0
    assert "ci:wilson" in score.signature


@settings(max_examples=50)
@given(st.integers(0, 200), st.integers(1, 200))
def test_the_ends_of_wilson_are_196_standard_errors_of_their_own_away(hits, misses):
    score = accuracy([True] * hits + [False] * misses)  # Wilson's definition of the ends
    n, p = hits + misses, score.score / 100
    for end in (score.low / 100, score.high / 100):
        assert abs(p - end) == pytest.approx(1.9599640 * math.sqrt(end * (1 - end) / n), abs=1e-6)


def test_the_interval_of_accuracy_shrinks_and_one_of_none_is_refused():
    wide, narrow = (accuracy(np.arange(n) % 4 != 0) for n in (40, 4000))
    assert narrow.high - narrow.low < (wide.high - wide.low) / 5
    with pytest.raises(UserError, match="no items to take the exact match of"):
        accuracy([], name="exact match")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda x: (min(x), max(x))), min_size=1, max_size=30))
def test_the_accuracy_of_items_in_groups_is_that_of_all_items(groups):
    total = sum(words for _, words in groups)
    if not total:
        with pytest.raises(UserError, match="empty"):
            grouped_accuracy(groups)
        return
    found = grouped_accuracy(groups, samples=50)
    assert found.score == pytest.approx(100 * sum(right for right, _ in groups) / total)
    assert found.low <= found.score <= found.high


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_sign_test_is_scipys_binomial_test_written_out(a, b):
    n = a + b
    p = [math.comb(n, k) / 2**n for k in range(n + 1)]
    expected = min(1.0, sum(share for k, share in enumerate(p) if abs(k - n / 2) >= abs(a - n / 2)))
    assert sign_test(a, b) == sign_test(b, a) == pytest.approx(expected)


def test_classifiers_are_compared_on_the_items_they_differ_on():
    one = [True] * 50 + [False] * 50
    better = [True] * 90 + [False] * 10
    first, same, other = compare_accuracy({"one": one, "same": one, "better": better})
    assert first["p_value"] is None and same["p_value"] == 1.0 and other["p_value"] < 1e-9
