"""A recipe: a TOML file turned into frozen, checked settings. Everything a run does follows from it.

`docs/settings.md` is generated from the types and docstrings of this folder.
"""

from regard.recipe.caption import CaptionModel, LstmDecoder, TransformerDecoder
from regard.recipe.contrast import CLIPS, ClipModel, ImageTower, PairedPictures, TextTower, TrainContrast
from regard.recipe.data import (
    Algorithm,
    Data,
    DataPart,
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
from regard.recipe.drawing import DalleModel, DvaeModel, PictureCodes
from regard.recipe.encoders import CnnEncoder, EfficientNetEncoder, PatchesEncoder
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
from regard.recipe.tasks import TaskData, TasksData
from regard.recipe.train import Begin, Decode, Optimizer, Regularize, Schedule, Train, Training
from regard.recipe.whole import (
    OF_KIND,
    RECIPES,
    Answer,
    Answering,
    Caption,
    Classify,
    ClassifyPictures,
    Codes,
    Contrast,
    Corrupted,
    Corruption,
    Draw,
    Language,
    Masked,
    Masking,
    Recipe,
    Tag,
    TextToText,
    Translate,
)

__all__ = ["CLIPS", "DECODERS", "ENCODERS", "OF_KIND", "PRESETS", "RECIPES", "VITS", "Algorithm", "Answer", "Answering",
           "Augment", "Begin", "Caption", "CaptionModel", "CaptionedPictures", "Classify", "ClassifyPictures", "ClipModel",
           "CnnEncoder", "Codes", "Contrast", "Corrupted", "Corruption", "DalleModel", "Data", "DataPart", "Decode",
           "DecoderModel", "Draw", "DvaeModel", "EfficientNetEncoder", "ElmoModel", "EncoderModel", "Features", "GridPositions",
           "ImageTower", "LabelledData", "LabelledPictures", "Language", "LstmDecoder", "Masked", "Masking", "Model",
           "Optimizer", "PairData", "PairTokens", "PairedPictures", "Part", "PatchesEncoder", "PictureCodes", "PictureData",
           "Positions", "QuestionData", "RandAugment", "Recipe", "RecurrentLanguage", "RecurrentModel", "RecurrentReader",
           "Regularize", "Schedule", "Shapes", "Tag", "TaggedData", "TaskData", "TasksData", "TextData", "TextToText",
           "TextTower", "Tokens", "Train", "TrainContrast", "TrainPictures", "Training", "TransformerDecoder",
           "TransformerModel", "Translate", "UniversalModel", "Vectors", "VitModel", "World", "apply_override", "build",
           "kinds_of", "parse", "parts_in", "read"]
