"""OpenAI-compatible endpoints: completions, chat and embeddings, as one response or as server-sent events."""

import asyncio
import base64
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.decoding.sampling import SamplingParams
from regard.server import openai_types as types
from regard.server import render, request_types
from regard.server.errors import ApiError
from regard.server.jobs import Event, ModelRequest, as_list, json_response
from regard.server.network.json_body import JsonRoute
from regard.server.routes import STREAM_RESPONSES, generation_starts
from regard.server.worker import StartJob
from regard.tasks.language import LanguageRun
from regard.tasks.shared.chat import RENDER_SECONDS, TemplateBusy, encode_rendered, start_rendering
from regard.tasks.shared.requests import DecodingTask, StreamCallback, StreamedToken, StreamResult, generate_task

router = APIRouter(prefix="/v1", route_class=JsonRoute)
DEFAULT_CHAT_TOKENS = 256
"""Tokens of a reply when the client sets no limit."""
MAX_RENDER_WAIT = 2 * RENDER_SECONDS
"""Seconds in which a conversation gets its turn with the chat template, and is rendered."""
Choice = TypeVar("Choice")


class Completion:
    """The sampling parameters of a request, and the id and time that all parts of its response carry."""

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
        self.stream = bool(body.stream)
        self.include_usage = bool(body.stream_options and body.stream_options.include_usage)

    def count_usage(self, results: Sequence[StreamResult]) -> types.Usage:
        prompt_tokens = sum(result.prompt_tokens for result in results[:: self.sampling.number])
        completion_tokens = sum(len(result.words) for result in results)
        return types.Usage(
            prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, total_tokens=prompt_tokens + completion_tokens
        )

    async def respond(
        self,
        model_request: ModelRequest[LanguageRun],
        starts: Sequence[StartJob],
        response: Callable[[list[StreamResult]], types.CompletionHeader],
        chunk: Callable[[list[Choice], types.Usage | None], Event],
        token_choice: Callable[[int, StreamedToken], Choice],
        end_choice: Callable[[int, StreamResult], Choice],
    ) -> Response:
        """Answer with one response, or stream a chunk for every token, at the end of every text, and with the usage."""

        async def usage_event(results: list[StreamResult]) -> Event | None:
            return chunk([], self.count_usage(results)) if self.include_usage else None

        if not self.stream:
            return json_response(response(await model_request.decode(starts)))
        return await model_request.stream(
            starts,
            lambda index, token: chunk([token_choice(index, token)], None),
            usage_event,
            lambda index, result: chunk([end_choice(index, result)], None),
        )


def finish_reason(result: StreamResult) -> Literal["stop", "length"]:
    return "length" if result.cut else "stop"


def log_probabilities(probabilities: Sequence[float]) -> list[float]:
    return [round(math.log(max(p, 1e-38)), 6) for p in probabilities]


@router.post("/completions", response_model=types.CompletionResponse, responses=STREAM_RESPONSES)
async def completions(body: types.CompletionRequest, request: Request) -> Response:
    model_request: ModelRequest[LanguageRun] = ModelRequest.create(request, body.model, "completions")
    prompts = as_list(body.prompt)
    if len(prompts) * (body.n or 1) > request_types.MAX_TEXTS:
        raise ApiError(422, f"n: more than {request_types.MAX_TEXTS} texts in all", code="invalid", param="n")
    completion = Completion(body, body.max_tokens or 16, "cmpl")

    def chunk(choices: list[types.CompletionChoice], usage: types.Usage | None) -> types.CompletionResponse:
        return types.CompletionResponse(
            id=completion.id, created=completion.created, model=model_request.model.name, choices=choices, usage=usage
        )

    def logprobs(tokens: Sequence[str], probabilities: Sequence[float], texts: Sequence[str]) -> types.CompletionLogprobs | None:
        if body.logprobs is None:
            return None
        offsets = np.cumsum([0, *map(len, texts)])[:-1].tolist()
        return types.CompletionLogprobs(tokens=list(tokens), token_logprobs=log_probabilities(probabilities), text_offset=offsets)

    def token_choice(index: int, token: StreamedToken) -> types.CompletionChoice:
        details = logprobs([token.word], [token.probability], [token.text]) if token.word else None
        return types.CompletionChoice(index=index, text=token.text, finish_reason=None, logprobs=details)

    def response(results: list[StreamResult]) -> types.CompletionResponse:
        choices = [
            types.CompletionChoice(
                index=index,
                text=result.text.text if body.echo else result.text.continuation,
                finish_reason=finish_reason(result),
                logprobs=logprobs(result.words, result.probabilities, result.words),
            )
            for index, result in enumerate(results)
        ]
        return chunk(choices, completion.count_usage(results))

    return await completion.respond(
        model_request,
        generation_starts(model_request.run, prompts, completion.sampling),
        response,
        chunk,
        token_choice,
        lambda index, result: types.CompletionChoice(index=index, text="", finish_reason=finish_reason(result)),
    )


