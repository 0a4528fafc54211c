"""Extractive question answering (Devlin et al. 2019, sec. 4.2): find the span of a context that answers a question."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from regard.batches.question_rows import NO_ANSWER, QuestionRows, build_question_rows
from regard.corpus.examples import QuestionExamples
from regard.decoding.spans import AnswerSpan, SpanLogits, best_spans
from regard.errors import UserError
from regard.models.bert import SpanPredictor
from regard.recipe import Answering, EncoderModel, QuestionData, Recipe
from regard.scoring import answer_scores, compare_accuracy, score_answer
from regard.tasks.base import Run
from regard.tasks.shared.embedding import embed_texts
from regard.tasks.shared.one_or_many import as_several, best_or_ranked
from regard.tasks.starters.text_starters import answer_recipe
from regard.tasks.task import HUMAN_CHECK, TEXT_LIMITS, ComparisonRow, EvaluationResult, Task, TaskCard
from regard.training.losses import SpanLoss

SHORTEST_WINDOW = 8
"""Positions for the special tokens, a question of two tokens and as many of a context."""


class AnswerRecipe(Recipe):
    """Find the span of a context that answers a question."""

    task: Literal["answer"] = "answer"
    data: QuestionData
    model: EncoderModel = EncoderModel(kind="transformer", preset="bert-mini")
    answering: Answering = Answering()

    @model_validator(mode="after")
    def check_tokens(self) -> Self:
        if self.train.regularize.bpe_dropout:
            raise ValueError("train.regularize.bpe_dropout: an answer is a span of tokens, which dropout would move; set it to 0")
        if self.model.max_length < SHORTEST_WINDOW:
            raise ValueError(
                f"model.max_length = {self.model.max_length}: a question, a window of its context and the special tokens "
                f"need at least {SHORTEST_WINDOW}"
            )
        return self


@dataclass(frozen=True)
class ExtractedAnswer:
    """The characters `start` to `end` of a context, and their probability; without an answer the text is empty, both are 0."""

    text: str
    start: int
    end: int
    probability: float

    def __str__(self) -> str:
        return self.text


class AnswerRun(Run):
    """A model that answers questions about a context."""

    recipe: AnswerRecipe
    embed = embed_texts

    @overload
    def answer(  # type: ignore[overload-overlap]
        self, question: str, context: str, *, number: None = None, unanswerable: bool | None = None
    ) -> ExtractedAnswer: ...
    @overload
    def answer(  # type: ignore[overload-overlap]
        self, question: str, context: str, *, number: int, unanswerable: bool | None = None
    ) -> list[ExtractedAnswer]: ...
    @overload
    def answer(
        self, question: Sequence[str], context: str | Sequence[str], *, number: None = None, unanswerable: bool | None = None
    ) -> list[ExtractedAnswer]: ...
    @overload
    def answer(
        self, question: Sequence[str], context: str | Sequence[str], *, number: int, unanswerable: bool | None = None
    ) -> list[list[ExtractedAnswer]]: ...
    def answer(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        *,
        number: int | None = None,
        unanswerable: bool | None = None,
    ) -> ExtractedAnswer | list[ExtractedAnswer] | list[list[ExtractedAnswer]]:
        """Return the answer to a question in its context, or to each question of a list; with a `number`, its best answers.

        One context serves all questions of a list, and a list has one for each. `unanswerable` allows the answer that there is
        none; the recipe decides if it is not given.
        """
        total = 1 if number is None else number
        return best_or_ranked(question, number, lambda several: self._answers(several, context, total, unanswerable))

    def _answers(
        self, questions: Sequence[str], context: str | Sequence[str], number: int, unanswerable: bool | None
    ) -> list[list[ExtractedAnswer]]:
        """Return the best answers to each question in its context, best first."""
        contexts = [context] * len(questions) if isinstance(context, str) else as_several(context)
        if len(questions) != len(contexts):
            raise UserError(f"{len(questions)} questions but {len(contexts)} contexts: give one of each")
        for line, (question, given) in enumerate(zip(questions, contexts), start=1):
            if not question.strip() or not given.strip():
                raise UserError(f"line {line} has an empty {'context' if question.strip() else 'question'}")
        examples = QuestionExamples(list(questions), list(contexts), [[] for _ in questions])
        return [
            [ExtractedAnswer(given[span.start : span.end], span.start, span.end, span.probability) for span in best]
            for given, best in zip(contexts, self._spans(self._encode(examples), number, unanswerable))
        ]

    def _spans(self, rows: QuestionRows, number: int = 1, unanswerable: bool | None = None) -> list[list[AnswerSpan]]:
        """Return the best spans of each question's context, over all of its windows."""
        windows: list[list[SpanLogits]] = [[] for _ in range(len(rows.question))]
        for batch in self._batches(rows, shard=False):
            with torch.no_grad():
                logits = self.model(**batch.inputs).double().cpu().numpy()  # (B, 2, S)
            for (start, end), row, begin in zip(logits, batch.rows, rows.context_starts(batch.rows)):
                inside = slice(begin, begin + rows.last[row] - rows.first[row])
                no_answer = float(start[NO_ANSWER] + end[NO_ANSWER])
                question = rows.question_of_window[row]
                windows[question].append(SpanLogits(start[inside], end[inside], int(rows.first[row]), no_answer))
        settings = self.recipe.answering
        allow_none = self.recipe.data.unanswerable if unanswerable is None else unanswerable
        return [
            best_spans(
                rows.token_spans(i),
                found,
                max_tokens=settings.max_answer_tokens,
                number=number,
                threshold=settings.no_answer_threshold if allow_none else None,
            )
            for i, found in enumerate(windows)
        ]

    def _encode(self, examples: QuestionExamples, *, training: bool = False) -> QuestionRows:
        max_length, stride = self.recipe.model.max_length, self.recipe.data.stride
        return build_question_rows(examples, self.tokenizers[0], max_length=max_length, stride=stride)

    def _inputs(self, text: str) -> dict[str, Tensor]:
        """Return the inputs for a question, a tab and its context; the first window of a long context."""
        question, tab, context = text.partition("\t")
        if not question.strip() or not context.strip():
            raise UserError("write a question, a tab and its context" if not tab else "the question or its context is empty")
        return self._encode(QuestionExamples([question], [context], [[]])).batch(np.array([0]), 0, 0).inputs

    def _predictions(self, examples: QuestionExamples, rows: QuestionRows) -> list[str]:
        """Return the answer to each question, "" for none.

        A Hugging Face model, whose recipe is not known, may answer none if some examples have no answer.
        """
        unanswerable = None if self._huggingface is None else not all(examples.answers)
        found = self._spans(rows, unanswerable=unanswerable)
        return [context[best.start : best.end] for context, (best, *_) in zip(examples.context, found)]

    def _validate(self, examples: QuestionExamples, rows: Any) -> dict[str, float]:
        each = [score_answer(*pair) for pair in zip(self._predictions(examples, rows), examples.answer_texts())]
        exact_match, f1 = 100 * np.mean(each, axis=0)
        return {**super()._validate(examples, rows), "valid_exact_match": float(exact_match), "valid_f1": float(f1)}

    def _score(self, name: str, examples: QuestionExamples) -> EvaluationResult:
        predicted, references = self._predictions(examples, self._encode(examples)), examples.answer_texts()
        outputs = [" ".join(text.split()) for text in predicted]
        notes = answerable_notes(predicted, references)
        return EvaluationResult(name, examples, outputs, {**answer_scores(predicted, references)}, notes=notes)

    def _compare(self, runs: "dict[str, AnswerRun]", examples: QuestionExamples) -> list[ComparisonRow]:
        references = examples.answer_texts()
        exact = {
            name: [score_answer(*pair)[0] == 1 for pair in zip(run._predictions(examples, run._encode(examples)), references)]
            for name, run in runs.items()
        }
        return compare_accuracy(exact, "exact_match")


