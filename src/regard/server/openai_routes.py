"""What OpenAI's clients ask: completions, chat and embeddings, whole or as server-sent events."""

import base64
import math
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.server import openai_types as types
from regard.server import render, request_types
from regard.server.errors import ApiError
from regard.server.verbs import STREAM_RESPONSES, ModelRequest, as_list, json_response
from regard.server.worker import OnToken
from regard.tasks.shared.chat import encode_conversation
from regard.tasks.shared.requests import DecodingTask, SamplingParams, StreamedToken, generate_task

router = APIRouter(prefix="/v1")
DEFAULT_CHAT_TOKENS = 256
"""Tokens of a reply where a client does not say."""


class CompletionParams:
    """How the texts of a request are to be written, and what is told of them."""

    def __init__(self, asked: types.OpenAISamplingRequest, max_tokens: int, kind: str):
        drawn = asked.temperature is None or asked.temperature > 0
        if not drawn and (asked.n or 1) > 1:
            raise ApiError(422, "n: with temperature 0 all texts would be the same", code="invalid", param="n")
        seed = asked.seed if asked.seed is not None else secrets.randbelow(2**53) if drawn else 0
        stops = [] if asked.stop is None else as_list(asked.stop)
        self.manner = SamplingParams(
            max_tokens,
            max(asked.temperature or 1.0, 1e-6) if drawn else None,
            top_p=(asked.top_p or 1.0) if drawn else 1.0,
            stop=tuple(stops),
            seed=seed,
            number=asked.n or 1,
        )
        self.id, self.created, self.asked = f"{kind}-{secrets.token_hex(12)}", int(time.time()), asked
        self.usage = bool(asked.stream_options and asked.stream_options.include_usage)

    def tasks(self, run: Any, prompts: Sequence[Any]) -> list[Callable[[OnToken], DecodingTask]]:
        """One for each text; prompts are texts, or functions that give ids."""

        def begin(place: int, prompt: Any, sample: int) -> Callable[[OnToken], DecodingTask]:
            return lambda tell: generate_task(
                run, prompt() if callable(prompt) else prompt, self.manner, place=place, sample=sample, tell=tell
            )

        return [begin(place, prompt, sample) for place, prompt in enumerate(prompts) for sample in range(self.manner.number)]

    def counted(self, found: Sequence[Any]) -> types.Usage:
        read = sum(one.read for one in found[:: self.manner.number])
        wrote = sum(len(one.words) for one in found)
        return types.Usage(prompt_tokens=read, completion_tokens=wrote, total_tokens=read + wrote)


def finish_reason(found: Any) -> str:
    return "length" if found.cut else "stop"


def log_probabilities(probabilities: Sequence[float]) -> list[float]:
    return [round(math.log(max(p, 1e-38)), 6) for p in probabilities]


@router.post("/completions", response_model=types.CompletionResponse, responses=STREAM_RESPONSES)
async def completions(asked: types.CompletionRequest, request: Request) -> Response:
    asking = ModelRequest.of(request, asked.model, "completions")
    prompts = as_list(asked.prompt)
    if len(prompts) * (asked.n or 1) > request_types.MAX_TEXTS:
        raise ApiError(422, f"n: more than {request_types.MAX_TEXTS} texts in all", code="invalid", param="n")
    wanted = CompletionParams(asked, asked.max_tokens or 16, "cmpl")
    tasks = wanted.tasks(asking.served.run, prompts)

    def chunk(choices: list[types.CompletionChoice], usage: types.Usage | None = None) -> types.CompletionResponse:
        return types.CompletionResponse(
            id=wanted.id, created=wanted.created, model=asking.served.name, choices=choices, usage=usage
        )

    def logprobs(words: Sequence[str], probabilities: Sequence[float], pieces: Sequence[str]) -> types.CompletionLogprobs | None:
        if asked.logprobs is None:
            return None
        offsets = np.cumsum([0, *map(len, pieces)])[:-1].tolist()
        return types.CompletionLogprobs(tokens=list(words), token_logprobs=log_probabilities(probabilities), text_offset=offsets)

    def piece(index: int, told: StreamedToken) -> types.CompletionResponse:
        said = logprobs([told.word], [told.probability], [told.text]) if told.word else None
        return chunk([types.CompletionChoice(index=index, text=told.text, finish_reason=None, logprobs=said)])

    def ended(index: int, found: Any) -> types.CompletionResponse:
        return chunk([types.CompletionChoice(index=index, text="", finish_reason=finish_reason(found))])

    if asked.stream:
        return await asking.events(tasks, piece, lambda found: chunk([], wanted.counted(found)) if wanted.usage else None, ended)
    found = await asking.written(tasks)
    return json_response(
        chunk(
            [
                types.CompletionChoice(
                    index=index,
                    text=(one.text.text if asked.echo else one.text.written),
                    finish_reason=finish_reason(one),
                    logprobs=logprobs(one.words, one.probabilities, one.words),
                )
                for index, one in enumerate(found)
            ],
            wanted.counted(found),
        )
    )


