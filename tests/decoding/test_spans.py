"""The best spans equal those found by brute force over every pair of tokens in every window."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.spans import SpanLogits, best_spans


@st.composite
def texts_and_windows(draw):
    """Token offsets of a text, some of them white space, and logits of its windows."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    lengths = rng.integers(0, 3, draw(st.integers(1, 14)))
    starts = np.cumsum([1, *(lengths + 1)])[:-1]
    offsets = np.stack([starts, starts + lengths], axis=1)
    width = draw(st.integers(1, 14))
    step = draw(st.integers(1, width))
    firsts = range(0, max(1, len(offsets) - width + step), step)
    return offsets, [
        SpanLogits(*rng.normal(0, 2, (2, len(offsets[first : first + width]))), first, float(rng.normal(0, 2)))
        for first in firsts
    ]


def every_span(offsets, windows, max_tokens):
    """Every possible span, in characters, with its best score."""
    found = {}
    for window in windows:
        for i, begin in enumerate(window.start_logits):
            for j, end in enumerate(window.end_logits):
                a, b = offsets[window.first_token + i], offsets[window.first_token + j]
                if i <= j < i + max_tokens and a[0] < a[1] and b[0] < b[1]:
                    span = int(a[0]), int(b[1])
                    found[span] = max(found.get(span, -np.inf), begin + end)
    return found


@given(texts_and_windows(), st.integers(1, 6), st.sampled_from([None, 0.0, 1.5, -1.0]))
def test_best_spans_equal_brute_force(text, max_tokens, threshold):
    offsets, windows = text
    expected = every_span(offsets, windows, max_tokens)
    total = sum(np.exp(score) for score in expected.values())
    if threshold is not None:
        no_answer = min(window.no_answer for window in windows)
        total += np.exp(no_answer)
        expected[0, 0] = no_answer - threshold
    best = best_spans(offsets, windows, max_tokens=max_tokens, number=1000, threshold=threshold)
    if (offsets[:, 0] == offsets[:, 1]).all():
        assert [(one.start, one.end, one.probability) for one in best] == [(0, 0, 1.0)]
        return
    assert [(one.start, one.end) for one in best] == sorted(expected, key=lambda span: -expected[span])
    assert sum(one.probability for one in best) == pytest.approx(1)
    for one in best:
        score = expected[one.start, one.end] + (threshold or 0.0 if one.end == 0 else 0.0)
        assert one.probability == pytest.approx(np.exp(score) / total)
    assert best_spans(offsets, windows, max_tokens=max_tokens, threshold=threshold) == best[:1]


@given(texts_and_windows(), st.integers(1, 6), st.integers(7, 14), st.integers(1, 3))
def test_windows_give_the_answer_of_the_whole_text_if_they_hold_it(text, max_tokens, width, step):
    """The logits of a token do not depend on the window here; windows overlap by the longest answer."""
    offsets, _ = text
    whole = SpanLogits(*np.random.default_rng(len(offsets)).normal(0, 2, (2, len(offsets))), 0, 0.0)
    step = min(step, max(1, width - max_tokens + 1))
    firsts = range(0, max(1, len(offsets) - width + step), step)
    cut = [
        SpanLogits(whole.start_logits[first : first + width], whole.end_logits[first : first + width], first, 0.0)
        for first in firsts
    ]
    one, many = (best_spans(offsets, windows, max_tokens=max_tokens, number=5, threshold=0.0) for windows in ([whole], cut))
    assert [(span.start, span.end) for span in one] == [(span.start, span.end) for span in many]
    assert [span.probability for span in one] == pytest.approx([span.probability for span in many])


def test_two_tokens_with_the_same_offsets_are_one_candidate():
    offsets = np.array([[0, 1], [0, 1], [2, 5]])
    found = best_spans(
        offsets, [SpanLogits(np.array([2.0, 3.0, 0.0]), np.array([2.0, 3.0, 0.0]), 0, 0.0)], max_tokens=3, number=10
    )
    assert [(one.start, one.end) for one in found] == [(0, 1), (0, 5), (2, 5)]
