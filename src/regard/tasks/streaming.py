"""What runs write, one text each, so that it can be written together with others (continuous_batching): translations, captions,
texts that go on from a prompt. What comes out is what `translate`, `caption` and `generate` say."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.decoding.batching import SearchParams, Sources
from regard.decoding.continuous_batching import ContinuousBatcher, DecodingRequest
from regard.decoding.sampling import SamplingParams
from regard.decoding.streaming import TextStreamer
from regard.show.recording import token_labels
from regard.tasks.base import Run, search_params
from regard.tasks.caption import CaptionRun
from regard.tasks.images import ImageInput
from regard.tasks.language import GeneratedText, LanguageRun, generated_text, sample_index
from regard.tasks.translate import TranslateRun, Translation
from regard.tokens.tokenizer import Tokenizer

__all__ = [
    "ContinuousBatcher",
    "DecodingTask",
    "SamplingParams",
    "StreamResult",
    "StreamedToken",
    "Translation",
    "caption_task",
    "generate_task",
    "open_continuous_batch",
    "translate_task",
]


@dataclass(frozen=True)
class StreamedToken:
    """What is certain of a text with one more token, the token as a word, and how likely it was."""

    text: str
    word: str
    probability: float


StreamCallback = Callable[[StreamedToken], None]


@dataclass(eq=False)
class DecodingTask:
    """A text to be written: `request` goes to `Together`, and when it is done `result` has what a run would have said. Without a
    request there is nothing to compute."""

    request: DecodingRequest | None
    result: Callable[[], Any]


@dataclass(frozen=True)
class StreamResult:
    """A text that goes on from a prompt, its tokens as words, how likely each was, and whether it had to end."""

    text: GeneratedText
    words: list[str]
    probabilities: list[float]
    cut: bool
    read: int
    """Tokens of the prompt."""


def open_continuous_batch(run: Run) -> ContinuousBatcher:
    return ContinuousBatcher(run.model, run.device, run.writing_marks())


class TokenListener:
    """Hears the tokens of a text, and tells what is certain of it."""

    def __init__(self, tokenizer: Tokenizer, writer: TextStreamer, tell: StreamCallback | None):
        self.tokenizer, self.writer, self.tell = tokenizer, writer, tell
        self.words: list[str] = []
        self.probabilities: list[float] = []

    def on_token(self, token: int, log_p: float, going: bool) -> bool:
        self.writer.log_probability += log_p
        piece = self.writer.add(token) if going else self.writer.end()
        if going:
            self.words += token_labels(self.tokenizer, [token])
            self.probabilities.append(math.exp(log_p))
        if self.tell is not None and (going or piece):
            self.tell(StreamedToken(piece, self.words[-1] if going else "", math.exp(log_p)))
        return not self.writer.finished


def translate_task(
    run: TranslateRun, text: str, *, place: int = 0, tell: StreamCallback | None = None, **settings: Any
) -> DecodingTask:
    """The best translations of a text, with the settings of `translate`; `place` is that of the text among all that are not
    empty."""
    params = search_params(run.recipe.decode, "hypotheses", **settings)
    ids = run.ids([text])
    if not ids[0]:
        return DecodingTask(None, lambda: [Translation("", 0.0, 0.0, [])])
    request = decoding_request(run.tokenizers[1], run.sources(ids, params.max_tokens), params, place, tell)
    return DecodingTask(request, lambda: run.translations(request.hypotheses))


def caption_task(run: CaptionRun, picture: ImageInput, *, tell: StreamCallback | None = None, **settings: Any) -> DecodingTask:
    """The best captions of a picture, with the settings of `caption`."""
    params = search_params(run.recipe.decode, "captions", **settings)
    request = decoding_request(run.tokenizers[0], run.sources(run.seen([picture]), params.max_tokens), params, 0, tell)
    return DecodingTask(request, lambda: run.captions(request.hypotheses))


def decoding_request(
    tokenizer: Tokenizer, sources: Sources, params: SearchParams, place: int, tell: StreamCallback | None
) -> DecodingRequest:
    on_token = None if tell is None else TokenListener(tokenizer, TextStreamer(tokenizer, []), tell).on_token
    return DecodingRequest.from_source(sources, params, sequence_id=place, on_token=on_token)


def generate_task(
    run: LanguageRun,
    prompt: str | Sequence[int],
    manner: SamplingParams,
    *,
    place: int = 0,
    sample: int = 0,
    tell: StreamCallback | None = None,
) -> DecodingTask:
    """What is written after a prompt, a text or its ids, by its place among all and which of its texts it is."""
    ids = run.begun([prompt], place)[0] if isinstance(prompt, str) else list(prompt)
    writer, room = run.writer(ids, manner), run.room(len(ids), manner.max_tokens)
    listener = TokenListener(run.tokenizers[0], writer, tell)
    request = DecodingRequest(
        None,
        room,
        ids,
        choose=manner.chooser(np.array([sample_index(place, sample)])),
        process=manner.logits_processor(),
        on_token=listener.on_token,
    )
    return DecodingTask(
        request,
        lambda: StreamResult(
            generated_text(writer),
            listener.words,
            listener.probabilities,
            len(writer.tokens) >= room - 1 and not writer.hit_stop_string,
            len(ids),
        ),
    )
