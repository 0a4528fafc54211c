"""A run that answers questions: it says which span of a context is the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.batches.batches import sequential_batches
from regard.batches.question_rows import NO_ANSWER, QuestionRows, build_question_rows
from regard.corpus.examples import QuestionExamples
from regard.decoding.spans import AnswerSpan, SpanLogits, best_spans
from regard.errors import UserError
from regard.scoring import answer_scores, compare_accuracy
from regard.scoring.answers import score_answer
from regard.tasks.base import EVALUATE_TOKENS, EvaluationResult, Run
from regard.tokens.special_tokens import BOS_AND_EOS, SpecialTokens
from regard.training.losses import SpanLoss


@dataclass(frozen=True)
class ExtractedAnswer:
    """The text of a context from `start` to `end`, in characters, and how probable the model finds it. Without an answer the text
    is empty, and both are 0."""

    text: str
    start: int
    end: int
    probability: float


class AnswerRun(Run):
    does = "answers questions"

    def own_marks(self) -> SpecialTokens:
        return BOS_AND_EOS

    def objective(self) -> SpanLoss:
        return SpanLoss(self.recipe.train.regularize)

    def encode(self, examples: QuestionExamples, *, training: bool = False) -> QuestionRows:
        return build_question_rows(
            examples, self.tokenizers[0], max_length=self.recipe.model.max_length, stride=self.recipe.data.stride
        )

    def reading(self, text: str) -> dict[str, Tensor]:
        """A question, a tab and its context; the first window of a long one."""
        question, tab, context = text.partition("\t")
        if not question.strip() or not context.strip():
            raise UserError("write a question, a tab and its context" if not tab else "the question or its context is empty")
        return self.encode(QuestionExamples([question], [context], [[]])).batch(np.array([0]), 0, 0).inputs

    def answer(self, question: str, context: str, *, unanswerable: bool | None = None) -> ExtractedAnswer:
        """The best answer to a question in a context."""
        return self.answers([question], [context], unanswerable=unanswerable)[0][0]

    def answers(
        self, questions: Sequence[str], contexts: Sequence[str], *, top: int = 1, unanswerable: bool | None = None
    ) -> list[list[ExtractedAnswer]]:
        """The `top` best answers to each question in the context of the same number, best first; `unanswerable` lets it say that
        there is none, as the recipe says when not given."""
        if len(questions) != len(contexts):
            raise UserError(f"{len(questions)} questions but {len(contexts)} contexts: give one of each")
        for number, (question, context) in enumerate(zip(questions, contexts), start=1):
            if not question.strip() or not context.strip():
                raise UserError(f"line {number} has an empty {'context' if question.strip() else 'question'}")
        asked = QuestionExamples(list(questions), list(contexts), [[] for _ in questions])
        return [
            [ExtractedAnswer(context[span.start : span.end], span.start, span.end, span.probability) for span in best]
            for context, best in zip(contexts, self.spans(self.encode(asked), top, unanswerable))
        ]

    def spans(self, rows: QuestionRows, top: int = 1, unanswerable: bool | None = None) -> list[list[AnswerSpan]]:
        """The best spans of each question's context, over all of its windows."""
        pointed: list[list[SpanLogits]] = [[] for _ in range(len(rows.question))]
        for batch in sequential_batches(rows, EVALUATE_TOKENS):
            with torch.no_grad():
                logits = self.model(**batch.to(self.device).inputs).double().cpu().numpy()  # (B, 2, S)
            begins = rows.context_starts(batch.rows)
            for (first, last), row, begin in zip(logits, batch.rows, begins):
                inside = slice(begin, begin + rows.last[row] - rows.first[row])
                nothing = float(first[NO_ANSWER] + last[NO_ANSWER])
                pointed[rows.question_of_window[row]].append(
                    SpanLogits(first[inside], last[inside], int(rows.first[row]), nothing)
                )
        settings = self.recipe.answering
        may_be_none = self.recipe.data.unanswerable if unanswerable is None else unanswerable
        return [
            best_spans(
                rows.token_spans(number),
                found,
                max_tokens=settings.max_answer_tokens,
                number=top,
                threshold=settings.no_answer_threshold if may_be_none else None,
            )
            for number, found in enumerate(pointed)
        ]

    def said(self, examples: QuestionExamples, rows: QuestionRows) -> list[str]:
        """The answer to each question, nothing where there is none; a model from elsewhere, whose recipe is not known, may say
        nothing where some questions are known to have no answer."""
        unanswerable = None if self.huggingface is None else not all(examples.answers)
        found = self.spans(rows, unanswerable=unanswerable)
        return [context[best.start : best.end] for context, (best, *_) in zip(examples.context, found)]

    def validate(self, examples: QuestionExamples, rows: Any) -> dict[str, float]:
        each = [score_answer(*pair) for pair in zip(self.said(examples, rows), examples.answer_texts())]
        exact_match, f1 = 100 * np.mean(each, axis=0)
        return {**super().validate(examples, rows), "valid_exact_match": float(exact_match), "valid_f1": float(f1)}

    def score(self, name: str, examples: QuestionExamples) -> EvaluationResult:
        said, golds = self.said(examples, self.encode(examples)), examples.answer_texts()
        lines = [" ".join(text.split()) for text in said]
        return EvaluationResult(name, examples, lines, {**answer_scores(said, golds)}, notes=answerable_notes(said, golds))

    def paired(self, runs: "dict[str, AnswerRun]", examples: QuestionExamples) -> list[dict[str, Any]]:
        golds = examples.answer_texts()
        return compare_accuracy(
            {
                name: [score_answer(*pair)[0] == 1 for pair in zip(run.said(examples, run.encode(examples)), golds)]
                for name, run in runs.items()
            },
            "exact_match",
        )


def answerable_notes(said: Sequence[str], golds: Sequence[Sequence[str]]) -> list[str]:
    """Where some questions have no answer, how those that have one fare and how those that have none."""
    each = {some: [score_answer(text, gold) for text, gold in zip(said, golds) if bool(gold) == some] for some in (True, False)}
    if not each[False] or not each[True]:
        return []
    exact_match, f1 = 100 * np.mean(each[True], axis=0)
    silent = 100 * np.mean(each[False], axis=0)[0]
    return [
        f"of {len(each[True]):,} questions with an answer: exact match {exact_match:.1f}, F1 {f1:.1f}; "
        f"of {len(each[False]):,} without one, left unanswered: {silent:.1f}%"
    ]
