"""Questions beside their contexts (Devlin et al. 2019, sec. 4.2): a context that is too long is read in windows that overlap."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from regard.batches.batch import Batch
from regard.batches.ragged import Ragged
from regard.batches.rows import encoder_pair_inputs
from regard.batches.token_store import TEXTS_PER_CALL
from regard.corpus.examples import QuestionExamples
from regard.errors import UserError
from regard.tokens.special_tokens import SpecialTokens
from regard.tokens.tokenizer import Tokenizer

NO_ANSWER = 0
"""Where the answer is said to be if it is not in the window: at the first mark."""
OUTSIDE = -1


@dataclass
class QuestionRows:
    """Read a question and a window of its context; say the first and the last token of the answer."""

    question: Ragged
    """The ids of each question."""
    context: Ragged
    """The ids of each distinct context."""
    spans: np.ndarray  # (tokens, 2)
    """Where each token of `context` stands in its text."""
    of: np.ndarray  # (questions,) the context of each
    asks: np.ndarray  # (N,) the question of each window
    first: np.ndarray  # (N,) the tokens of its context that it has …
    last: np.ndarray  # (N,) … from, to
    answer: np.ndarray  # (N, 2)
    """The first and the last token of its context that answer, OUTSIDE where it has not both."""
    special_tokens: SpecialTokens

    def __len__(self) -> int:
        return len(self.asks)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [self.begins(np.arange(len(self))) + self.last - self.first + len(self.special_tokens.suffix)]

    def begins(self, rows: np.ndarray) -> np.ndarray:
        """At which position of its row a window's context begins."""
        return len(self.special_tokens.prefix) + self.question.lengths[self.asks[rows]] + len(self.special_tokens.separator)

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        where = self.positions(rows)
        window = Ragged(self.context.flat[where.flat], where.offsets)
        inputs = encoder_pair_inputs(self.question.take(self.asks[rows]), window, self.special_tokens)
        return Batch(inputs, torch.from_numpy(self.labels(rows)), rows)

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """The positions in its row where each window's answer begins and ends (B, 2)."""
        answer, begins = self.answer[rows], (self.begins(rows) - self.first[rows])[:, None]
        return np.where(answer == OUTSIDE, NO_ANSWER, begins + answer)

    def positions(self, rows: np.ndarray) -> Ragged:
        """Where the tokens of some windows lie in `context.flat`."""
        lengths = self.last[rows] - self.first[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        starts = self.context.offsets[self.of[self.asks[rows]]] + self.first[rows]
        return Ragged(np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths), offsets)

    def token_spans(self, question: int) -> np.ndarray:
        """Where the tokens of a question's context stand in its text (T, 2)."""
        context = self.of[question]
        return self.spans[self.context.offsets[context] : self.context.offsets[context + 1]]

    def deterministic(self) -> "QuestionRows":
        return self

    def truncate(self, most: int) -> "QuestionRows":
        return self


def build_question_rows(examples: QuestionExamples, tokenizer: Tokenizer, *, max_length: int, stride: int) -> QuestionRows:
    """Every question with its context in windows of at most `max_length` positions, each `stride` tokens after the one before but
    at most half a window, so that an answer of half a window is whole in one of them. A question may take half of the room."""
    room = max_length - tokenizer.special_tokens.num_added_to_pair
    if room < 2:
        raise UserError(f"model.max_length = {max_length} has no room for a question and a context beside the marks")
    question = Ragged.from_rows(tokenizer.encode(examples.question)).truncate(room // 2)
    numbers = {text: number for number, text in enumerate(dict.fromkeys(examples.context))}
    context, spans = encoded(list(numbers), tokenizer)
    of = np.array([numbers[text] for text in examples.context], np.int64)
    texts = [spans[start:end] for start, end in pairwise(context.offsets)]
    rows = [
        (number, first, last, *answer_in(texts[of[number]], answers, first, last))
        for number, answers in enumerate(examples.answers)
        for first, last in cut(len(texts[of[number]]), room - len(question[number]), stride)
    ]
    asks, first, last, *answer = np.array(rows, np.int64).reshape(-1, 5).T
    return QuestionRows(question, context, spans, of, asks, first, last, np.stack(answer, axis=1), tokenizer.special_tokens)


def encoded(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[Ragged, np.ndarray]:
    """The ids of texts, and where each token stands in its own (tokens, 2)."""
    rows: list[list[int]] = []
    spans = [np.zeros((0, 2), np.int64)]
    for start in range(0, len(texts), TEXTS_PER_CALL):
        for ids, places in tokenizer.encode_spans(texts[start : start + TEXTS_PER_CALL]):
            rows.append(ids)
            spans.append(places)
    return Ragged.from_rows(rows), np.concatenate(spans)


def cut(length: int, width: int, stride: int) -> list[tuple[int, int]]:
    """The windows (from, to) of a text of so many tokens; the last one ends where the text does."""
    step = min(stride, max(1, width // 2))
    starts = range(0, max(1, length - width + step), step)
    return [(start, min(start + width, length)) for start in starts]


def answer_in(places: np.ndarray, answers: Sequence[tuple[int, int]], first: int, last: int) -> tuple[int, int]:
    """The tokens, standing at these places (T, 2), of the first answer that is whole among those from `first` to `last`."""
    for start, end in answers:
        touched = np.flatnonzero((places[:, 1] > start) & (places[:, 0] < end) & (places[:, 1] > places[:, 0]))
        if len(touched) and first <= touched[0] and touched[-1] < last:
            return int(touched[0]), int(touched[-1])
    return OUTSIDE, OUTSIDE