def answerable_notes(predicted: Sequence[str], references: Sequence[Sequence[str]]) -> list[str]:
    """Return the scores of questions with and without an answer, if there are both."""
    each = {
        answerable: [score_answer(text, gold) for text, gold in zip(predicted, references) if bool(gold) == answerable]
        for answerable in (True, False)
    }
    if not each[False] or not each[True]:
        return []
    exact_match, f1 = 100 * np.mean(each[True], axis=0)
    unanswered = 100 * np.mean(each[False], axis=0)[0]
    return [
        f"{len(each[True]):,} questions with an answer: exact match {exact_match:.1f}, F1 {f1:.1f}; "
        f"{len(each[False]):,} without one, left unanswered: {unanswered:.1f}%"
    ]


ANSWER = Task(
    name="answer",
    does="answers questions",
    recipe=AnswerRecipe,
    run=AnswerRun,
    models={"transformer": SpanPredictor},
    verbs=("answer", "embed"),
    loss=lambda run: SpanLoss(run.recipe.train.regularize),
    metrics=("valid_f1",),
    pretrained=(EncoderModel, QuestionData),
    starter=answer_recipe,
    card=TaskCard(
        uses="Answers that stand word for word in a text given with the question, like those it was trained on. Research and "
        "teaching.",
        misuses=f"{HUMAN_CHECK} the answer against its text; passing its answers off as what a text means.",
        limits=f"{TEXT_LIMITS} It knows nothing but the text it is given, points at something in texts that do not answer, and "
        "never at more than `answering.max_answer_tokens` tokens. Its probabilities are not calibrated.",
        commands=('answer {} --question "…" --context "…"', 'embed {} "…" --pool words'),
    ),
)
