"""What runs that say labels have in common."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from regard.corpus.dataset import Dataset
from regard.corpus.examples import Examples
from regard.errors import Mistake
from regard.files import replace_file
from regard.interop.convert import Foreign
from regard.models.registry import MODELS
from regard.tasks.base import read_json
from regard.tasks.texts import TextRun

FILE = "labels.json"


class LabelRun(TextRun):
    def __init__(self, folder: Path, recipe: Any, device: Any, foreign: Foreign | None = None):
        self.labels: list[str] = read_json(folder / FILE, list) if foreign is None else foreign.labels
        self.numbers = {label: number for number, label in enumerate(self.labels)}
        super().__init__(folder, recipe, device, foreign)

    @classmethod
    def prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        super().prepare(folder, recipe, data)
        labels = data.train.labels()
        if len(labels) < 2:
            raise Mistake(f"{data.train.name} has only the label {labels[0]!r}; at least two are needed")
        replace_file(folder / FILE, json.dumps(labels, ensure_ascii=False, indent=1) + "\n")

    def build_model(self) -> nn.Module:
        settings = self.recipe.model
        return MODELS[self.recipe.task][settings.kind](
            settings, self.tokenizers[0].size, len(self.labels), self.recipe.train.regularize, self.features()
        )

    def number(self, label: str, examples: Examples, index: int) -> int:
        if label not in self.numbers:
            shown = ", ".join(self.labels[:8]) + (" …" if len(self.labels) > 8 else "")
            raise Mistake(f"{examples.where(index)} has the label {label!r}, which is not in the training data ({shown})")
        return self.numbers[label]
