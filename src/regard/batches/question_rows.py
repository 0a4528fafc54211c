"""Questions with their contexts (Devlin et al. 2019, sec. 4.2): a context that is too long is read in overlapping windows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from regard.batches.batch import Batch
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, encoder_pair_inputs
from regard.batches.token_store import TEXTS_PER_CALL
from regard.corpus.examples import QuestionExamples
from regard.errors import UserError
from regard.tokens.special_tokens import SpecialTokens
from regard.tokens.tokenizer import Tokenizer

NO_ANSWER = 0
"""The label position where the answer is not in the window: the first special token."""
OUTSIDE = -1


@dataclass
class QuestionRows(Rows):
    """Questions, each with one window of its context; the labels are the first and the last token of the answer."""

    question: Ragged
    """The ids of each question."""
    context: Ragged
    """The ids of each distinct context."""
    spans: np.ndarray  # (tokens, 2)
    """The character span of each token of `context` in its text."""
    context_of_question: np.ndarray  # (questions,)
    question_of_window: np.ndarray  # (N,)
    first: np.ndarray  # (N,) the window's tokens of its context …
    last: np.ndarray  # (N,) … from first to last (exclusive)
    answer: np.ndarray  # (N, 2)
    """The first and the last token of the answer in the context; OUTSIDE if the window does not hold both."""
    special_tokens: SpecialTokens

    def __len__(self) -> int:
        return len(self.question_of_window)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [self.context_starts(np.arange(len(self))) + self.last - self.first + len(self.special_tokens.suffix)]

    def context_starts(self, rows: np.ndarray) -> np.ndarray:
        """Return the position in its row at which each window's context starts."""
        question: np.ndarray = self.question.lengths[self.question_of_window[rows]]
        return question + (len(self.special_tokens.prefix) + len(self.special_tokens.separator))

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        positions = self._context_positions(rows)
        window = Ragged(self.context.flat[positions.flat], positions.offsets)
        inputs = encoder_pair_inputs(self.question.take(self.question_of_window[rows]), window, self.special_tokens)
        return Batch(inputs, torch.from_numpy(self.labels(rows)), rows)

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions in its row where each window's answer starts and ends (B, 2)."""
        answer, shift = self.answer[rows], (self.context_starts(rows) - self.first[rows])[:, None]
        return np.where(answer == OUTSIDE, NO_ANSWER, shift + answer)

    def _context_positions(self, rows: np.ndarray) -> Ragged:
        """Return the indices into `context.flat` of the tokens of some windows."""
        lengths = self.last[rows] - self.first[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        starts = self.context.offsets[self.context_of_question[self.question_of_window[rows]]] + self.first[rows]
        return Ragged(np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths), offsets)

    def token_spans(self, question: int) -> np.ndarray:
        """Return the character spans of the tokens of a question's context (T, 2)."""
        context = self.context_of_question[question]
        return self.spans[self.context.offsets[context] : self.context.offsets[context + 1]]


def build_question_rows(examples: QuestionExamples, tokenizer: Tokenizer, *, max_length: int, stride: int) -> QuestionRows:
    """Cut every question's context into windows, so that a row has at most `max_length` positions.

    Each window starts `stride` tokens after the one before, but at most half a window, so that an answer of half a window is
    complete in one of them. A question may take half of the positions.
    """
    available = max_length - tokenizer.special_tokens.num_added_to_pair
    if available < 2:
        raise UserError(
            f"model.max_length = {max_length} has no room for a question and a context beside the special tokens; raise it"
        )
    question = Ragged.from_rows(tokenizer.encode(examples.question)).truncate(available // 2)
    numbers = {text: number for number, text in enumerate(dict.fromkeys(examples.context))}
    context, spans = _encode_with_spans(list(numbers), tokenizer)
    context_of_question = np.array([numbers[text] for text in examples.context], np.int64)
    context_spans = [spans[start:end] for start, end in pairwise(context.offsets)]
    rows = []
    for number, answers in enumerate(examples.answers):
        tokens = context_spans[context_of_question[number]]
        for first, last in window_bounds(len(tokens), available - len(question[number]), stride):
            rows.append((number, first, last, *_answer_in_window(tokens, answers, first, last)))
    question_of_window, firsts, lasts, *answer = np.array(rows, np.int64).reshape(-1, 5).T
    return QuestionRows(
        question,
        context,
        spans,
        context_of_question,
        question_of_window,
        firsts,
        lasts,
        np.stack(answer, axis=1),
        tokenizer.special_tokens,
    )


def _encode_with_spans(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[Ragged, np.ndarray]:
    """Return the ids of texts, and the character span of each token (tokens, 2)."""
    rows: list[list[int]] = []
    spans = [np.zeros((0, 2), np.int64)]
    for start in range(0, len(texts), TEXTS_PER_CALL):
        for ids, token_spans in tokenizer.encode_spans(texts[start : start + TEXTS_PER_CALL]):
            rows.append(ids)
            spans.append(token_spans)
    return Ragged.from_rows(rows), np.concatenate(spans)


def window_bounds(length: int, width: int, stride: int) -> list[tuple[int, int]]:
    """Return the windows (from, to) of a text of so many tokens; the last one ends where the text does."""
    step = min(stride, max(1, width // 2))
    starts = range(0, max(1, length - width + step), step)
    return [(start, min(start + width, length)) for start in starts]


def _answer_in_window(spans: np.ndarray, answers: Sequence[tuple[int, int]], first: int, last: int) -> tuple[int, int]:
    """Return the first and the last token of the first answer that lies in a window, given the tokens' character spans (T, 2)."""
    for start, end in answers:
        touched = np.flatnonzero((spans[:, 1] > start) & (spans[:, 0] < end) & (spans[:, 1] > spans[:, 0]))
        if len(touched) and first <= touched[0] and touched[-1] < last:
            return int(touched[0]), int(touched[-1])
    return OUTSIDE, OUTSIDE
