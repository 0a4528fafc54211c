"""What OpenAI's clients send and expect: completions, chat, embeddings. What would change an answer and is not offered here is
refused; what would not is ignored."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from regard.server.request_types import MAX_TEXTS, MAX_TOKENS, Name, Number, Seed, Text, Texts, TopP, Word, reject_surrogates

Stop = Word | Annotated[list[Word], Field(max_length=8)]
Zero = Annotated[float, Field(ge=0, le=0)]


class OpenAIRequest(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, strict=True, frozen=True)
    model: Name
    user: Name | None = None


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    include_usage: bool = False


class OpenAISamplingRequest(OpenAIRequest):
    temperature: Annotated[float, Field(ge=0, le=100)] | None = 1.0
    """0 takes the likeliest token each time."""
    top_p: TopP | None = 1.0
    n: Number | None = 1
    seed: Seed | None = None
    stop: Stop | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    presence_penalty: Zero | None = 0.0
    frequency_penalty: Zero | None = 0.0


class CompletionRequest(OpenAISamplingRequest):
    prompt: Texts
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = 16
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=0, le=0, description="0: of the tokens that were chosen.")] | None = None
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None


class ContentPart(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    type: Literal["text"]
    text: Text


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[ContentPart], Field(max_length=MAX_TEXTS)]


class ChatCompletionRequest(OpenAISamplingRequest):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_TEXTS)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = False


class EmbeddingsRequest(OpenAIRequest):
    input: (
        Annotated[str, Field(min_length=1, max_length=20_000), AfterValidator(reject_surrogates)]
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
    )
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


class CompletionResponse(OpenAIResponse):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class AssistantMessage(OpenAIResponse):
    role: Literal["assistant"] = "assistant"
    content: str


class TokenLogprob(OpenAIResponse):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[Any] = []


class ChatLogprobs(OpenAIResponse):
    content: list[TokenLogprob]


class ChatChoice(OpenAIResponse):
    index: int
    message: AssistantMessage
    finish_reason: Literal["stop", "length"] | None
    logprobs: ChatLogprobs | None = None


class ChatCompletionResponse(OpenAIResponse):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
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
