"""A regressor: a run that says a number of a text, or of two."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.batches.rows import Rows
from regard.corpus.dataset import Dataset
from regard.corpus.examples import LabelledTexts
from regard.errors import UserError
from regard.files import atomic_write
from regard.interop.convert import HuggingFaceFolder
from regard.models.registry import MODELS
from regard.scoring import correlation_scores
from regard.tasks.base import EvaluationResult, read_json
from regard.tasks.texts import TextRun
from regard.training.losses import MeanSquaredError

FILE = "scale.json"


class Regressor(TextRun):
    """Numbers are learned as their distance from the mean of the training data, in its standard deviations."""

    does = "says numbers"

    def __init__(self, folder: Path, recipe: Any, device: torch.device, huggingface: HuggingFaceFolder | None = None):
        """A model from elsewhere says its numbers plainly."""
        scale = read_json(folder / FILE) if huggingface is None else {"mean": 0.0, "std": 1.0}
        if not all(isinstance(scale.get(name), float) for name in ("mean", "std")):
            raise UserError(f"{folder / FILE} is damaged: it should say the mean and the deviation")
        self.mean, self.std = scale["mean"], scale["std"]
        super().__init__(folder, recipe, device, huggingface)

    @classmethod
    def prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        super().prepare(folder, recipe, data)
        known = numbers(data.train)
        if known.std() == 0:
            raise UserError(f"{data.train.name}: every example has the number {known[0]:g}; there is nothing to learn")
        atomic_write(folder / FILE, json.dumps({"mean": known.mean(), "std": known.std()}) + "\n")

    def build_model(self) -> nn.Module:
        settings = self.recipe.model
        return MODELS["regress"][settings.kind](
            settings, self.tokenizers[0].size, 1, self.recipe.train.regularize, self.features()
        )

    def spoken_weights(self) -> dict[str, Tensor]:
        """With the scale of the numbers in the last layer."""
        weights = super().spoken_weights()
        scaled = {name: weights[name].detach() * self.std for name in ("output.weight", "output.bias")}
        return weights | scaled | {"output.bias": scaled["output.bias"] + self.mean}

    def learned(self, logits: Tensor) -> Tensor:
        return (logits - self.mean) / self.std

    def objective(self) -> MeanSquaredError:
        return MeanSquaredError()

    def encode(self, examples: LabelledTexts, *, training: bool = False) -> Rows:
        wanted = ((numbers(examples) - self.mean) / self.std).astype(np.float32)
        return self.rows_of(examples, wanted, training)

    def classify(self, texts: Sequence[str]) -> list[float]:
        """The number of each text; where pairs are judged, a tab is between the two."""
        return (self.judged(texts)[:, 0].double().numpy() * self.std + self.mean).tolist()

    def validate(self, examples: LabelledTexts, rows: Rows) -> dict[str, float]:
        said, meant = np.array(self.classify(examples.keys())), numbers(examples)
        return {
            "valid_loss": float((((said - meant) / self.std) ** 2).mean()),
            "valid_spearman": correlation_scores(said, meant, samples=2)["spearman"].score,
        }

    def score(self, name: str, examples: LabelledTexts) -> EvaluationResult:
        said = self.classify(examples.keys())
        return EvaluationResult(
            name, examples, [f"{number:.4f}" for number in said], correlation_scores(np.array(said), numbers(examples))
        )


def numbers(examples: LabelledTexts) -> np.ndarray:
    found = []
    for index, label in enumerate(examples.label):
        try:
            found.append(float(label))
        except ValueError:
            raise UserError(f"{examples.where(index)} has {label!r} where a number should be (data.label)") from None
        if not np.isfinite(found[-1]):
            raise UserError(f"{examples.where(index)} has {label!r}, which is not a finite number (data.label)")
    return np.array(found)
