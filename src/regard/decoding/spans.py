"""The best spans of a text, from what a model says of where an answer begins and ends (Devlin et al. 2019, sec. 4.2 and 4.3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SpanLogits:
    """What a model says of one window: the logits of its tokens to be the first and the last of the answer, which token of the
    text its first one is, and the score of there being no answer."""

    start_logits: np.ndarray  # (S,)
    end_logits: np.ndarray  # (S,)
    first_token: int
    no_answer: float


@dataclass(frozen=True)
class AnswerSpan:
    """Characters of a text from, to, and the probability that they are the answer; (0, 0): there is none."""

    start: int
    end: int
    probability: float


def best_spans(
    places: np.ndarray, windows: Sequence[SpanLogits], *, max_tokens: int, number: int = 1, threshold: float | None = None
) -> list[AnswerSpan]:
    """The `number` best spans of a text whose tokens stand at `places` (T, 2), of at most `most` tokens each.

    The score of a span is the sum of its first and last token's logits, the best one of all windows that have both; a token of
    white space is neither. With a threshold there may be no answer: its score is the lowest of all windows, and it must be more
    than that above a span's. Probabilities are a softmax over everything that may be said.
    """
    spoken = places[:, 0] < places[:, 1]
    if not spoken.any():
        return [AnswerSpan(0, 0, 1.0)]
    max_tokens = min(max_tokens, len(places))
    scores = np.full((len(places), max_tokens), -np.inf)  # (T, length - 1)
    for window in windows:
        here = slice(window.first_token, window.first_token + len(window.start_logits))
        begins, ends = (np.where(spoken[here], logits, -np.inf) for logits in (window.start_logits, window.end_logits))
        scores[here] = np.maximum(scores[here], begins[:, None] + windows_ahead(ends, max_tokens))
    nothing = -np.inf if threshold is None else min(window.no_answer for window in windows)
    said = np.append(scores, nothing)  # the last one is to say nothing
    probability = np.exp(said - np.logaddexp.reduce(said))
    said[-1] -= threshold or 0.0
    found: dict[tuple[int, int], float] = {}
    for best in np.argsort(-said, kind="stable").tolist():
        if said[best] == -np.inf or len(found) == number:
            break
        row, more = divmod(best, max_tokens)
        span = (0, 0) if best == scores.size else (int(places[row, 0]), int(places[row + more, 1]))
        found.setdefault(span, float(probability[best]))
    return [AnswerSpan(start, end, p) for (start, end), p in found.items()]


def windows_ahead(values: np.ndarray, most: int) -> np.ndarray:
    """Beside each value those after it: (S,) -> (S, most), -inf behind the end."""
    return np.lib.stride_tricks.sliding_window_view(np.concatenate([values, np.full(most - 1, -np.inf)]), most)
