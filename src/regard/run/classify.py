"""A classifier: a run that says which of some labels a text has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.batches.batches import in_order
from regard.batches.rows import Rows
from regard.corpus.examples import Labelled
from regard.run.base import EVALUATE_TOKENS, Result
from regard.run.labels import LabelRun
from regard.scoring import accuracy, compare_right


@dataclass(frozen=True)
class Judgement:
    """A label and how probable the model finds it."""

    label: str
    probability: float


class Classifier(LabelRun):
    does = "classifies"

    def encode(self, examples: Labelled, *, training: bool = False) -> Rows:
        classes = np.array([self.number(label, examples, i) for i, label in enumerate(examples.label)])
        return self.rows_of(examples, classes, training)

    def classify(self, texts: Sequence[str]) -> list[list[Judgement]]:
        """Every label of each text, the most probable first. Where pairs are judged, a tab is between the two."""
        return self.judge(self.unlabelled(texts))

    def judge(self, rows: Rows) -> list[list[Judgement]]:
        found: list[list[Judgement]] = [[] for _ in range(len(rows))]
        for batch in in_order(rows, EVALUATE_TOKENS):
            with torch.no_grad():
                p = self.model(**batch.to(self.device).inputs).float().softmax(-1).cpu()      # (B, C)
            for row, probabilities in zip(batch.rows, p):
                order = probabilities.argsort(descending=True, stable=True).tolist()
                found[row] = [Judgement(self.labels[i], float(probabilities[i])) for i in order]
        return found

    def right(self, examples: Labelled) -> tuple[list[str], list[bool]]:
        """What it says of each text, and whether that is so."""
        said = [judgements[0].label for judgements in self.classify(examples.keys())]
        return said, [a == b for a, b in zip(said, examples.label)]

    def validate(self, examples: Labelled, rows: Rows) -> dict[str, float]:
        return {**super().validate(examples, rows), "valid_accuracy": 100 * float(np.mean(self.right(examples)[1]))}

    def score(self, name: str, examples: Labelled) -> Result:
        said, right = self.right(examples)
        commonest = max(examples.label.count(label) for label in set(examples.label)) / len(examples)
        return Result(name, examples, said, {"accuracy": accuracy(right)},
                      notes=[f"always saying the commonest label: {commonest:.1%}"])

    def paired(self, runs: "dict[str, Classifier]", examples: Labelled) -> list[dict[str, Any]]:
        return compare_right({name: run.right(examples)[1] for name, run in runs.items()})
