"""What the server answers. Lists of results are in the order of what was asked."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Grid = Annotated[list[int], Field(min_length=2, max_length=2)]
"""Rows and columns."""


class ApiResponse(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ErrorDetail(ApiResponse):
    message: str
    """One line: what is wrong, and the cure."""
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(ApiResponse):
    """What every answer that is no success looks like; OpenAI's clients read it so too."""

    error: ErrorDetail


class ModelInfo(ApiResponse):
    """One model, and what it can do. `created` and `owned_by` are what OpenAI's clients expect."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["regard"] = "regard"
    task: str
    does: str
    """In words."""
    verbs: list[str]
    """The endpoints under /v1 that it can be asked at: translate, generate, completions, chat/completions …"""
    reads: list[Literal["text", "image"]]
    attends: bool
    """Whether there is something to see at /v1/attention."""
    kinds: list[str]
    """Of attention: cross, encoder, decoder; empty where there is only one."""
    labels: list[str] = []
    """Those it chooses from, the first 1,000."""
    tasks: list[str] = []
    """Of a run of several."""
    max_length: int
    """Tokens that it reads."""
    parameters: int
    device: str
    beam: int | None = None
    """The recipe's."""


class ModelsResponse(ApiResponse):
    object: Literal["list"] = "list"
    data: list[ModelInfo]


class AlignmentResult(ApiResponse):
    """What each word of a translation looked at: of the layer that looks most sharply, the mean of its heads."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]
    """A row for each word of the target, a number for each of the source."""
    name: str
    """Of which layer and heads."""


class BeamTreeNode(ApiResponse):
    """A continuation in a beam search; `parent` is its place in the list, -1 the beginning."""

    parent: int
    step: int
    word: str
    log_probability: float
    fate: Literal["kept", "ended", "pruned"]
    score: float | None
    best: bool
    """On the way of the output."""


class HypothesisResult(ApiResponse):
    text: str
    score: float
    log_probability: float


class TranslationResult(HypothesisResult):
    tokens: list[str]
    others: list[HypothesisResult]
    """The next best, where more than one was asked for."""
    alignment: AlignmentResult | None = None
    tree: list[BeamTreeNode] | None = None


class TranslateResponse(ApiResponse):
    model: str
    results: list[TranslationResult]


class GeneratedStep(ApiResponse):
    """A token that was said, and what else it might have been."""

    word: str
    probability: float
    others: list[list[str | float]]
    """Word and probability of each."""


class GenerationAttention(ApiResponse):
    """Where each token that was written looked."""

    name: str
    """Of which attention: kind, layer, heads."""
    keys: list[str]
    """What could be looked at: the prompt, and what was said."""
    own: int | None
    """Of the keys, the number of the first that was said."""
    steps: list[GeneratedStep]
    weights: list[list[float]]
    """A row for each step, a number for each key."""
    note: str


class GenerationResult(ApiResponse):
    text: str
    """The prompt, as the model reads it, and what was written."""
    written: str
    score: float
    tokens: list[str]
    probabilities: list[float]
    finish_reason: Literal["stop", "length"]
    looks: GenerationAttention | None = None


class GenerateResponse(ApiResponse):
    model: str
    results: list[GenerationResult]


class TokenEvent(ApiResponse):
    """A server-sent event while a text is written: what is certain of it with this token. Of the texts of a request, `index` says
    which."""

    index: int
    piece: str
    token: str
    probability: float


class LabelProbability(ApiResponse):
    label: str
    probability: float


class FillResult(ApiResponse):
    text: str
    candidates: list[list[LabelProbability]]
    """For each mask, best first."""


class FillResponse(ApiResponse):
    model: str
    results: list[FillResult]


class ClassificationResult(ApiResponse):
    labels: list[LabelProbability]
    """Every label, the most probable first; none where numbers are said."""
    score: float | None = None


class ClassifyResponse(ApiResponse):
    model: str
    results: list[ClassificationResult]


class TaggingResult(ApiResponse):
    words: list[str]
    labels: list[str]


class TagResponse(ApiResponse):
    model: str
    results: list[TaggingResult]


class AnswerSpanItem(ApiResponse):
    text: str
    start: int
    end: int
    probability: float


class AnswerResponse(ApiResponse):
    model: str
    results: list[AnswerSpanItem]


class EmbeddingResult(ApiResponse):
    tokens: list[str]
    vectors: list[list[float]]
    """One of the whole, or with pool = words one for each."""


class EmbedResponse(ApiResponse):
    model: str
    results: list[EmbeddingResult]


class CaptionAttention(ApiResponse):
    """Where each word of a caption looked, over the picture as the model sees it."""

    words: list[str]
    grid: Grid
    """Rows and columns."""
    maps: list[list[list[float]]]
    """A map for each word: rows of columns."""
    name: str
    picture: str
    """A PNG in base64."""


class CaptionResult(HypothesisResult):
    tokens: list[str]
    others: list[HypothesisResult]
    looks: CaptionAttention | None = None


class CaptionResponse(ApiResponse):
    model: str
    results: list[CaptionResult]


class MatchResponse(ApiResponse):
    model: str
    results: list[LabelProbability]
    """Every label, the best first."""


class ImageResult(ApiResponse):
    picture: str
    """A PNG in base64."""
    score: float


class DrawResponse(ApiResponse):
    model: str
    results: list[ImageResult]


class AttentionResponse(ApiResponse):
    """What was looked at: weights of layer, head, query, key. Of thousands of tokens, tiles of them."""

    model: str
    name: str
    """Of the kind that is given."""
    names: list[str]
    """Of all kinds that there are."""
    queries: list[str]
    keys: list[str]
    layers: list[int]
    heads: list[int]
    weights: list[list[list[list[float]]]]
    sharpest: int
    """Of the layers that are given, the place of the one that looks most sharply."""
    tile: int
    """Tokens along the side of one number."""
    note: str
    grid: Grid | None = None
    """Of a picture: rows and columns of its patches, which are the last of the keys."""
    picture: str | None = None
    """As the model sees it, a PNG in base64."""


class ExplainResponse(ApiResponse):
    """A number for each piece by each method, and how far each method can be trusted. Measures that cannot be taken are null."""

    model: str
    answer: str
    """What is explained, in words."""
    amount: float
    """Its probability or likeness."""
    pieces: list[str]
    values: dict[str, list[float | None]]
    against: str | None
    against_amount: float | None
    against_values: dict[str, list[float | None]] | None
    refused: dict[str, str]
    faithfulness: dict[str, dict[str, float | None]]
    permuted: float | None
    words: list[str]
    """The faithfulness, in sentences."""
    grid: Grid | None = None
    picture: str | None = None


class HealthResponse(ApiResponse):
    status: Literal["ok", "starting", "stopping"]


class DoneEvent(ApiResponse):
    """The last server-sent event of a stream, before [DONE]: the whole answer, or what went wrong."""

    done: Annotated[dict[str, Any], Field(description="as the endpoint answers without stream")]
