"""Decoding requests: one text each, to be decoded with others by continuous batching (decoding/continuous_batching.py).

The results equal those of `translate`, `caption` and `generate`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from regard.decoding.batching import SearchParams, Sources
from regard.decoding.continuous_batching import ContinuousBatcher, DecodingRequest
from regard.decoding.protocol import require_output
from regard.decoding.sampling import SamplingParams, sample_index
from regard.decoding.streaming import TextStreamer
from regard.tasks.base import Run
from regard.tasks.caption import CaptionRun
from regard.tasks.language import GeneratedText, LanguageRun, generated_text
from regard.tasks.shared.images import ImageInput
from regard.tasks.shared.search import SearchOptions, search_params
from regard.tasks.translate import TranslateRun, Translation
from regard.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class StreamedToken:
    """One more token of a text: the text that is certain now, the token as a word, and its probability."""

    text: str
    word: str
    probability: float


StreamCallback = Callable[[StreamedToken], None]


@dataclass(eq=False)
class DecodingTask:
    """A text to decode: `request` goes to a ContinuousBatcher; when it is done, `result` returns what the run's verb would.

    Without a request there is nothing to compute.
    """

    request: DecodingRequest | None
    result: Callable[[], Any]


@dataclass(frozen=True)
class StreamResult:
    """A generated text, its tokens as words, their probabilities, and whether it was cut at the token limit."""

    text: GeneratedText
    words: list[str]
    probabilities: list[float]
    cut: bool
    prompt_tokens: int


def open_continuous_batch(run: Run) -> ContinuousBatcher:
    """Return a batcher for a run's model."""
    return ContinuousBatcher(run.model, run.device, run._output_special_tokens())


class TokenListener:
    """Receives the tokens of a text as they are decoded, and passes on the text that is certain."""

    def __init__(self, tokenizer: Tokenizer, streamer: TextStreamer, callback: StreamCallback | None):
        self.tokenizer, self.streamer, self.callback = tokenizer, streamer, callback
        self.words: list[str] = []
        self.last = streamer.ids[-1] if streamer.ids else None
        self.probabilities: list[float] = []

    def on_token(self, token: int, log_p: float, active: bool) -> bool:
        """Take a token; return whether to go on."""
        self.streamer.log_probability += log_p
        piece = self.streamer.add(token) if active else self.streamer.end()
        if active:
            self.words += self.tokenizer.labels([token], self.last)
            self.last = token
            self.probabilities.append(math.exp(log_p))
        if self.callback is not None and (active or piece):
            self.callback(StreamedToken(piece, self.words[-1] if active else "", math.exp(log_p)))
        return not self.streamer.finished


def translate_task(
    run: TranslateRun,
    text: str,
    *,
    number: int = 1,
    place: int = 0,
    callback: StreamCallback | None = None,
    **options: Unpack[SearchOptions],
) -> DecodingTask:
    """Return the task of translating a text; `place` is its index among all texts."""
    params = search_params(run.recipe.decode, number, **options)
    ids = run._ids([text])
    if not ids[0]:
        return DecodingTask(None, lambda: [Translation("", 0.0, 0.0, [])])
    request = decoding_request(run.tokenizers[1], run._sources(ids, params.max_tokens), params, place, callback)
    return DecodingTask(request, lambda: run._translations(require_output(request.hypotheses)))


def caption_task(
    run: CaptionRun,
    image: ImageInput,
    *,
    number: int = 1,
    place: int = 0,
    callback: StreamCallback | None = None,
    **options: Unpack[SearchOptions],
) -> DecodingTask:
    """Return the task of captioning an image; `place` is its index among all images and samples."""
    params = search_params(run.recipe.decode, number, **options)
    sources = run._sources(run._images.decode([image]), params.max_tokens)
    request = decoding_request(run.tokenizers[0], sources, params, place, callback)
    return DecodingTask(request, lambda: run._captions(require_output(request.hypotheses)))


def decoding_request(
    tokenizer: Tokenizer, sources: Sources, params: SearchParams, place: int, callback: StreamCallback | None
) -> DecodingRequest:
    """Return the request of the only source."""
    on_token = None if callback is None else TokenListener(tokenizer, TextStreamer(tokenizer, []), callback).on_token
    return DecodingRequest.from_source(sources, params, sequence_id=place, on_token=on_token)


def generate_task(
    run: LanguageRun,
    prompt: str | Sequence[int],
    params: SamplingParams,
    *,
    place: int = 0,
    sample: int = 0,
    callback: StreamCallback | None = None,
) -> DecodingTask:
    """Return the task of continuing a prompt (a text or its tokens) by its index among all prompts and its sample."""
    ids = run._encode_prompts([prompt], place)[0] if isinstance(prompt, str) else list(prompt)
    streamer, limit = run._streamer(ids, params), run._output_limit(len(ids), params.max_tokens)
    listener = TokenListener(run.tokenizers[0], streamer, callback)
    request = DecodingRequest(
        None,
        limit,
        ids,
        choose=params.chooser(np.array([sample_index(place, sample)])),
        process=params.logits_processor(),
        on_token=listener.on_token,
    )

    def result() -> StreamResult:
        cut = len(streamer.tokens) >= limit - 1 and not streamer.hit_stop_string
        return StreamResult(generated_text(streamer), listener.words, listener.probabilities, cut, len(ids))

    return DecodingTask(request, result)
