"""What may be asked of the server: every number has bounds, every text is one, and nothing else may be sent."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

LONGEST_TEXT = 20_000
MOST_TEXTS = 64
MOST_TOKENS = 2048
LARGEST_PICTURE = 8_000_000
"""Characters of base64: 6 MB."""


def without_surrogates(text: str) -> str:
    """Half a character, which JSON can write and UTF-8 cannot."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("should be text: a lone surrogate is half a character")
    return text


Text = Annotated[str, Field(max_length=LONGEST_TEXT), AfterValidator(without_surrogates)]
Word = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(without_surrogates)]
Texts = Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(without_surrogates)]
Picture = Annotated[
    str, Field(min_length=1, max_length=LARGEST_PICTURE, description="A PNG, JPEG or WebP in base64, or as a data: URL.")
]
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Beam = Annotated[int, Field(ge=1, le=16)]
Temperature = Annotated[float, Field(ge=1e-6, le=100)]
TopK = Annotated[int, Field(ge=0, le=1_000_000)]
TopP = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, le=2**53 - 1)]
Number = Annotated[int, Field(ge=1, le=8)]
Stops = Annotated[list[Word], Field(max_length=8)]
Depth = Annotated[int, Field(ge=1, le=1000)]


class Asked(BaseModel):
    """What every request has: which model is meant; the first that can do it, when not said."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True, frozen=True)
    model: Name | None = None


class Drawing(Asked):
    """How tokens are drawn; without a temperature none are, and the likeliest is taken each time."""

    temperature: Temperature | None = None
    top_k: TopK = 0
    top_p: TopP = 1.0
    seed: Seed = 0


class Translate(Drawing):
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


class Generate(Drawing):
    prompt: Texts
    max_tokens: Tokens = 100
    repetition_penalty: Annotated[float, Field(ge=0.001, le=1000)] = 1.0
    stop: Stops = []
    number: Number = 1
    looks: bool = False
    """Where each word looked, what else it might have been, and how likely."""
    kind: Literal["cross", "encoder", "decoder"] | None = None
    layer: Depth | None = None
    head: Depth | None = None
    stream: bool = False


class Fill(Asked):
    text: Texts
    number: Annotated[int, Field(ge=1, le=100)] = 5


class Given(Asked):
    """A text or a picture."""

    text: Text | None = None
    image: Picture | None = None

    @model_validator(mode="after")
    def one_of_both(self) -> "Given":
        if (self.text is None) == (self.image is None):
            raise ValueError("give either text or image")
        return self


class Classify(Asked):
    text: Texts | None = None
    image: Picture | None = None
    task: Name | None = None

    @model_validator(mode="after")
    def one_of_both(self) -> "Classify":
        if (self.text is None) == (self.image is None):
            raise ValueError("give either text or image")
        return self


class Tag(Asked):
    text: Texts


class Answer(Asked):
    question: Word
    context: Text
    top: Annotated[int, Field(ge=1, le=20)] = 1


class Embed(Asked):
    text: Texts | None = None
    image: Picture | None = None
    layer: Annotated[int, Field(ge=-1000, le=1000)] = -1
    pool: Literal["mean", "cls", "words"] = "mean"

    @model_validator(mode="after")
    def one_of_both(self) -> "Embed":
        if (self.text is None) == (self.image is None):
            raise ValueError("give either text or image")
        return self


class Caption(Drawing):
    image: Picture
    beam: Beam | None = None
    length_penalty: Annotated[float, Field(ge=-5, le=5)] | None = None
    max_tokens: Tokens | None = None
    number: Number = 1
    looks: bool = False
    """A map for each word: where it looked."""
    stream: bool = False


class Match(Asked):
    image: Picture
    labels: Annotated[list[Word], Field(min_length=1, max_length=200)]
    templates: Annotated[list[Word], Field(min_length=1, max_length=20)] = ["{}"]


class Draw(Asked):
    text: Text
    number: Number = 1
    temperature: Temperature | None = 1.0
    top_k: TopK = 0
    top_p: TopP = 1.0
    seed: Seed = 0


class Attention(Given):
    """All layers and heads of one kind, or those that are named, counted from 1; as JSON, or as a file to keep."""

    kind: Literal["cross", "encoder", "decoder"] | None = None
    layers: Annotated[list[Depth], Field(min_length=1, max_length=200)] | None = None
    heads: Annotated[list[Depth], Field(min_length=1, max_length=200)] | None = None
    digits: Annotated[int, Field(ge=1, le=6)] = 3
    form: Literal["json", "attn", "svg", "png"] = "json"
    view: Literal["matrix", "heads", "model", "token", "entropy", "beam"] = "matrix"
    """Of a picture (svg, png): one layer and head at most."""
    token: Word | None = None


class Explain(Given):
    method: Annotated[str, Field(pattern="^[a-z]+(-[a-z]+)*(,[a-z]+(-[a-z]+)*)*$", max_length=200)] = "all"
    label: Word | None = None
    word: Word | None = None
    fits: Word | None = None
    against: Word | None = None
