"""What runs that judge a text, or two together, have in common."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.batches.ragged import Ragged
from regard.batches.rows import ClassificationRows, PairClassificationRows, Rows
from regard.batches.token_store import TokenStore
from regard.corpus.dataset import Dataset
from regard.corpus.examples import LabelledTexts
from regard.errors import UserError
from regard.models.recurrent_encoder import ContextualEmbedding
from regard.tasks.base import Run
from regard.tasks.features import copy_features, load_contextual_features
from regard.tokens.special_tokens import BOS_AND_EOS, DEFAULT_SPECIAL_TOKENS, SpecialTokens


class TextRun(Run):
    @classmethod
    def prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        if getattr(recipe.model, "features", None) is not None:
            copy_features(Path(recipe.model.features.run), folder)
        super().prepare(folder, recipe, data)

    def own_marks(self) -> SpecialTokens:
        return BOS_AND_EOS if self.recipe.model.kind == "transformer" else DEFAULT_SPECIAL_TOKENS

    def features(self) -> ContextualEmbedding | None:
        """The vectors of another run that are read instead of words, where the recipe asks for them."""
        chosen = getattr(self.recipe.model, "features", None)
        return None if chosen is None else load_contextual_features(self.folder, chosen)

    def rows_of(self, examples: LabelledTexts, wanted: np.ndarray, training: bool) -> Rows:
        """Texts or pairs of them, with what should be said of each."""
        text = self.side(examples.text, self.tokenizers[0], training)
        if not examples.text_pair:
            return ClassificationRows(text, wanted, special_tokens=self.special_tokens)
        return PairClassificationRows(
            text, self.side(examples.text_pair, self.tokenizers[0], training), wanted, self.special_tokens
        )

    def judged(self, texts: Sequence[str]) -> Tensor:
        """What the model says of each text (N, C). Where pairs are judged, a tab is between the two; a model from elsewhere
        judges texts alone, and two with a tab between them as a pair."""
        second = self.recipe.data.text_pair is not None
        kinds = [second if self.huggingface is None else "\t" in text for text in texts]
        found: list[Any] = [None] * len(texts)
        for kind, rows_of in ((False, self.singles), (True, self.pairs)):
            chosen = {i: text for i, text in enumerate(texts) if kinds[i] == kind}
            for number, logits in zip(chosen, self.logits(rows_of(chosen)) if chosen else []):
                found[number] = logits
        return torch.stack(found) if found else torch.zeros(0, 1)

    def reading(self, text: str) -> dict[str, Tensor]:
        pair = getattr(self.recipe.data, "text_pair", None) is not None if self.huggingface is None else "\t" in text
        return self.pairs({0: text}).batch(np.array([0]), 0, 0).inputs if pair else super().reading(text)

    def singles(self, texts: Mapping[int, str]) -> Rows:
        """Texts as a user gives them, by their number, with nothing asked for."""
        return ClassificationRows(
            TokenStore(Ragged.from_rows(self.ids(list(texts.values())))),
            np.zeros(len(texts), np.int64),
            special_tokens=self.special_tokens,
        )

    def pairs(self, texts: Mapping[int, str]) -> Rows:
        """Likewise, a tab between the two of each pair."""
        parts = [text.split("\t") for text in texts.values()]
        for number, part in zip(texts, parts):
            if len(part) != 2:
                raise UserError(f"line {number + 1} has {len(part)} texts; this run judges pairs, with a tab between the two")
        first, second = (TokenStore(Ragged.from_rows(self.tokenizers[0].encode(list(side)))) for side in zip(*parts))
        return PairClassificationRows(first, second, np.zeros(len(texts), np.int64), self.special_tokens).truncate(
            self.recipe.model.max_length
        )
