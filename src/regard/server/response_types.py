"""The bodies of responses. Results are in the order of the inputs."""

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Grid = Annotated[list[int], Field(min_length=2, max_length=2)]
"""Rows and columns of image patches."""
Result = TypeVar("Result")


class ApiResponse(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ResultsResponse(ApiResponse, Generic[Result]):
    model: str
    results: list[Result]


class ErrorDetail(ApiResponse):
    message: str
    """One line: what is wrong, and the cure."""
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(ApiResponse):
    """The body of every error, in the form that OpenAI's clients expect."""

    error: ErrorDetail


class ModelInfo(ApiResponse):
    """One model and what it can do. `created` and `owned_by` are there for OpenAI's clients."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["regard"] = "regard"
    task: str
    description: str
    """What the model does, such as "translates"."""
    verbs: list[str]
    """Its endpoints under /v1: translate, generate, completions, chat/completions …"""
    inputs: list[Literal["text", "image"]]
    has_attention: bool
    """Whether /v1/attention has something to show."""
    attention_kinds: list[str]
    """cross, encoder, decoder; empty where there is only one."""
    labels: list[str] = []
    """Of a classifier, the first 1,000."""
    tasks: list[str] = []
    """Of a run of several tasks."""
    max_length: int
    """Of the input, in tokens."""
    parameters: int
    device: str
    beam: int | None = None
    """The recipe's default."""
    path: str | None = None
    """The folder or name that the model was opened from; told only to the machine that it is on."""


class ModelsResponse(ApiResponse):
    object: Literal["list"] = "list"
    data: list[ModelInfo]


class ExamplesResponse(ApiResponse):
    """Inputs from the validation set of a model; empty where its data is not on the server."""

    model: str
    text: list[str] = []
    questions: list[str] = []
    """Of each text, for a model that answers questions."""
    images: list[str] = []
    """As the model sees them, PNGs in base64."""
    labels: list[str] = []
    """Captions or labels of images; the first caption is that of the first image."""


class AlignmentResult(ApiResponse):
    """The cross-attention of a translation: the mean over the heads of the sharpest layer."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]
    """One row per target word, one column per source word."""
    name: str
    """The layer and heads."""
    heads: list[list[list[list[float]]]] = []
    """The same of every layer and head; none if they are too many for one response."""


class BeamTreeNode(ApiResponse):
    """A hypothesis of a beam search, extended by one token; `parent` is an index into the list, -1 the root."""

    parent: int
    step: int
    token: str
    log_probability: float
    status: Literal["kept", "ended", "pruned"]
    score: float | None
    on_best_path: bool
    """Whether the output goes through it."""


class HypothesisResult(ApiResponse):
    text: str
    score: float
    log_probability: float


class DecodedResult(HypothesisResult):
    tokens: list[str]
    alternatives: list[HypothesisResult]
    """The next best, where `number` asks for them."""


class TranslationResult(DecodedResult):
    alignment: AlignmentResult | None = None
    beam_tree: list[BeamTreeNode] | None = None


class TranslateResponse(ResultsResponse[TranslationResult]):
    pass


class GeneratedStep(ApiResponse):
    """A generated token and its alternatives."""

    token: str
    probability: float
    alternatives: list[list[str | float]]
    """Token and probability of each."""


class GenerationAttention(ApiResponse):
    """The attention of each generated token."""

    name: str
    """The kind, layer and heads."""
    keys: list[str]
    """The prompt's tokens and the generated ones."""
    first_generated_key: int | None
    """The index of the first generated token among the keys."""
    steps: list[GeneratedStep]
    weights: list[list[float]]
    """One row per step, one column per key."""
    note: str


class GenerationResult(ApiResponse):
    text: str
    """The prompt, as the model reads it, and the continuation."""
    continuation: str
    score: float
    tokens: list[str]
    probabilities: list[float]
    finish_reason: Literal["stop", "length"]
    attention: GenerationAttention | None = None


class GenerateResponse(ResultsResponse[GenerationResult]):
    pass


class NextTokenResponse(ApiResponse):
    """The distribution of the next token: the most probable ones, and the rest in groups of nearly equal logits, so that a client
    can apply a temperature, top-k and top-p to it."""

    model: str
    tokens: list[str]
    log_probabilities: list[float]
    """Of the tokens, most probable first."""
    rest: list[list[float]]
    """The mean log-probability of each group of other tokens, and how many they are."""


class TokenEvent(ApiResponse):
    """A server-sent event of a stream: the text that one more token makes certain, in text `index` of the request."""

    index: int
    text: str
    token: str
    probability: float


class LabelProbability(ApiResponse):
    label: str
    probability: float


class FillResult(ApiResponse):
    text: str
    candidates: list[list[LabelProbability]]
    """For each mask, best first."""


class FillResponse(ResultsResponse[FillResult]):
    pass


class ClassificationResult(ApiResponse):
    labels: list[LabelProbability]
    """Every label, most probable first; empty for a regression."""
    score: float | None = None


class ClassifyResponse(ResultsResponse[ClassificationResult]):
    pass


class TaggingResult(ApiResponse):
    words: list[str]
    labels: list[str]


class TagResponse(ResultsResponse[TaggingResult]):
    pass


class AnswerSpanItem(ApiResponse):
    text: str
    start: int
    end: int
    probability: float


class AnswerResponse(ResultsResponse[AnswerSpanItem]):
    pass


class EmbeddingResult(ApiResponse):
    tokens: list[str]
    vectors: list[list[float]]
    """One vector, or with pool = words one for each word."""


class EmbedResponse(ResultsResponse[EmbeddingResult]):
    pass


class CaptionAttention(ApiResponse):
    """The attention of each word of a caption over the image, as the model sees it."""

    words: list[str]
    grid: Grid
    maps: list[list[list[float]]]
    """One map per word: rows of columns."""
    name: str
    image: str
    """A PNG in base64."""


class CaptionResult(DecodedResult):
    attention: CaptionAttention | None = None


class CaptionResponse(ResultsResponse[CaptionResult]):
    pass


class MatchResponse(ResultsResponse[LabelProbability]):  # every label, best first
    pass


class ImageResult(ApiResponse):
    image: str
    """A PNG in base64."""
    score: float


class DrawResponse(ResultsResponse[ImageResult]):
    pass


class AttentionResponse(ApiResponse):
    """Attention weights by layer, head, query and key; for thousands of tokens, reduced to tiles."""

    model: str
    name: str
    """Of the kind returned."""
    names: list[str]
    """Of all kinds that the model has."""
    queries: list[str]
    keys: list[str]
    layers: list[int]
    heads: list[int]
    weights: list[list[list[list[float]]]]
    sharpest_layer: int
    """The index, among the layers returned, of the one with the lowest mean entropy."""
    tile_size: int
    """Tokens along the side of one tile."""
    note: str
    grid: Grid | None = None
    """For an image; its patches are the last of the keys."""
    image: str | None = None
    """As the model sees it, a PNG in base64."""


class ExplainResponse(ApiResponse):
    """Attributions by several methods, and how faithful each is. Measures that cannot be taken are null."""

    model: str
    target: str
    """The explained output, in words."""
    score: float
    """Its probability or similarity."""
    tokens: list[str]
    """The explained inputs: tokens or patches."""
    attributions: dict[str, list[float | None]]
    alternative: str | None
    alternative_score: float | None
    alternative_attributions: dict[str, list[float | None]] | None
    unavailable: dict[str, str]
    """Methods that were not run, with the reason."""
    faithfulness: dict[str, dict[str, float | None]]
    permutation_effect: float | None
    attention: str
    """Which attention `attention` and the permutation are about: layer and head; empty for a model without attention."""
    unit: str
    """Of the losses in `faithfulness`: nats of log-probability, or cosine similarity."""
    best: str | None
    """The method to believe; null if none does better than random features."""
    verdict: str
    """Which method to believe, and why."""
    summary: list[str]
    """The verdict, the faithfulness of each method ("method: …"), and remarks."""
    grid: Grid | None = None
    image: str | None = None


class HealthResponse(ApiResponse):
    status: Literal["ok", "starting", "stopping"]


class DoneEvent(ApiResponse):
    """The last server-sent event of a stream, before [DONE]: the complete response."""

    done: Annotated[dict[str, object], Field(description="as the endpoint answers without stream")]
