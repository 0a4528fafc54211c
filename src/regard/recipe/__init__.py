"""A recipe: a TOML file turned into frozen, checked settings. Everything a run does follows from it.

`docs/settings.md` is generated from the types and docstrings of this folder.
"""

from regard.recipe.caption import (
    CaptionModel,
    CnnEncoder,
    EfficientNetEncoder,
    LstmDecoder,
    PatchesEncoder,
    TransformerDecoder,
)
from regard.recipe.data import (
    Algorithm,
    Data,
    LabelledData,
    PairData,
    PairTokens,
    QuestionData,
    Shapes,
    TaggedData,
    TextData,
    Tokens,
    World,
)
from regard.recipe.model import PRESETS, Model, Positions, RecurrentModel, TransformerModel, UniversalModel
from regard.recipe.part import Part, kinds_of, parts_in
from regard.recipe.pictures import (
    VITS,
    Augment,
    CaptionedPictures,
    GridPositions,
    LabelledPictures,
    PictureData,
    RandAugment,
    TrainPictures,
    VitModel,
)
from regard.recipe.read import apply_override, build, parse, read
from regard.recipe.reader import ElmoModel, Features, RecurrentLanguage, RecurrentReader, Vectors
from regard.recipe.stack import DECODERS, ENCODERS, DecoderModel, EncoderModel
from regard.recipe.train import Begin, Decode, Optimizer, Regularize, Schedule, Train, Training
from regard.recipe.whole import (
    OF_KIND,
    RECIPES,
    Answer,
    Answering,
    Caption,
    Classify,
    ClassifyPictures,
    Corrupted,
    Corruption,
    Language,
    Masked,
    Masking,
    Recipe,
    Tag,
    Translate,
)

__all__ = ["DECODERS", "ENCODERS", "OF_KIND", "PRESETS", "RECIPES", "VITS", "Algorithm", "Answer", "Answering", "Augment",
           "Begin", "Caption", "CaptionModel", "CaptionedPictures", "Classify", "ClassifyPictures", "CnnEncoder", "Corrupted",
           "Corruption", "Data", "Decode", "DecoderModel", "EfficientNetEncoder", "ElmoModel", "EncoderModel", "Features",
           "GridPositions", "LabelledData", "LabelledPictures", "Language", "LstmDecoder", "Masked", "Masking", "Model",
           "Optimizer", "PairData", "PairTokens", "Part", "PatchesEncoder", "PictureData", "Positions", "QuestionData",
           "RandAugment", "Recipe", "RecurrentLanguage", "RecurrentModel", "RecurrentReader", "Regularize", "Schedule",
           "Shapes", "Tag", "TaggedData", "TextData", "Tokens", "Train", "TrainPictures", "Training", "TransformerDecoder",
           "TransformerModel", "Translate", "UniversalModel", "Vectors", "VitModel", "World", "apply_override", "build",
           "kinds_of", "parse", "parts_in", "read"]
