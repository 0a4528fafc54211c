"""Every model by the task and `kind` of its recipe."""

from typing import Any

from regard.models.language import Elmo, RecurrentLanguageModel
from regard.models.reader import RecurrentClassifier, RecurrentTagger
from regard.models.recurrent import RecurrentTranslator
from regard.models.transformer import Transformer
from regard.models.universal import UniversalTransformer

MODELS: dict[str, dict[str, Any]] = {
    "translate": {
        "transformer": Transformer,
        "recurrent": RecurrentTranslator,
        "universal": UniversalTransformer,
    },
    "language": {
        "recurrent": RecurrentLanguageModel,
        "elmo": Elmo,
    },
    "classify": {
        "recurrent": RecurrentClassifier,
    },
    "tag": {
        "recurrent": RecurrentTagger,
    },
}
