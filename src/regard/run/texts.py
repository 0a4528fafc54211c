"""What runs that judge a text, or two together, have in common."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.batches.ragged import Ragged
from regard.batches.rows import Classes, ClassPairs, Rows
from regard.batches.side import Side
from regard.corpus.dataset import Dataset
from regard.corpus.examples import Labelled
from regard.errors import Mistake
from regard.models.reader import Contextual
from regard.run.base import Run
from regard.run.features import contextual, copy_run
from regard.tokens.special import BOTH_ENDS, OURS, Marks


class TextRun(Run):
    @classmethod
    def prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        if getattr(recipe.model, "features", None) is not None:
            copy_run(Path(recipe.model.features.run), folder)
        super().prepare(folder, recipe, data)

    def own_marks(self) -> Marks:
        return BOTH_ENDS if self.recipe.model.kind == "transformer" else OURS

    def features(self) -> Contextual | None:
        """The vectors of another run that are read instead of words, where the recipe asks for them."""
        chosen = getattr(self.recipe.model, "features", None)
        return None if chosen is None else contextual(self.folder, chosen)

    def rows_of(self, examples: Labelled, wanted: np.ndarray, training: bool) -> Rows:
        """Texts or pairs of them, with what should be said of each."""
        text = self.side(examples.text, self.tokenizers[0], training)
        if not examples.second:
            return Classes(text, wanted, marks=self.marks)
        return ClassPairs(text, self.side(examples.second, self.tokenizers[0], training), wanted, self.marks)

    def unlabelled(self, texts: Sequence[str]) -> Rows:
        """Texts as a user gives them; a tab is between the two of a pair."""
        nothing = np.zeros(len(texts), np.int64)
        if self.recipe.data.second is None:
            return Classes(Side(Ragged.of(self.ids(texts))), nothing, marks=self.marks)
        parts = [text.split("\t") for text in texts]
        for number, part in enumerate(parts, start=1):
            if len(part) != 2:
                raise Mistake(f"line {number} has {len(part)} texts; this run judges pairs, with a tab between the two")
        first, second = (Side(Ragged.of(self.tokenizers[0].encode(list(side)))) for side in zip(*parts))
        return ClassPairs(first, second, nothing, self.marks).capped(self.recipe.model.max_length)
