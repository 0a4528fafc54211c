"""A whole recipe."""

import hashlib
import json
from typing import Literal

import tomli_w
from pydantic import Field, model_validator

from regard.recipe.data import Data, Tokens
from regard.recipe.model import Model, TransformerModel
from regard.recipe.part import Part
from regard.recipe.train import Decode, Train


class Recipe(Part):
    """A whole run."""

    task: Literal["translate"] = "translate"
    seed: int = Field(1, ge=0)
    data: Data
    tokens: Tokens = Tokens()
    model: Model = TransformerModel()
    train: Train = Train()
    decode: Decode = Decode()

    @model_validator(mode="after")
    def fits(self) -> "Recipe":
        if not self.tokens.joint and self.model.tie == "all":
            raise ValueError("model.tie = 'all' needs one vocabulary: set tokens.joint = true, or model.tie = 'target'")
        if self.train.regularize.bpe_dropout and self.tokens.kind != "bpe":
            raise ValueError(f"train.regularize.bpe_dropout needs tokens.kind = 'bpe', not {self.tokens.kind!r}")
        return self

    def digest(self) -> str:
        """Twelve hex digits that name these settings, wherever the data lie."""
        settings = self.model_dump(mode="json", exclude={"data": {"root"}})
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))
