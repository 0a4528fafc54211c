"""The best answer spans of a text, from start and end logits (Devlin et al. 2019, sec. 4.2 and 4.3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SpanLogits:
    """A model's output for one window of a text."""

    start_logits: np.ndarray  # (S,) of each token to be the first of the answer
    end_logits: np.ndarray  # (S,) and the last
    first_token: int
    """The index of the window's first token in the text."""
    no_answer: float
    """The score of there being no answer."""


@dataclass(frozen=True)
class AnswerSpan:
    """Characters from `start` to `end` of a text, and the probability that they are the answer; (0, 0): there is none."""

    start: int
    end: int
    probability: float


def best_spans(
    offsets: np.ndarray, windows: Sequence[SpanLogits], *, max_tokens: int, number: int = 1, threshold: float | None = None
) -> list[AnswerSpan]:
    """Return the `number` best spans, of at most `max_tokens` tokens, of a text whose tokens have character `offsets` (T, 2).

    The score of a span is the sum of its first token's start logit and its last token's end logit, the highest of all windows
    that hold both; white-space tokens are excluded. With a threshold, there may be no answer: the score of that is the lowest of
    all windows, and it must exceed a span's score by more than the threshold. Probabilities are a softmax over all candidates.
    """
    is_text = offsets[:, 0] < offsets[:, 1]
    if not is_text.any():
        return [AnswerSpan(0, 0, 1.0)]
    max_tokens = min(max_tokens, len(offsets))
    scores = np.full((len(offsets), max_tokens), -np.inf)  # (T, length - 1)
    for window in windows:
        here = slice(window.first_token, window.first_token + len(window.start_logits))
        starts, ends = (np.where(is_text[here], logits, -np.inf) for logits in (window.start_logits, window.end_logits))
        scores[here] = np.maximum(scores[here], starts[:, None] + _look_ahead(ends, max_tokens))
    no_answer = -np.inf if threshold is None else min(window.no_answer for window in windows)
    candidates = np.append(scores, no_answer)  # the last one: no answer
    probability = np.exp(candidates - np.logaddexp.reduce(candidates))
    candidates[-1] -= threshold or 0.0
    found: dict[tuple[int, int], float] = {}
    for best in np.argsort(-candidates, kind="stable").tolist():
        if candidates[best] == -np.inf or len(found) == number:
            break
        row, more = divmod(best, max_tokens)
        span = (0, 0) if best == scores.size else (int(offsets[row, 0]), int(offsets[row + more, 1]))
        found.setdefault(span, float(probability[best]))
    return [AnswerSpan(start, end, p) for (start, end), p in found.items()]


def _look_ahead(values: np.ndarray, width: int) -> np.ndarray:
    """Return each value with those after it: (S,) -> (S, width), -inf after the end."""
    return np.lib.stride_tricks.sliding_window_view(np.concatenate([values, np.full(width - 1, -np.inf)]), width)
