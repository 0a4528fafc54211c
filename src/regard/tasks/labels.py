"""What runs that say labels have in common."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from regard.corpus.dataset import Dataset
from regard.corpus.examples import Examples
from regard.errors import UserError
from regard.files import atomic_write
from regard.interop.convert import HuggingFaceFolder
from regard.models.registry import MODELS
from regard.tasks.base import read_json
from regard.tasks.texts import TextRun

FILE = "labels.json"


class LabelRun(TextRun):
    def __init__(self, folder: Path, recipe: Any, device: Any, huggingface: HuggingFaceFolder | None = None):
        self.labels: list[str] = read_json(folder / FILE, list) if huggingface is None else huggingface.labels
        self.numbers = {label: number for number, label in enumerate(self.labels)}
        super().__init__(folder, recipe, device, huggingface)

    @classmethod
    def prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        super().prepare(folder, recipe, data)
        labels = data.train.labels()
        if len(labels) < 2:
            raise UserError(f"{data.train.name} has only the label {labels[0]!r}; at least two are needed")
        atomic_write(folder / FILE, json.dumps(labels, ensure_ascii=False, indent=1) + "\n")

    def build_model(self) -> nn.Module:
        settings = self.recipe.model
        return MODELS[self.recipe.task][settings.kind](
            settings, self.tokenizers[0].size, len(self.labels), self.recipe.train.regularize, self.features()
        )

    def number(self, label: str, examples: Examples, index: int) -> int:
        if label not in self.numbers:
            shown = ", ".join(self.labels[:8]) + (" …" if len(self.labels) > 8 else "")
            raise UserError(f"{examples.where(index)} has the label {label!r}, which is not in the training data ({shown})")
        return self.numbers[label]
