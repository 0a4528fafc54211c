"""OpenAI-compatible endpoints: completions, chat and embeddings, as one response or as server-sent events."""

import base64
import math
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.server import openai_types as types
from regard.server import render, request_types
from regard.server.errors import ApiError
from regard.server.jobs import ModelRequest, StartDecoding, as_list, json_response
from regard.server.routes import STREAM_RESPONSES
from regard.tasks.language import LanguageRun
from regard.tasks.shared.chat import encode_conversation
from regard.tasks.shared.requests import SamplingParams, StreamedToken, StreamResult, generate_task

router = APIRouter(prefix="/v1")
DEFAULT_CHAT_TOKENS = 256
"""Tokens of a reply when the client sets no limit."""
Prompt = str | Callable[[], list[int]]


class CompletionParams:
    """The sampling parameters of a request, and the id and time that all its chunks carry."""

    def __init__(self, body: types.OpenAISamplingRequest, max_tokens: int, id_prefix: str):
        samples = body.temperature is None or body.temperature > 0
        if not samples and (body.n or 1) > 1:
            raise ApiError(422, "n: with temperature 0 all texts would be the same", code="invalid", param="n")
        seed = body.seed if body.seed is not None else secrets.randbelow(2**53) if samples else 0
        self.sampling = SamplingParams(
            max_tokens,
            max(body.temperature or 1.0, 1e-6) if samples else None,
            top_p=(body.top_p or 1.0) if samples else 1.0,
            stop=() if body.stop is None else tuple(as_list(body.stop)),
            seed=seed,
            number=body.n or 1,
        )
        self.id, self.created = f"{id_prefix}-{secrets.token_hex(12)}", int(time.time())
        self.include_usage = bool(body.stream_options and body.stream_options.include_usage)

    def starts(self, run: LanguageRun, prompts: Sequence[Prompt]) -> list[StartDecoding]:
        """Return one function per text; a prompt is a text, or a function that returns ids."""

        def start(place: int, prompt: Prompt, sample: int) -> StartDecoding:
            return lambda on_token: generate_task(
                run, prompt() if callable(prompt) else prompt, self.sampling, place=place, sample=sample, callback=on_token
            )

        return [start(place, prompt, sample) for place, prompt in enumerate(prompts) for sample in range(self.sampling.number)]

    def count_usage(self, results: Sequence[StreamResult]) -> types.Usage:
        prompt_tokens = sum(result.prompt_tokens for result in results[:: self.sampling.number])
        completion_tokens = sum(len(result.words) for result in results)
        return types.Usage(
            prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, total_tokens=prompt_tokens + completion_tokens
        )


def finish_reason(result: StreamResult) -> Literal["stop", "length"]:
    return "length" if result.cut else "stop"


def log_probabilities(probabilities: Sequence[float]) -> list[float]:
    return [round(math.log(max(p, 1e-38)), 6) for p in probabilities]


@router.post("/completions", response_model=types.CompletionResponse, responses=STREAM_RESPONSES)
async def completions(body: types.CompletionRequest, request: Request) -> Response:
    model_request = ModelRequest.create(request, body.model, "completions")
    prompts = as_list(body.prompt)
    if len(prompts) * (body.n or 1) > request_types.MAX_TEXTS:
        raise ApiError(422, f"n: more than {request_types.MAX_TEXTS} texts in all", code="invalid", param="n")
    params = CompletionParams(body, body.max_tokens or 16, "cmpl")
    starts = params.starts(cast(LanguageRun, model_request.model.run), prompts)

    def chunk(choices: list[types.CompletionChoice], usage: types.Usage | None = None) -> types.CompletionResponse:
        return types.CompletionResponse(
            id=params.id, created=params.created, model=model_request.model.name, choices=choices, usage=usage
        )

    def logprobs(tokens: Sequence[str], probabilities: Sequence[float], texts: Sequence[str]) -> types.CompletionLogprobs | None:
        if body.logprobs is None:
            return None
        offsets = np.cumsum([0, *map(len, texts)])[:-1].tolist()
        return types.CompletionLogprobs(tokens=list(tokens), token_logprobs=log_probabilities(probabilities), text_offset=offsets)

    def token_event(index: int, token: StreamedToken) -> types.CompletionResponse:
        details = logprobs([token.word], [token.probability], [token.text]) if token.word else None
        return chunk([types.CompletionChoice(index=index, text=token.text, finish_reason=None, logprobs=details)])

    def end_event(index: int, result: StreamResult) -> types.CompletionResponse:
        return chunk([types.CompletionChoice(index=index, text="", finish_reason=finish_reason(result))])

    def usage_event(results: list[StreamResult]) -> types.CompletionResponse | None:
        return chunk([], params.count_usage(results)) if params.include_usage else None

    if body.stream:
        return await model_request.stream(starts, token_event, usage_event, end_event)
    results = await model_request.decode(starts)
    choices = [
        types.CompletionChoice(
            index=index,
            text=result.text.text if body.echo else result.text.continuation,
            finish_reason=finish_reason(result),
            logprobs=logprobs(result.words, result.probabilities, result.words),
        )
        for index, result in enumerate(results)
    ]
    return json_response(chunk(choices, params.count_usage(results)))


