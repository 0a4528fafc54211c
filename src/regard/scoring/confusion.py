"""The confusion matrix of a classifier or tagger, with the precision, recall and F1 of every class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ClassScores:
    """Precision, recall and F1 of one class in percent, and its number of examples."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Confusion:
    """How often each class (rows) is predicted as each class (columns): counts (C, C)."""

    labels: list[str]
    counts: np.ndarray

    @classmethod
    def count(cls, gold: Sequence[str], predicted: Sequence[str], order: Sequence[str] = ()) -> "Confusion":
        """Count the classes that occur, in the given order; labels that it lacks come last."""
        occurring = {*gold, *predicted}
        labels = [label for label in dict.fromkeys(order) if label in occurring]
        labels += sorted(occurring.difference(labels))
        number = {label: i for i, label in enumerate(labels)}
        counts = np.zeros((len(labels), len(labels)), np.int64)
        np.add.at(counts, ([number[label] for label in gold], [number[label] for label in predicted]), 1)
        return cls(labels, counts)

    def per_class(self) -> list[ClassScores]:
        """Return the scores of every class; a ratio without any example is 0."""
        correct, predicted, gold = self.counts.diagonal(), self.counts.sum(0), self.counts.sum(1)
        precision, recall, f1 = (
            (100 * over / np.maximum(under, 1)).tolist()
            for over, under in ((correct, predicted), (correct, gold), (2 * correct, predicted + gold))
        )
        return list(map(ClassScores, self.labels, precision, recall, f1, gold.tolist()))

    def most_confused(self, number: int) -> list[tuple[str, str, int]]:
        """Return the most frequent errors as (label, predicted label, how often)."""
        errors = self.counts - np.diag(self.counts.diagonal())
        order = np.argsort(-errors, axis=None, kind="stable")[:number]
        pairs = zip(*np.unravel_index(order, errors.shape))
        return [(self.labels[i], self.labels[j], int(errors[i, j])) for i, j in pairs if errors[i, j]]

    def hardest(self, number: int) -> np.ndarray:
        """Return the numbers of the classes with most errors, as label or as prediction, in ascending order."""
        errors = self.counts.sum(0) + self.counts.sum(1) - 2 * self.counts.diagonal()
        return np.sort(np.argsort(-errors, kind="stable")[:number])

    def to_json(self) -> dict[str, object]:
        """Return the entry of `classes.json`."""
        scores = {
            one.label: {name: round(getattr(one, name), 4) for name in ("precision", "recall", "f1")} | {"support": one.support}
            for one in self.per_class()
        }
        return {"classes": scores, "labels": self.labels, "confusion": self.counts.tolist()}
