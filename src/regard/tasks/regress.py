"""Regression: predict a number from a text, or from a pair of texts."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np
from pydantic import model_validator
from torch import Tensor

from regard.batches.rows import Rows
from regard.corpus.dataset import Dataset
from regard.corpus.examples import LabelledTexts
from regard.errors import UserError
from regard.files import atomic_write
from regard.scoring import correlation_scores
from regard.tasks.base import Run
from regard.tasks.classify import CLASSIFY, ClassifyRecipe
from regard.tasks.shared.embedding import embed_texts
from regard.tasks.shared.labels import classify_inputs, classify_logits, labelled_rows
from regard.tasks.shared.one_or_many import one_or_many
from regard.tasks.shared.run_folder import read_json
from regard.tasks.starters.text_starters import regress_recipe
from regard.tasks.task import HUMAN_CHECK, TEXT_LIMITS, EvaluationResult, Size, TaskCard
from regard.training.losses import MeanSquaredError

SCALE_FILE = "scale.json"


class RegressRecipe(ClassifyRecipe):
    """Predict a number from a text."""

    task: Literal["regress"] = "regress"  # type: ignore[assignment]

    @model_validator(mode="after")
    def check_loss(self) -> Self:
        if self.train.regularize.r_drop:
            raise ValueError("train.regularize.r_drop compares probabilities, and numbers have none: set it to 0")
        return self


class RegressRun(Run):
    """A regressor. Numbers are learned in standard deviations from the mean of the training data."""

    embed = embed_texts
    _inputs = classify_inputs

    @overload
    def classify(self, texts: str) -> float: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, texts: Iterable[str]) -> list[float]: ...
    def classify(self, texts: str | Iterable[str]) -> float | list[float]:
        """Return the number of a text, or of each text of a list. The texts of a pair are separated by a tab."""
        return one_or_many(texts, self._numbers)

    def _numbers(self, texts: Sequence[str]) -> list[float]:
        return [self._mean + self._std * float(number) for number in classify_logits(self, texts)[:, 0].double()]

    @classmethod
    def _prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        super()._prepare(folder, recipe, data)
        known = numbers(data.train)
        if known.std() == 0:
            raise UserError(f"{data.train.name}: every example has the number {known[0]:g}; there is nothing to learn")
        atomic_write(folder / SCALE_FILE, json.dumps({"mean": known.mean(), "std": known.std()}) + "\n")

    def _open_files(self) -> None:
        """Read the scale of the training data; a Hugging Face model predicts plain numbers."""
        path = self.folder / SCALE_FILE
        scale = read_json(path, dict) if self._huggingface is None else {"mean": 0.0, "std": 1.0}
        if not all(isinstance(scale.get(name), float) for name in ("mean", "std")):
            raise UserError(f"{path} is damaged: it should hold the mean and the std")
        self._mean, self._std = scale["mean"], scale["std"]

    def _model_sizes(self) -> list[Size]:
        return [*super()._model_sizes(), 1]

    def _export_weights(self) -> dict[str, Tensor]:
        """Return the weights with the scale folded into the last layer."""
        weights = super()._export_weights()
        scaled = {name: weights[name].detach() * self._std for name in ("output.weight", "output.bias")}
        return weights | scaled | {"output.bias": scaled["output.bias"] + self._mean}

    def _to_training_scale(self, logits: Tensor) -> Tensor:
        return (logits - self._mean) / self._std

    def _encode(self, examples: LabelledTexts, *, training: bool = False) -> Rows:
        targets = ((numbers(examples) - self._mean) / self._std).astype(np.float32)
        return labelled_rows(self, examples, targets, training)

    def _validate(self, examples: LabelledTexts, rows: Rows) -> dict[str, float]:
        predicted, targets = np.array(self.classify(examples.keys())), numbers(examples)
        return {
            "valid_loss": float((((predicted - targets) / self._std) ** 2).mean()),
            "valid_spearman": correlation_scores(predicted, targets, samples=2)["spearman"].score,
        }

    def _score(self, name: str, examples: LabelledTexts) -> EvaluationResult:
        predicted = self.classify(examples.keys())
        scores = correlation_scores(np.array(predicted), numbers(examples))
        return EvaluationResult(name, examples, [f"{number:.4f}" for number in predicted], scores)


def numbers(examples: LabelledTexts) -> np.ndarray:
    """Return the labels as finite numbers."""
    found = []
    for index, label in enumerate(examples.label):
        try:
            found.append(float(label))
        except ValueError:
            raise UserError(f"{examples.where(index)} has {label!r} where a number should be (data.label)") from None
        if not np.isfinite(found[-1]):
            raise UserError(f"{examples.where(index)} has {label!r}, which is not a finite number (data.label)")
    return np.array(found)


REGRESS = replace(
    CLASSIFY,
    name="regress",
    does="predicts numbers",
    recipe=RegressRecipe,
    run=RegressRun,
    loss=lambda run: MeanSquaredError(),
    metrics=("valid_spearman",),
    explains=None,
    model_sizes=lambda recipe, vocabulary: (vocabulary[0], 1),
    starter=regress_recipe,
    card=TaskCard(
        uses="Numbers of texts like those it was trained on. Research and teaching.",
        misuses=f"{HUMAN_CHECK} every decision; judging people by what they write.",
        limits=TEXT_LIMITS,
        commands=('classify {} "…"', 'embed {} "…"'),
    ),
)
