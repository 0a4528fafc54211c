"""The bodies of requests: every number has bounds, every text is valid Unicode, unknown fields are rejected."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MAX_TEXT_LENGTH = 20_000
MAX_TEXTS = 64
MAX_TOKENS = 2048
MAX_ABLATED = 1500
MAX_IMAGE_LENGTH = 8_000_000
"""Characters of base64: 6 MB."""


def reject_surrogates(text: str) -> str:
    """Reject lone surrogates, which JSON can express and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("should be text: a lone surrogate is half a character") from None
    return text


Text = Annotated[str, Field(max_length=MAX_TEXT_LENGTH), AfterValidator(reject_surrogates)]
Word = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(reject_surrogates)]
Texts = Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(reject_surrogates)]
ImageData = Annotated[
    str, Field(min_length=1, max_length=MAX_IMAGE_LENGTH, description="A PNG, JPEG or WebP in base64, or as a data: URL.")
]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Temperature = Annotated[float, Field(ge=1e-6, le=100)]
TopP = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, le=2**53 - 1)]
Number = Annotated[int, Field(ge=1, le=8)]
Index = Annotated[int, Field(ge=1, le=1000)]
"""Of a layer or head, counted from 1."""
AttentionKind = Literal["cross", "encoder", "decoder"]
AblatedHead = Annotated[str, Field(pattern=r"^((cross|encoder|decoder)\.)?[1-9]\d{0,3}\.[1-9]\d{0,3}$")]
"""KIND.LAYER.HEAD, counted from 1; LAYER.HEAD where a model has one kind of attention."""


class ApiRequest(BaseModel):
    """What every request has: the model's name; without it, the first model that has the endpoint is used."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True, frozen=True)
    model: Name | None = None
    ablate: Annotated[list[AblatedHead], Field(max_length=MAX_ABLATED)] = []
    """Heads whose weights are zero in this request."""


class SamplingRequest(ApiRequest):
    """Sampling settings; without a temperature decoding is greedy or by beam search."""

    temperature: Temperature | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    top_p: TopP = 1.0
    seed: Seed = 0


class SearchRequest(SamplingRequest):
    """Settings of a beam search."""

    beam: Annotated[int, Field(ge=1, le=16)] | None = None
    length_penalty: Annotated[float, Field(ge=-5, le=5)] | None = None
    max_tokens: Tokens | None = None
    number: Number = 1
    stream: bool = False
    """Send tokens as server-sent events; with a beam, each text is one event, at its end. `index` counts texts, or samples."""

    @property
    def samples(self) -> int:
        """How many times each text is decoded: a search finds several outputs, sampling draws one."""
        return 1 if self.temperature is None else self.number


class TranslateRequest(SearchRequest):
    text: Texts
    task: Name | None = None
    """For a run of several tasks, the one to do."""
    alignment: bool = False
    """Also return the attention of each target word over the source."""
    beam_tree: bool = False
    """Also return the tree of the beam search."""


class GenerateRequest(SamplingRequest):
    prompt: Texts
    max_tokens: Tokens = 100
    repetition_penalty: Annotated[float, Field(ge=0.001, le=1000)] = 1.0
    stop: Annotated[list[Word], Field(max_length=8)] = []
    number: Number = 1
    attention: bool = False
    """Also return the attention, the alternatives and the probability of each token."""
    kind: AttentionKind | None = None
    layer: Index | None = None
    head: Index | None = None
    stream: bool = False


class NextTokenRequest(ApiRequest):
    text: Text
    number: Annotated[int, Field(ge=1, le=1000)] = 100
    """Of the most probable tokens."""


class FillRequest(ApiRequest):
    text: Texts
    number: Annotated[int, Field(ge=1, le=100)] = 5


class TextOrImageRequest(ApiRequest):
    """Either texts or one image."""

    text: Texts | None = None
    image: ImageData | None = None

    @model_validator(mode="after")
    def require_one_input(self) -> Self:
        if (self.text is None) == (self.image is None):
            raise ValueError("give either text or image")
        return self


class ClassifyRequest(TextOrImageRequest):
    task: Name | None = None


class TagRequest(ApiRequest):
    text: Texts


class AnswerRequest(ApiRequest):
    question: Word
    context: Text
    top: Annotated[int, Field(ge=1, le=20)] = 1


class EmbedRequest(TextOrImageRequest):
    layer: Annotated[int, Field(ge=-1000, le=1000)] = -1
    pool: Literal["mean", "cls", "words"] = "mean"


class CaptionRequest(SearchRequest):
    image: ImageData
    attention: bool = False
    """Also return the attention of each word over the image."""


class MatchRequest(ApiRequest):
    image: ImageData
    labels: Annotated[list[Word], Field(min_length=1, max_length=200)]
    templates: Annotated[list[Word], Field(min_length=1, max_length=20)] = ["{}"]


class DrawRequest(SamplingRequest):
    text: Text
    number: Number = 1
    temperature: Temperature | None = 1.0


class AttentionRequest(TextOrImageRequest):
    """All layers and heads of one kind of attention, or those named; as JSON, or as a file."""

    text: Text | None = None
    kind: AttentionKind | None = None
    layers: Annotated[list[Index], Field(min_length=1, max_length=200)] | None = None
    heads: Annotated[list[Index], Field(min_length=1, max_length=200)] | None = None
    digits: Annotated[int, Field(ge=1, le=6)] = 3
    format: Literal["json", "attn", "svg", "png"] = "json"
    view: Literal["matrix", "heads", "model", "token", "entropy", "beam"] = "matrix"
    """Of a figure (svg, png): one layer and head at most."""
    token: Word | None = None


class ExplainRequest(TextOrImageRequest):
    text: Text | None = None
    method: Annotated[str, Field(pattern="^[a-z]+(-[a-z]+)*(,[a-z]+(-[a-z]+)*)*$", max_length=200)] = "all"
    label: Word | None = None
    word: Word | None = None
    fits: Word | None = None
    against: Word | None = None
    position: Word | None = None
    layer: Annotated[int, Field(ge=1, le=10_000)] | None = None
    head: Annotated[int, Field(ge=1, le=10_000)] | None = None
