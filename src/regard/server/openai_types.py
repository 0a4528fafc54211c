"""What OpenAI's clients send and expect: completions, chat, embeddings. What would change an answer and is not offered here is
refused; what would not is ignored."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from regard.server.requests import MOST_TEXTS, MOST_TOKENS, Name, Number, Seed, Text, Texts, TopP, Word, without_surrogates

Stop = Word | Annotated[list[Word], Field(max_length=8)]
Zero = Annotated[float, Field(ge=0, le=0)]


class Sent(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, strict=True, frozen=True)
    model: Name
    user: Name | None = None


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    include_usage: bool = False


class Sampled(Sent):
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


class Completion(Sampled):
    prompt: Texts
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = 16
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=0, le=0, description="0: of the tokens that were chosen.")] | None = None
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None


class Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    type: Literal["text"]
    text: Text


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[Part], Field(max_length=MOST_TEXTS)]


class Chat(Sampled):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_TEXTS)]
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    logprobs: bool | None = False


class Embeddings(Sent):
    input: (
        Annotated[str, Field(min_length=1, max_length=20_000), AfterValidator(without_surrogates)]
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]
    )
    encoding_format: Literal["float", "base64"] = "float"


class Answered(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Usage(Answered):
    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int


class CompletionLogprobs(Answered):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: None = None
    text_offset: list[int]


class CompletionChoice(Answered):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: CompletionLogprobs | None = None


class Completed(Answered):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class Reply(Answered):
    role: Literal["assistant"] = "assistant"
    content: str


class TokenLogprob(Answered):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[Any] = []


class ChatLogprobs(Answered):
    content: list[TokenLogprob]


class ChatChoice(Answered):
    index: int
    message: Reply
    finish_reason: Literal["stop", "length"] | None
    logprobs: ChatLogprobs | None = None


class Chatted(Answered):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class EmbeddingItem(Answered):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(Answered):
    object: Literal["list"] = "list"
    model: str
    data: list[EmbeddingItem]
    usage: Usage
