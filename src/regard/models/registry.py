"""Every model by the task and `kind` of its recipe."""

from typing import Any

from regard.models.bert import EncoderClassifier, EncoderPointer, EncoderTagger, MaskedWords, TextVectors
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
from regard.models.vit import PictureVectors, Vit

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
        "transformer": MaskedWords,
    },
    "read": {
        "transformer": TextVectors,
        "vit": PictureVectors,
    },
    "corrupted": {
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
        "vit": Vit,
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
        "transformer": EncoderPointer,
    },
    "caption": {
        "lstm": LstmCaptioner,
        "transformer": TransformerCaptioner,
    },
    "contrast": {
        "clip": Clip,
    },
    "codes": {
        "dvae": Dvae,
    },
    "draw": {
        "dalle": Dalle,
    },
}
