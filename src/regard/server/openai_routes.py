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
from regard.server import render, requests
from regard.server.errors import Refused
from regard.server.verbs import STREAM, Asking, listed, sent
from regard.server.worker import Tell
from regard.tasks.chat import conversation
from regard.tasks.streaming import Manner, Piece, Task, writing

router = APIRouter(prefix="/v1")
LONGEST_REPLY = 256
"""Tokens of a reply where a client does not say."""


class Wanted:
    """How the texts of a request are to be written, and what is told of them."""

    def __init__(self, asked: types.Sampled, max_tokens: int, kind: str):
        drawn = asked.temperature is None or asked.temperature > 0
        if not drawn and (asked.n or 1) > 1:
            raise Refused(422, "n: with temperature 0 all texts would be the same", code="invalid", param="n")
        seed = asked.seed if asked.seed is not None else secrets.randbelow(2**53) if drawn else 0
        stops = [] if asked.stop is None else listed(asked.stop)
        self.manner = Manner(
            max_tokens,
            max(asked.temperature or 1.0, 1e-6) if drawn else None,
            top_p=(asked.top_p or 1.0) if drawn else 1.0,
            stop=tuple(stops),
            seed=seed,
            number=asked.n or 1,
        )
        self.id, self.created, self.asked = f"{kind}-{secrets.token_hex(12)}", int(time.time()), asked
        self.usage = bool(asked.stream_options and asked.stream_options.include_usage)

    def tasks(self, run: Any, prompts: Sequence[Any]) -> list[Callable[[Tell], Task]]:
        """One for each text; prompts are texts, or functions that give ids."""

        def begin(place: int, prompt: Any, sample: int) -> Callable[[Tell], Task]:
            return lambda tell: writing(
                run, prompt() if callable(prompt) else prompt, self.manner, place=place, sample=sample, tell=tell
            )

        return [begin(place, prompt, sample) for place, prompt in enumerate(prompts) for sample in range(self.manner.number)]

    def counted(self, found: Sequence[Any]) -> types.Usage:
        read = sum(one.read for one in found[:: self.manner.number])
        wrote = sum(len(one.words) for one in found)
        return types.Usage(prompt_tokens=read, completion_tokens=wrote, total_tokens=read + wrote)


def reason(found: Any) -> str:
    return "length" if found.cut else "stop"


def logs(probabilities: Sequence[float]) -> list[float]:
    return [round(math.log(max(p, 1e-38)), 6) for p in probabilities]


@router.post("/completions", response_model=types.Completed, responses=STREAM)
async def completions(asked: types.Completion, request: Request) -> Response:
    asking = Asking.of(request, asked.model, "completions")
    prompts = listed(asked.prompt)
    if len(prompts) * (asked.n or 1) > requests.MOST_TEXTS:
        raise Refused(422, f"n: more than {requests.MOST_TEXTS} texts in all", code="invalid", param="n")
    wanted = Wanted(asked, asked.max_tokens or 16, "cmpl")
    tasks = wanted.tasks(asking.served.run, prompts)

    def chunk(choices: list[types.CompletionChoice], usage: types.Usage | None = None) -> types.Completed:
        return types.Completed(id=wanted.id, created=wanted.created, model=asking.served.name, choices=choices, usage=usage)

    def logprobs(words: Sequence[str], probabilities: Sequence[float], pieces: Sequence[str]) -> types.CompletionLogprobs | None:
        if asked.logprobs is None:
            return None
        offsets = np.cumsum([0, *map(len, pieces)])[:-1].tolist()
        return types.CompletionLogprobs(tokens=list(words), token_logprobs=logs(probabilities), text_offset=offsets)

    def piece(index: int, told: Piece) -> types.Completed:
        said = logprobs([told.word], [told.probability], [told.text]) if told.word else None
        return chunk([types.CompletionChoice(index=index, text=told.text, finish_reason=None, logprobs=said)])

    def ended(index: int, found: Any) -> types.Completed:
        return chunk([types.CompletionChoice(index=index, text="", finish_reason=reason(found))])

    if asked.stream:
        return await asking.events(tasks, piece, lambda found: chunk([], wanted.counted(found)) if wanted.usage else None, ended)
    found = await asking.written(tasks)
    return sent(
        chunk(
            [
                types.CompletionChoice(
                    index=index,
                    text=(one.text.text if asked.echo else one.text.written),
                    finish_reason=reason(one),
                    logprobs=logprobs(one.words, one.probabilities, one.words),
                )
                for index, one in enumerate(found)
            ],
            wanted.counted(found),
        )
    )


@router.post("/chat/completions", response_model=types.Chatted, responses=STREAM)
async def chat(asked: types.Chat, request: Request) -> Response:
    """A reply to a conversation, by a model whose folder has a chat template."""
    asking = Asking.of(request, asked.model, "chat/completions")
    run = asking.served.run
    said = [
        {
            "role": message.role,
            "content": message.content if isinstance(message.content, str) else "".join(part.text for part in message.content),
        }
        for message in asked.messages
    ]
    wanted = Wanted(asked, asked.max_completion_tokens or asked.max_tokens or LONGEST_REPLY, "chatcmpl")
    tasks = wanted.tasks(run, [lambda: conversation(run, said)])

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
                    for word, value in zip(words, logs(probabilities))
                ]
            )
            if asked.logprobs
            else None
        )

    begun: set[int] = set()

    def piece(index: int, told: Piece) -> dict[str, Any]:
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
        return chunk([{"index": index, "delta": {}, "finish_reason": reason(found), "logprobs": None}])

    if asked.stream:
        return await asking.events(tasks, piece, lambda found: chunk([], wanted.counted(found)) if wanted.usage else None, ended)
    found = await asking.written(tasks)
    usage = wanted.counted(found)
    return sent(
        types.Chatted(
            id=wanted.id,
            created=wanted.created,
            model=asking.served.name,
            usage=usage,
            choices=[
                types.ChatChoice(
                    index=index,
                    message=types.Reply(content=one.text.written),
                    finish_reason=reason(one),
                    logprobs=logprobs(one.words, one.probabilities),
                )
                for index, one in enumerate(found)
            ],
        )
    )


@router.post("/embeddings", response_model=types.EmbeddingList)
async def embeddings(asked: types.Embeddings, request: Request) -> Response:
    asking = Asking.of(request, asked.model, "embeddings")
    given = await asking.all_given(asked.input, None)
    found, tokens = await asking.of_model(lambda run: (render.embedded(run, given, -1, "mean"), render.count_tokens(run, given)))
    coded = asked.encoding_format == "base64"
    return sent(
        types.EmbeddingList(
            model=asking.served.name,
            usage=types.Usage(prompt_tokens=tokens, total_tokens=tokens),
            data=[
                types.EmbeddingItem(
                    index=index,
                    embedding=base64.b64encode(np.array(one.vectors[0], "<f4").tobytes()).decode() if coded else one.vectors[0],
                )
                for index, one in enumerate(found)
            ],
        )
    )
