"""The best spans are those that trying every pair of tokens in every window would give."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.spans import SpanLogits, best_spans


@st.composite
def pointed(draw):
    """A text of tokens, some of them white space, and what is said of its windows."""
    chance = np.random.default_rng(draw(st.integers(0, 10_000)))
    lengths = chance.integers(0, 3, draw(st.integers(1, 14)))
    starts = np.cumsum([1, *(lengths + 1)])[:-1]
    places = np.stack([starts, starts + lengths], axis=1)
    width = draw(st.integers(1, 14))
    step = draw(st.integers(1, width))
    firsts = range(0, max(1, len(places) - width + step), step)
    return places, [
        SpanLogits(*chance.normal(0, 2, (2, len(places[first : first + width]))), first, float(chance.normal(0, 2)))
        for first in firsts
    ]


def every_span(places, windows, most):
    """Every span that may be said, with its best score; by characters."""
    found = {}
    for window in windows:
        for i, begin in enumerate(window.start_logits):
            for j, end in enumerate(window.end_logits):
                a, b = places[window.first_token + i], places[window.first_token + j]
                if i <= j < i + most and a[0] < a[1] and b[0] < b[1]:
                    span = int(a[0]), int(b[1])
                    found[span] = max(found.get(span, -np.inf), begin + end)
    return found


@given(pointed(), st.integers(1, 6), st.sampled_from([None, 0.0, 1.5, -1.0]))
def test_they_are_those_of_every_pair_of_tokens(text, most, threshold):
    places, windows = text
    expected = every_span(places, windows, most)
    total = sum(np.exp(score) for score in expected.values())
    if threshold is not None:
        nothing = min(window.no_answer for window in windows)
        total += np.exp(nothing)
        expected[0, 0] = nothing - threshold
    best = best_spans(places, windows, max_tokens=most, number=1000, threshold=threshold)
    if (places[:, 0] == places[:, 1]).all():
        assert [(one.start, one.end, one.probability) for one in best] == [(0, 0, 1.0)]
        return
    assert [(one.start, one.end) for one in best] == sorted(expected, key=lambda span: -expected[span])
    assert sum(one.probability for one in best) == pytest.approx(1)
    for one in best:
        score = expected[one.start, one.end] + (threshold or 0.0 if one.end == 0 else 0.0)
        assert one.probability == pytest.approx(np.exp(score) / total)
    assert best_spans(places, windows, max_tokens=most, threshold=threshold) == best[:1]


@given(pointed(), st.integers(1, 6), st.integers(7, 14), st.integers(1, 3))
def test_in_windows_it_is_the_answer_of_the_whole_where_they_hold_it(text, most, width, step):
    """What is said of a token does not depend on the window here; windows overlap by as many tokens as an answer has at most."""
    places, _ = text
    whole = SpanLogits(*np.random.default_rng(len(places)).normal(0, 2, (2, len(places))), 0, 0.0)
    step = min(step, max(1, width - most + 1))
    firsts = range(0, max(1, len(places) - width + step), step)
    cut = [
        SpanLogits(whole.start_logits[first : first + width], whole.end_logits[first : first + width], first, 0.0)
        for first in firsts
    ]
    one, many = (best_spans(places, windows, max_tokens=most, number=5, threshold=0.0) for windows in ([whole], cut))
    assert [(span.start, span.end) for span in one] == [(span.start, span.end) for span in many]
    assert [span.probability for span in one] == pytest.approx([span.probability for span in many])


def test_one_place_in_two_tokens_is_one_candidate():
    places = np.array([[0, 1], [0, 1], [2, 5]])
    found = best_spans(
        places, [SpanLogits(np.array([2.0, 3.0, 0.0]), np.array([2.0, 3.0, 0.0]), 0, 0.0)], max_tokens=3, number=10
    )
    assert [(one.start, one.end) for one in found] == [(0, 1), (0, 5), (2, 5)]