@router.post("/chat/completions", response_model=types.ChatCompletionResponse, responses=STREAM_RESPONSES)
async def chat(asked: types.ChatCompletionRequest, request: Request) -> Response:
    """A reply to a conversation, by a model whose folder has a chat template."""
    asking = ModelRequest.of(request, asked.model, "chat/completions")
    run = asking.served.run
    said = [
        {
            "role": message.role,
            "content": message.content if isinstance(message.content, str) else "".join(part.text for part in message.content),
        }
        for message in asked.messages
    ]
    wanted = CompletionParams(asked, asked.max_completion_tokens or asked.max_tokens or DEFAULT_CHAT_TOKENS, "chatcmpl")
    tasks = wanted.tasks(run, [lambda: encode_conversation(run, said)])

    def chunk(choices: list[dict[str, Any]], usage: types.Usage | None = None) -> dict[str, Any]:
        return {
            "id": wanted.id,
            "object": "chat.completion.chunk",
            "created": wanted.created,
            "model": asking.served.name,
            "choices": choices,
            **({} if usage is None else {"usage": usage.model_dump()}),
        }

    def logprobs(words: Sequence[str], probabilities: Sequence[float]) -> types.ChatLogprobs | None:
        return (
            types.ChatLogprobs(
                content=[
                    types.TokenLogprob(token=word, logprob=value, bytes=list(word.encode()))
                    for word, value in zip(words, log_probabilities(probabilities))
                ]
            )
            if asked.logprobs
            else None
        )

    begun: set[int] = set()

    def piece(index: int, told: StreamedToken) -> dict[str, Any]:
        role = {} if index in begun else {"role": "assistant"}
        begun.add(index)
        known = logprobs([told.word], [told.probability]) if told.word else None
        return chunk(
            [
                {
                    "index": index,
                    "delta": {**role, "content": told.text},
                    "finish_reason": None,
                    "logprobs": None if known is None else known.model_dump(),
                }
            ]
        )

    def ended(index: int, found: Any) -> dict[str, Any]:
        return chunk([{"index": index, "delta": {}, "finish_reason": finish_reason(found), "logprobs": None}])

    if asked.stream:
        return await asking.events(tasks, piece, lambda found: chunk([], wanted.counted(found)) if wanted.usage else None, ended)
    found = await asking.written(tasks)
    usage = wanted.counted(found)
    return json_response(
        types.ChatCompletionResponse(
            id=wanted.id,
            created=wanted.created,
            model=asking.served.name,
            usage=usage,
            choices=[
                types.ChatChoice(
                    index=index,
                    message=types.AssistantMessage(content=one.text.written),
                    finish_reason=finish_reason(one),
                    logprobs=logprobs(one.words, one.probabilities),
                )
                for index, one in enumerate(found)
            ],
        )
    )


@router.post("/embeddings", response_model=types.EmbeddingsResponse)
async def embeddings(asked: types.EmbeddingsRequest, request: Request) -> Response:
    asking = ModelRequest.of(request, asked.model, "embeddings")
    given = await asking.all_given(asked.input, None)
    found, tokens = await asking.of_model(
        lambda run: (render.embed_inputs(run, given, -1, "mean"), render.count_tokens(run, given))
    )
    coded = asked.encoding_format == "base64"
    return json_response(
        types.EmbeddingsResponse(
            model=asking.served.name,
            usage=types.Usage(prompt_tokens=tokens, total_tokens=tokens),
            data=[
                types.EmbeddingObject(
                    index=index,
                    embedding=base64.b64encode(np.array(one.vectors[0], "<f4").tobytes()).decode() if coded else one.vectors[0],
                )
                for index, one in enumerate(found)
            ],
        )
    )