@router.post("/chat/completions", response_model=types.ChatCompletionResponse, responses=STREAM_RESPONSES)
async def chat(body: types.ChatCompletionRequest, request: Request) -> Response:
    """Reply to a conversation, with a model whose folder has a chat template."""
    model_request = ModelRequest.create(request, body.model, "chat/completions")
    run = cast(LanguageRun, model_request.model.run)
    messages = [
        {
            "role": message.role,
            "content": message.content if isinstance(message.content, str) else "".join(part.text for part in message.content),
        }
        for message in body.messages
    ]
    params = CompletionParams(body, body.max_completion_tokens or body.max_tokens or DEFAULT_CHAT_TOKENS, "chatcmpl")
    starts = params.starts(run, [lambda: encode_conversation(run, messages)])

    def chunk(choices: list[dict[str, Any]], usage: types.Usage | None = None) -> dict[str, Any]:
        return {
            "id": params.id,
            "object": "chat.completion.chunk",
            "created": params.created,
            "model": model_request.model.name,
            "choices": choices,
            **({} if usage is None else {"usage": usage.model_dump()}),
        }

    def logprobs(tokens: Sequence[str], probabilities: Sequence[float]) -> types.ChatLogprobs | None:
        if not body.logprobs:
            return None
        pairs = zip(tokens, log_probabilities(probabilities))
        return types.ChatLogprobs(
            content=[types.TokenLogprob(token=token, logprob=value, bytes=list(token.encode())) for token, value in pairs]
        )

    first_sent: set[int] = set()

    def token_event(index: int, token: StreamedToken) -> dict[str, Any]:
        role = {} if index in first_sent else {"role": "assistant"}
        first_sent.add(index)
        details = logprobs([token.word], [token.probability]) if token.word else None
        choice = {
            "index": index,
            "delta": {**role, "content": token.text},
            "finish_reason": None,
            "logprobs": None if details is None else details.model_dump(),
        }
        return chunk([choice])

    def end_event(index: int, result: StreamResult) -> dict[str, Any]:
        return chunk([{"index": index, "delta": {}, "finish_reason": finish_reason(result), "logprobs": None}])

    def usage_event(results: list[StreamResult]) -> dict[str, Any] | None:
        return chunk([], params.count_usage(results)) if params.include_usage else None

    if body.stream:
        return await model_request.stream(starts, token_event, usage_event, end_event)
    results = await model_request.decode(starts)
    choices = [
        types.ChatChoice(
            index=index,
            message=types.AssistantMessage(content=result.text.continuation),
            finish_reason=finish_reason(result),
            logprobs=logprobs(result.words, result.probabilities),
        )
        for index, result in enumerate(results)
    ]
    return json_response(
        types.ChatCompletionResponse(
            id=params.id,
            created=params.created,
            model=model_request.model.name,
            usage=params.count_usage(results),
            choices=choices,
        )
    )


@router.post("/embeddings", response_model=types.EmbeddingsResponse)
async def embeddings(body: types.EmbeddingsRequest, request: Request) -> Response:
    """Embed texts: the mean of the last layer's vectors."""
    model_request = ModelRequest.create(request, body.model, "embeddings")
    inputs = await model_request.read_inputs(body.input, None)
    results, tokens = await model_request.analyse(
        lambda run: (render.embed_inputs(run, inputs, -1, "mean"), render.count_tokens(run, inputs))
    )

    def encode(vector: list[float]) -> list[float] | str:
        if body.encoding_format == "float":
            return vector
        return base64.b64encode(np.array(vector, "<f4").tobytes()).decode()

    data = [types.EmbeddingObject(index=index, embedding=encode(result.vectors[0])) for index, result in enumerate(results)]
    usage = types.Usage(prompt_tokens=tokens, total_tokens=tokens)
    return json_response(types.EmbeddingsResponse(model=model_request.model.name, usage=usage, data=data))
