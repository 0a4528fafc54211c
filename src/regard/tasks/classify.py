"""Classification of texts, or of pairs of texts."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np
from pydantic import model_validator

from regard.batches.rows import Rows
from regard.corpus.dataset import Dataset
from regard.corpus.examples import ImageExamples, LabelledTexts
from regard.errors import UserError
from regard.models.bert import EncoderClassifier
from regard.models.recurrent_encoder import RecurrentClassifier
from regard.recipe import EncoderClassifierModel, LabelledData, Recipe, RecurrentEncoderModel, TextClassifierModel
from regard.scoring import Confusion, accuracy, classification_scores, compare_accuracy
from regard.tasks.base import Run
from regard.tasks.shared.embedding import embed_texts
from regard.tasks.shared.labels import (
    Classification,
    classify_inputs,
    classify_logits,
    label_ids,
    labelled_rows,
    rank_labels,
    read_labels,
    write_labels,
)
from regard.tasks.shared.one_or_many import one_or_many
from regard.tasks.starters.text_starters import classify_recipe
from regard.tasks.task import HUMAN_CHECK, TEXT_LIMITS, ComparisonRow, EvaluationResult, Size, Task, TaskCard
from regard.tasks.translate import exact_matches


class ClassifyRecipe(Recipe):
    """Predict which of several labels a text has."""

    task: Literal["classify"] = "classify"
    data: LabelledData
    model: TextClassifierModel = RecurrentEncoderModel()

    @model_validator(mode="after")
    def check_pairs(self) -> Self:
        if self.data.text_pair is not None and self.model.kind != "transformer":
            raise ValueError(f"data.text_pair: pairs are read by model.kind = 'transformer', not {self.model.kind!r}")
        if self.data.text_pair is None and getattr(self.model, "reads_texts_alone", False):
            raise ValueError("model.pairs is set, but there are no pairs: name the column of the second text in data.text_pair")
        return self


class ClassifyRun(Run):
    """A text classifier."""

    labels: list[str]

    embed = embed_texts
    _inputs = classify_inputs

    @overload
    def classify(self, texts: str) -> Classification: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, texts: Iterable[str]) -> list[Classification]: ...
    def classify(self, texts: str | Iterable[str]) -> Classification | list[Classification]:
        """Return every label of a text, or of each text of a list, the most probable first.

        The texts of a pair are separated by a tab.
        """
        return one_or_many(texts, lambda several: rank_labels(self.labels, classify_logits(self, several)))

    @classmethod
    def _prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        super()._prepare(folder, recipe, data)
        check_positive_label(recipe, write_labels(folder, data))

    def _open_files(self) -> None:
        self.labels = read_labels(self.folder, self._huggingface)

    def _model_sizes(self) -> list[Size]:
        return [*super()._model_sizes(), len(self.labels)]

    def _encode(self, examples: LabelledTexts, *, training: bool = False) -> Rows:
        return labelled_rows(self, examples, label_ids(self.labels, examples, examples.label), training)

    def _predictions(self, examples: LabelledTexts) -> list[str]:
        return [found.label for found in self.classify(examples.keys())]

    def _validate(self, examples: LabelledTexts, rows: Rows) -> dict[str, float]:
        measured = validation_scores(self.recipe, self.labels, self._predictions(examples), examples.label)
        return {**super()._validate(examples, rows), **measured}

    def _score(self, name: str, examples: LabelledTexts) -> EvaluationResult:
        return score_labels(self.recipe, self.labels, name, examples, self._predictions(examples))

    def _compare(self, runs: "dict[str, ClassifyRun]", examples: LabelledTexts) -> list[ComparisonRow]:
        return compare_accuracy({name: exact_matches(run._predictions(examples), examples.label) for name, run in runs.items()})


def check_positive_label(recipe: Recipe, labels: Sequence[str]) -> None:
    """Refuse a positive label that the training data does not have."""
    named = recipe.data.positive_label
    if named is not None and str(named) not in labels:
        raise UserError(f"data.positive_label = {named!r} is none of the labels: {', '.join(labels)}")


def choose_positive(recipe: Recipe, labels: Sequence[str]) -> str | None:
    """Return the label whose F1 is measured: the recipe's positive label, or the second of two; None is the mean over all."""
    named = recipe.data.positive_label
    return str(named) if named is not None else labels[1] if len(labels) == 2 else None


def validation_scores(recipe: Recipe, labels: Sequence[str], predicted: Sequence[str], truth: Sequence[str]) -> dict[str, float]:
    """Return accuracy, F1 and Matthews correlation of predicted labels, as measured during training."""
    scores = classification_scores(predicted, truth, positive=choose_positive(recipe, labels), samples=2)
    right = 100 * float(np.mean(exact_matches(predicted, truth)))
    return {"valid_accuracy": right, **{f"valid_{name}": score.score for name, score in scores.items()}}


def score_labels(
    recipe: Recipe, labels: Sequence[str], name: str, examples: LabelledTexts | ImageExamples, predicted: list[str]
) -> EvaluationResult:
    """Return accuracy, F1, Matthews correlation and confusion of predicted labels, with the most frequent label as baseline."""
    truth = examples.label
    baseline = max(truth.count(label) for label in set(truth)) / len(examples)
    right = accuracy(exact_matches(predicted, truth))
    scores = {"accuracy": right, **classification_scores(predicted, truth, positive=choose_positive(recipe, labels))}
    notes, confusion = [f"baseline, the most frequent label: {baseline:.1%}"], Confusion.count(truth, predicted, labels)
    return EvaluationResult(name, examples, predicted, scores, notes=notes, confusion=confusion)


CLASSIFY = Task(
    name="classify",
    does="classifies",
    recipe=ClassifyRecipe,
    run=ClassifyRun,
    models={"transformer": EncoderClassifier, "recurrent": RecurrentClassifier},
    verbs=("classify", "embed"),
    metrics=("valid_accuracy", "valid_f1", "valid_mcc"),
    count_correct=lambda outputs, examples: [(int(right), 1) for right in exact_matches(outputs, examples.label)],
    pretrained=(EncoderClassifierModel, LabelledData),
    explains="label",
    model_sizes=lambda recipe, vocabulary: (vocabulary[0], 2),
    starter=classify_recipe,
    card=TaskCard(
        uses="Labels of texts like those it was trained on. Research and teaching.",
        misuses=f"{HUMAN_CHECK} every decision; judging people by what they write.",
        limits=f"{TEXT_LIMITS} Its probabilities are not calibrated.",
        commands=('classify {} "…"', 'embed {} "…"'),
    ),
)