def reply_task(
    run: LanguageRun, conversation: str, params: SamplingParams, *, sample: int, callback: StreamCallback | None
) -> DecodingTask:
    """Return the task of replying to a conversation that the template has rendered."""
    return generate_task(run, encode_rendered(run, conversation), params, sample=sample, callback=callback)


async def wait_for_rendering(run: LanguageRun, messages: Sequence[Mapping[str, str]]) -> str:
    """Return the text of a conversation, in no thread of a model; a template that stays busy is an overload."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(start_rendering(run, messages)), MAX_RENDER_WAIT)
    except (TimeoutError, TemplateBusy):
        message = f"the chat template is busy for more than {RENDER_SECONDS:g} seconds; try again later"
        raise ApiError(503, message, code="template_busy", retry_after=MAX_RENDER_WAIT) from None


@router.post("/chat/completions", response_model=types.ChatCompletionResponse, responses=STREAM_RESPONSES)
async def chat(body: types.ChatCompletionRequest, request: Request) -> Response:
    """Reply to a conversation, with a model whose folder has a chat template."""
    model_request: ModelRequest[LanguageRun] = ModelRequest.create(request, body.model, "chat/completions")
    completion = Completion(body, body.max_completion_tokens or body.max_tokens or DEFAULT_CHAT_TOKENS, "chatcmpl")
    first_sent: set[int] = set()

    def chunk(choices: list[Mapping[str, object]], usage: types.Usage | None) -> Event:
        return {
            "id": completion.id,
            "object": "chat.completion.chunk",
            "created": completion.created,
            "model": model_request.model.name,
            "choices": choices,
            **({} if usage is None else {"usage": usage.model_dump()}),
        }

    def token_choice(index: int, token: StreamedToken) -> Mapping[str, object]:
        role = {} if index in first_sent else {"role": "assistant"}
        first_sent.add(index)
        details = chat_logprobs([token.word], [token.probability]) if body.logprobs and token.word else None
        return {
            "index": index,
            "delta": {**role, "content": token.text},
            "finish_reason": None,
            "logprobs": None if details is None else details.model_dump(),
        }

    def response(results: list[StreamResult]) -> types.ChatCompletionResponse:
        return types.ChatCompletionResponse(
            id=completion.id,
            created=completion.created,
            model=model_request.model.name,
            usage=completion.count_usage(results),
            choices=[chat_choice(index, result, bool(body.logprobs)) for index, result in enumerate(results)],
        )

    messages = [{"role": message.role, "content": message.text} for message in body.messages]
    conversation = await wait_for_rendering(model_request.run, messages)
    starts: list[StartJob] = [
        partial(reply_task, model_request.run, conversation, completion.sampling, sample=sample) for sample in range(body.n or 1)
    ]
    return await completion.respond(
        model_request,
        starts,
        response,
        chunk,
        token_choice,
        lambda index, result: {"index": index, "delta": {}, "finish_reason": finish_reason(result), "logprobs": None},
    )


def chat_choice(index: int, result: StreamResult, logprobs: bool) -> types.ChatChoice:
    return types.ChatChoice(
        index=index,
        message=types.AssistantMessage(content=result.text.continuation),
        finish_reason=finish_reason(result),
        logprobs=chat_logprobs(result.words, result.probabilities) if logprobs else None,
    )


def chat_logprobs(tokens: Sequence[str], probabilities: Sequence[float]) -> types.ChatLogprobs:
    pairs = zip(tokens, log_probabilities(probabilities))
    return types.ChatLogprobs(
        content=[types.TokenLogprob(token=token, logprob=value, bytes=list(token.encode())) for token, value in pairs]
    )


@router.post("/embeddings", response_model=types.EmbeddingsResponse)
async def embeddings(body: types.EmbeddingsRequest, request: Request) -> Response:
    """Embed texts: the mean of the last layer's vectors."""
    model_request: ModelRequest[render.EmbeddingRun] = ModelRequest.create(request, body.model, "embeddings")
    inputs = await model_request.read_inputs(body.input, None)
    results, tokens = await model_request.analyse(
        lambda run: (render.embed_inputs(run, inputs), sum(map(len, run.tokenizers[0].encode([str(text) for text in inputs]))))
    )

    def encode(vector: list[float]) -> list[float] | str:
        if body.encoding_format == "float":
            return vector
        return base64.b64encode(np.array(vector, "<f4").tobytes()).decode()

    data = [types.EmbeddingObject(index=index, embedding=encode(result.vectors[0])) for index, result in enumerate(results)]
    usage = types.Usage(prompt_tokens=tokens, total_tokens=tokens)
    return json_response(types.EmbeddingsResponse(model=model_request.model.name, usage=usage, data=data))
