"""A recipe: a TOML file turned into frozen, checked settings. Everything a run does follows from it.

`docs/settings.md` is generated from the types and docstrings of this folder.
"""

from regard.recipe.data import Data, Tokens, World
from regard.recipe.model import PRESETS, Model, Positions, RecurrentModel, TransformerModel, UniversalModel
from regard.recipe.part import Part, kinds_of, parts_in
from regard.recipe.read import apply_override, build, parse, read
from regard.recipe.train import Begin, Decode, Optimizer, Regularize, Schedule, Train
from regard.recipe.whole import Recipe

__all__ = ["PRESETS", "Begin", "Data", "Decode", "Model", "Optimizer", "Part", "Positions", "Recipe", "RecurrentModel",
           "Regularize", "Schedule", "Tokens", "Train", "TransformerModel", "UniversalModel", "World", "apply_override", "build",
           "kinds_of", "parse", "parts_in", "read"]
