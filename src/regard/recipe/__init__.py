"""A recipe: a TOML file turned into frozen, checked settings. Everything a run does follows from it.

`docs/settings.md` is generated from the types and docstrings of this folder.
"""

from regard.recipe.captioner import CaptionModel, LstmDecoder, TransformerDecoder
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
from regard.recipe.image_encoders import CnnEncoder, EfficientNetEncoder, PatchesEncoder
from regard.recipe.image_text import CLIPS, ClipModel, ImageTower, PairedPictures, TextTower, TrainContrast
from regard.recipe.images import (
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
from regard.recipe.model import PRESETS, Model, Positions, RecurrentModel, TransformerModel, UniversalModel
from regard.recipe.parse import apply_override, build, parse, read
from regard.recipe.recipes import (
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
from regard.recipe.recurrent import ElmoModel, Features, RecurrentLanguage, RecurrentReader, Vectors
from regard.recipe.settings import Part, kinds_of, parts_in
from regard.recipe.stacks import DECODERS, ENCODERS, DecoderModel, EncoderModel
from regard.recipe.task_mixture import TaskData, TasksData
from regard.recipe.text_to_image import DalleModel, DvaeModel, PictureCodes
from regard.recipe.training import Begin, Decode, Optimizer, Regularize, Schedule, Train, Training

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
