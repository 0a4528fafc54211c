"""Every model by its `kind` in a recipe."""

from typing import TYPE_CHECKING, Any

from torch import nn

from regard.models.recurrent import RecurrentTranslator
from regard.models.transformer import Transformer
from regard.models.universal import UniversalTransformer

if TYPE_CHECKING:
    from regard.recipe import Model, Regularize

TRANSLATORS: dict[str, Any] = {
    "transformer": Transformer,
    "recurrent": RecurrentTranslator,
    "universal": UniversalTransformer,
}


def build_translator(settings: "Model", source_vocabulary: int, target_vocabulary: int,
                     regularize: "Regularize | None" = None) -> nn.Module:
    return TRANSLATORS[settings.kind](settings, source_vocabulary, target_vocabulary, regularize)
