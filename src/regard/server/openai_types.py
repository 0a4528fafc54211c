"""Requests and responses of OpenAI's API: completions, chat and embeddings, with OpenAI's field names. An
unsupported field that would change the result is rejected; one that would not is ignored."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from regard.server.request_types import (
    MAX_TEXT_LENGTH,
    MAX_TEXTS,
    Name,
    Number,
    Seed,
    Text,
    Texts,
    Tokens,
    TopP,
    Word,
    reject_surrogates,
)

Zero = Annotated[float, Field(ge=0, le=0)]
NonEmptyText = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_LENGTH), AfterValidator(reject_surrogates)]


class OpenAIType(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, strict=True, frozen=True)


class OpenAIRequest(OpenAIType):
    model: Name
    user: Name | None = None


class StreamOptions(OpenAIType):
    include_usage: bool = False


class OpenAISamplingRequest(OpenAIRequest):
    temperature: Annotated[float, Field(ge=0, le=100)] | None = 1.0
    """0 is greedy decoding."""
    top_p: TopP | None = 1.0
    n: Number | None = 1
    seed: Seed | None = None
    stop: Word | Annotated[list[Word], Field(max_length=8)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    presence_penalty: Zero | None = 0.0
    frequency_penalty: Zero | None = 0.0


class CompletionRequest(OpenAISamplingRequest):
    prompt: Texts
    max_tokens: Tokens | None = 16
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=0, le=0, description="0: of the sampled tokens only.")] | None = None
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None


class ContentPart(OpenAIType):
    type: Literal["text"]
    text: Text


class ChatMessage(OpenAIType):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[ContentPart], Field(max_length=MAX_TEXTS)]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatCompletionRequest(OpenAISamplingRequest):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_TEXTS)]
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = False


class EmbeddingsRequest(OpenAIRequest):
    input: NonEmptyText | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
    encoding_format: Literal["float", "base64"] = "float"


class OpenAIResponse(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Usage(OpenAIResponse):
    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int


class CompletionLogprobs(OpenAIResponse):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: None = None
    text_offset: list[int]


class CompletionChoice(OpenAIResponse):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: CompletionLogprobs | None = None


class CompletionHeader(OpenAIResponse):
    id: str
    object: str
    created: int
    model: str


class CompletionResponse(CompletionHeader):
    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: Usage | None = None


class AssistantMessage(OpenAIResponse):
    role: Literal["assistant"] = "assistant"
    content: str


class TokenLogprob(OpenAIResponse):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[object] = []


class ChatLogprobs(OpenAIResponse):
    content: list[TokenLogprob]


class ChatChoice(OpenAIResponse):
    index: int
    message: AssistantMessage
    finish_reason: Literal["stop", "length"] | None
    logprobs: ChatLogprobs | None = None


class ChatCompletionResponse(CompletionHeader):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage


class EmbeddingObject(OpenAIResponse):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingsResponse(OpenAIResponse):
    object: Literal["list"] = "list"
    model: str
    data: list[EmbeddingObject]
    usage: Usage
