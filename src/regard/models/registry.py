"""Every model by the task and `kind` of its recipe."""

from typing import Any

from regard.models.bert import EncoderClassifier, EncoderTagger, MaskedLanguageModel, SpanPredictor, TextEmbedder
from regard.models.captioner import LstmCaptioner, TransformerCaptioner
from regard.models.clip import Clip
from regard.models.dalle import Dalle
from regard.models.dvae import Dvae
from regard.models.gpt import Gpt
from regard.models.recurrent_encoder import RecurrentClassifier, RecurrentTagger
from regard.models.recurrent_language import Elmo, RecurrentLanguageModel
from regard.models.recurrent_translator import RecurrentTranslator
from regard.models.transformer import Transformer
from regard.models.universal import UniversalTransformer
from regard.models.vit import ImageEmbedder, VitClassifier

MODELS: dict[str, dict[str, Any]] = {
    "translate": {
        "transformer": Transformer,
        "recurrent": RecurrentTranslator,
        "universal": UniversalTransformer,
    },
    "language": {
        "transformer": Gpt,
        "recurrent": RecurrentLanguageModel,
        "elmo": Elmo,
    },
    "masked": {
        "transformer": MaskedLanguageModel,
    },
    "encode": {
        "transformer": TextEmbedder,
        "vit": ImageEmbedder,
    },
    "span-corruption": {
        "transformer": Transformer,
        "recurrent": RecurrentTranslator,
        "universal": UniversalTransformer,
    },
    "text-to-text": {
        "transformer": Transformer,
        "recurrent": RecurrentTranslator,
        "universal": UniversalTransformer,
    },
    "classify": {
        "transformer": EncoderClassifier,
        "recurrent": RecurrentClassifier,
        "vit": VitClassifier,
    },
    "regress": {
        "transformer": EncoderClassifier,
        "recurrent": RecurrentClassifier,
    },
    "tag": {
        "transformer": EncoderTagger,
        "recurrent": RecurrentTagger,
    },
    "answer": {
        "transformer": SpanPredictor,
    },
    "caption": {
        "lstm": LstmCaptioner,
        "transformer": TransformerCaptioner,
    },
    "contrastive": {
        "clip": Clip,
    },
    "image-codes": {
        "dvae": Dvae,
    },
    "text-to-image": {
        "dalle": Dalle,
    },
}
