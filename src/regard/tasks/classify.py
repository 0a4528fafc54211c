"""A classifier: a run that says which of some labels a text has."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.batches.rows import Rows
from regard.corpus.dataset import Dataset
from regard.corpus.examples import LabelledTexts
from regard.errors import UserError
from regard.scoring import accuracy, classification_scores, compare_accuracy
from regard.tasks.base import EvaluationResult
from regard.tasks.labels import LabelRun


@dataclass(frozen=True)
class Prediction:
    """A label and how probable the model finds it."""

    label: str
    probability: float


class ClassifyRun(LabelRun):
    does = "classifies"

    @classmethod
    def prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        super().prepare(folder, recipe, data)
        named, labels = recipe.data.positive_label, data.train.labels()
        if named is not None and str(named) not in labels:
            raise UserError(f"data.positive_label = {named!r} is none of the labels: {', '.join(labels)}")

    def encode(self, examples: LabelledTexts, *, training: bool = False) -> Rows:
        classes = np.array([self.number(label, examples, i) for i, label in enumerate(examples.label)])
        return self.rows_of(examples, classes, training)

    def classify(self, texts: Sequence[str]) -> list[list[Prediction]]:
        """Every label of each text, the most probable first. Where pairs are judged, a tab is between the two."""
        return self.ranked(self.judged(texts))

    def ranked(self, logits: Tensor) -> list[list[Prediction]]:
        """Every label by its probability, from what the model says (N, C)."""
        p = logits.softmax(-1)
        order = p.argsort(descending=True, stable=True)
        return [[Prediction(self.labels[i], float(row[i])) for i in best] for row, best in zip(p, order.tolist())]

    def right(self, examples: LabelledTexts) -> tuple[list[str], list[bool]]:
        """What it says of each text, and whether that is so."""
        said = [judgements[0].label for judgements in self.classify(examples.keys())]
        return said, [a == b for a, b in zip(said, examples.label)]

    def validate(self, examples: LabelledTexts, rows: Rows) -> dict[str, float]:
        return {**super().validate(examples, rows), "valid_accuracy": 100 * float(np.mean(self.right(examples)[1]))}

    def score(self, name: str, examples: LabelledTexts) -> EvaluationResult:
        said, right = self.right(examples)
        commonest = max(examples.label.count(label) for label in set(examples.label)) / len(examples)
        scores = {"accuracy": accuracy(right), **classification_scores(said, examples.label, positive=self.positive)}
        return EvaluationResult(name, examples, said, scores, notes=[f"always saying the commonest label: {commonest:.1%}"])

    @property
    def positive(self) -> str | None:
        """The label whose F1 counts: the one that the recipe names, or the second of two."""
        named = self.recipe.data.positive_label
        return str(named) if named is not None else self.labels[1] if len(self.labels) == 2 else None

    def paired(self, runs: "dict[str, ClassifyRun]", examples: LabelledTexts) -> list[dict[str, Any]]:
        return compare_accuracy({name: run.right(examples)[1] for name, run in runs.items()})
