"""What may be asked of the server: every number has bounds, every text is one, and nothing else may be sent."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MAX_TEXT_LENGTH = 20_000
MAX_TEXTS = 64
MAX_TOKENS = 2048
MAX_IMAGE_LENGTH = 8_000_000
"""Characters of base64: 6 MB."""


def reject_surrogates(text: str) -> str:
    """Half a character, which JSON can write and UTF-8 cannot."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("should be text: a lone surrogate is half a character")
    return text


Text = Annotated[str, Field(max_length=MAX_TEXT_LENGTH), AfterValidator(reject_surrogates)]
Word = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(reject_surrogates)]
Texts = Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(reject_surrogates)]
ImageData = Annotated[
    str, Field(min_length=1, max_length=MAX_IMAGE_LENGTH, description="A PNG, JPEG or WebP in base64, or as a data: URL.")
]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Beam = Annotated[int, Field(ge=1, le=16)]
Temperature = Annotated[float, Field(ge=1e-6, le=100)]
TopK = Annotated[int, Field(ge=0, le=1_000_000)]
TopP = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, le=2**53 - 1)]
Number = Annotated[int, Field(ge=1, le=8)]
Stops = Annotated[list[Word], Field(max_length=8)]
Index = Annotated[int, Field(ge=1, le=1000)]


class ApiRequest(BaseModel):
    """What every request has: which model is meant; the first that can do it, when not said."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True, frozen=True)
    model: Name | None = None


class SamplingRequest(ApiRequest):
    """How tokens are drawn; without a temperature none are, and the likeliest is taken each time."""

    temperature: Temperature | None = None
    top_k: TopK = 0
    top_p: TopP = 1.0
    seed: Seed = 0


class TranslateRequest(SamplingRequest):
    text: Texts
    beam: Beam | None = None
    length_penalty: Annotated[float, Field(ge=-5, le=5)] | None = None
    max_tokens: Tokens | None = None
    number: Number = 1
    task: Name | None = None
    """Of a run of several tasks, the one that is wanted."""
    align: bool = False
    """What each word of the translation looked at."""
    tree: bool = False
    """The tree of the beam search."""
    stream: bool = False
    """Pieces of one text as server-sent events; with a beam, there is one piece, at the end."""


class GenerateRequest(SamplingRequest):
    prompt: Texts
    max_tokens: Tokens = 100
    repetition_penalty: Annotated[float, Field(ge=0.001, le=1000)] = 1.0
    stop: Stops = []
    number: Number = 1
    looks: bool = False
    """Where each word looked, what else it might have been, and how likely."""
    kind: Literal["cross", "encoder", "decoder"] | None = None
    layer: Index | None = None
    head: Index | None = None
    stream: bool = False


class FillRequest(ApiRequest):
    text: Texts
    number: Annotated[int, Field(ge=1, le=100)] = 5


class TextOrImageRequest(ApiRequest):
    """A text or a picture."""

    text: Text | None = None
    image: ImageData | None = None

    @model_validator(mode="after")
    def one_of_both(self) -> "TextOrImageRequest":
        if (self.text is None) == (self.image is None):
            raise ValueError("give either text or image")
        return self


class ClassifyRequest(ApiRequest):
    text: Texts | None = None
    image: ImageData | None = None
    task: Name | None = None

    @model_validator(mode="after")
    def one_of_both(self) -> "ClassifyRequest":
        if (self.text is None) == (self.image is None):
            raise ValueError("give either text or image")
        return self


class TagRequest(ApiRequest):
    text: Texts


class AnswerRequest(ApiRequest):
    question: Word
    context: Text
    top: Annotated[int, Field(ge=1, le=20)] = 1


class EmbedRequest(ApiRequest):
    text: Texts | None = None
    image: ImageData | None = None
    layer: Annotated[int, Field(ge=-1000, le=1000)] = -1
    pool: Literal["mean", "cls", "words"] = "mean"

    @model_validator(mode="after")
    def one_of_both(self) -> "EmbedRequest":
        if (self.text is None) == (self.image is None):
            raise ValueError("give either text or image")
        return self


class CaptionRequest(SamplingRequest):
    image: ImageData
    beam: Beam | None = None
    length_penalty: Annotated[float, Field(ge=-5, le=5)] | None = None
    max_tokens: Tokens | None = None
    number: Number = 1
    looks: bool = False
    """A map for each word: where it looked."""
    stream: bool = False


class MatchRequest(ApiRequest):
    image: ImageData
    labels: Annotated[list[Word], Field(min_length=1, max_length=200)]
    templates: Annotated[list[Word], Field(min_length=1, max_length=20)] = ["{}"]


class DrawRequest(ApiRequest):
    text: Text
    number: Number = 1
    temperature: Temperature | None = 1.0
    top_k: TopK = 0
    top_p: TopP = 1.0
    seed: Seed = 0


class AttentionRequest(TextOrImageRequest):
    """All layers and heads of one kind, or those that are named, counted from 1; as JSON, or as a file to keep."""

    kind: Literal["cross", "encoder", "decoder"] | None = None
    layers: Annotated[list[Index], Field(min_length=1, max_length=200)] | None = None
    heads: Annotated[list[Index], Field(min_length=1, max_length=200)] | None = None
    digits: Annotated[int, Field(ge=1, le=6)] = 3
    form: Literal["json", "attn", "svg", "png"] = "json"
    view: Literal["matrix", "heads", "model", "token", "entropy", "beam"] = "matrix"
    """Of a picture (svg, png): one layer and head at most."""
    token: Word | None = None


class ExplainRequest(TextOrImageRequest):
    method: Annotated[str, Field(pattern="^[a-z]+(-[a-z]+)*(,[a-z]+(-[a-z]+)*)*$", max_length=200)] = "all"
    label: Word | None = None
    word: Word | None = None
    fits: Word | None = None
    against: Word | None = None
