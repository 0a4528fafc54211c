"""A whole recipe, one type for each task."""

import hashlib
import json
from typing import Any, Literal

import tomli_w
from pydantic import Field, model_validator

from regard.recipe.data import Data, LabelledData, PairData, PairTokens, TaggedData, TextData, Tokens
from regard.recipe.model import Model, TransformerModel
from regard.recipe.part import Part
from regard.recipe.reader import LanguageModel, RecurrentLanguage, RecurrentReader
from regard.recipe.train import Decode, Train


class Recipe(Part):
    """What the recipes of all tasks have."""

    task: str
    seed: int = Field(1, ge=0)
    data: Data
    tokens: Tokens = Tokens()
    model: Any
    train: Train = Train()
    decode: Decode = Decode()

    @model_validator(mode="after")
    def dropout_fits_the_tokens(self) -> "Recipe":
        if self.train.regularize.bpe_dropout and self.tokens.kind != "bpe":
            raise ValueError(f"train.regularize.bpe_dropout needs tokens.kind = 'bpe', not {self.tokens.kind!r}")
        return self

    def digest(self) -> str:
        """Twelve hex digits that name these settings, wherever the data lie."""
        settings = self.model_dump(mode="json", exclude={"data": {"root"}})
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


class Translate(Recipe):
    """Translate sentences."""

    task: Literal["translate"] = "translate"
    data: PairData
    tokens: PairTokens = PairTokens()
    model: Model = TransformerModel()

    @model_validator(mode="after")
    def ties_fit_the_vocabulary(self) -> "Translate":
        if not self.tokens.joint and self.model.tie == "all":
            raise ValueError("model.tie = 'all' needs one vocabulary: set tokens.joint = true, or model.tie = 'target'")
        return self


class Language(Recipe):
    """Say what comes next in a text."""

    task: Literal["language"] = "language"
    data: TextData
    model: LanguageModel = RecurrentLanguage()


class Classify(Recipe):
    """Say which of some labels a text has."""

    task: Literal["classify"] = "classify"
    data: LabelledData
    model: RecurrentReader = RecurrentReader()


class Tag(Recipe):
    """Say a label of every word."""

    task: Literal["tag"] = "tag"
    data: TaggedData
    model: RecurrentReader = RecurrentReader()

    @model_validator(mode="after")
    def words_stay_as_they_are(self) -> "Tag":
        if self.train.regularize.bpe_dropout:
            raise ValueError("train.regularize.bpe_dropout: a tag belongs to a word's first sub-word, which dropout would move")
        return self


RECIPES: dict[str, type[Recipe]] = {"translate": Translate, "language": Language, "classify": Classify, "tag": Tag}
