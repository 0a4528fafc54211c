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
from regard.corpus.examples import Labelled
from regard.errors import Mistake
from regard.files import replace_file
from regard.interop.convert import Foreign
from regard.models.registry import MODELS
from regard.scoring import correlations
from regard.tasks.base import Result, read_json
from regard.tasks.texts import TextRun
from regard.training.losses import Near

FILE = "scale.json"


class Regressor(TextRun):
    """Numbers are learned as their distance from the mean of the training data, in its standard deviations."""

    does = "says numbers"

    def __init__(self, folder: Path, recipe: Any, device: torch.device, foreign: Foreign | None = None):
        """A model from elsewhere says its numbers plainly."""
        scale = read_json(folder / FILE) if foreign is None else {"mean": 0.0, "deviation": 1.0}
        if not all(isinstance(scale.get(name), float) for name in ("mean", "deviation")):
            raise Mistake(f"{folder / FILE} is damaged: it should say the mean and the deviation")
        self.mean, self.deviation = scale["mean"], scale["deviation"]
        super().__init__(folder, recipe, device, foreign)

    @classmethod
    def prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        super().prepare(folder, recipe, data)
        known = numbers(data.train)
        if known.std() == 0:
            raise Mistake(f"{data.train.name}: every example has the number {known[0]:g}; there is nothing to learn")
        replace_file(folder / FILE, json.dumps({"mean": known.mean(), "deviation": known.std()}) + "\n")

    def build_model(self) -> nn.Module:
        settings = self.recipe.model
        return MODELS["regress"][settings.kind](
            settings, self.tokenizers[0].size, 1, self.recipe.train.regularize, self.features()
        )

    def spoken_weights(self) -> dict[str, Tensor]:
        """With the scale of the numbers in the last layer."""
        weights = super().spoken_weights()
        scaled = {name: weights[name].detach() * self.deviation for name in ("output.weight", "output.bias")}
        return weights | scaled | {"output.bias": scaled["output.bias"] + self.mean}

    def learned(self, logits: Tensor) -> Tensor:
        return (logits - self.mean) / self.deviation

    def objective(self) -> Near:
        return Near()

    def encode(self, examples: Labelled, *, training: bool = False) -> Rows:
        wanted = ((numbers(examples) - self.mean) / self.deviation).astype(np.float32)
        return self.rows_of(examples, wanted, training)

    def classify(self, texts: Sequence[str]) -> list[float]:
        """The number of each text; where pairs are judged, a tab is between the two."""
        return (self.judged(texts)[:, 0].double().numpy() * self.deviation + self.mean).tolist()

    def validate(self, examples: Labelled, rows: Rows) -> dict[str, float]:
        said, meant = np.array(self.classify(examples.keys())), numbers(examples)
        return {
            "valid_loss": float((((said - meant) / self.deviation) ** 2).mean()),
            "valid_spearman": correlations(said, meant, samples=2)["spearman"].score,
        }

    def score(self, name: str, examples: Labelled) -> Result:
        said = self.classify(examples.keys())
        return Result(name, examples, [f"{number:.4f}" for number in said], correlations(np.array(said), numbers(examples)))


def numbers(examples: Labelled) -> np.ndarray:
    found = []
    for index, label in enumerate(examples.label):
        try:
            found.append(float(label))
        except ValueError:
            raise Mistake(f"{examples.where(index)} has {label!r} where a number should be (data.label)") from None
        if not np.isfinite(found[-1]):
            raise Mistake(f"{examples.where(index)} has {label!r}, which is not a finite number (data.label)")
    return np.array(found)
