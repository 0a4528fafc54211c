"""What runs write, one text each, so that it can be written together with others (continuous_batching): translations, captions,
texts that go on from a prompt. What comes out is what `translate`, `caption` and `generate` say."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.batches.image_store import take_pixels
from regard.decoding.batching import output_limit
from regard.decoding.continuous_batching import ContinuousBatcher, DecodingRequest
from regard.decoding.greedy import greedy
from regard.decoding.sampling import Sampler
from regard.decoding.streaming import SamplingParams, TextStreamer
from regard.show.recording import token_labels
from regard.tasks.base import Run, search_settings
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
        return not self.writer.ended


def translate_task(
    run: TranslateRun,
    text: str,
    *,
    place: int = 0,
    tell: StreamCallback | None = None,
    number: int = 1,
    temperature: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    **given: Any,
) -> DecodingTask:
    """The `number` best translations of a text; `place` is that of the text among all that are not empty."""
    settings = search_settings(run.recipe.decode, number, temperature, "hypotheses", **given)
    (ids,) = run.ids([text])
    if not ids:
        return DecodingTask(None, lambda: [Translation("", 0.0, 0.0, [])])
    source = [*run.special_tokens.prefix, *ids, *run.special_tokens.suffix]
    inputs = torch.tensor([source], device=run.device), torch.tensor([len(source)], device=run.device)
    limit = output_limit(len(source), run.recipe.model.max_length, settings.max_tokens)
    request = decoding_request(
        run.tokenizers[1], inputs, limit, settings, tell, number, temperature, place, top_k=top_k, top_p=top_p, seed=seed
    )
    return DecodingTask(request, lambda: run.translations(request.hypotheses))


def caption_task(
    run: CaptionRun,
    picture: ImageInput,
    *,
    tell: StreamCallback | None = None,
    number: int = 1,
    temperature: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    **given: Any,
) -> DecodingTask:
    """The `number` best captions of a picture."""
    settings = search_settings(run.recipe.decode, number, temperature, "captions", **given)
    pixels = take_pixels(run.seen([picture]), np.arange(1)).to(run.device)
    request = decoding_request(
        run.tokenizers[0],
        pixels,
        run.limit(settings.max_tokens),
        settings,
        tell,
        number,
        temperature,
        0,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    return DecodingTask(request, lambda: run.captions(request.hypotheses))


def decoding_request(
    tokenizer: Tokenizer,
    inputs: Any,
    limit: int,
    settings: Any,
    tell: StreamCallback | None,
    number: int,
    temperature: float | None,
    place: int,
    **drawing: Any,
) -> DecodingRequest:
    choose = greedy if temperature is None else Sampler(temperature=temperature, sequence_ids=np.array([place]), **drawing)
    beam = settings.beam if temperature is None else 1
    hear = None if tell is None or beam > 1 else TokenListener(tokenizer, TextStreamer(tokenizer, []), tell).on_token
    return DecodingRequest(inputs, limit, beam=beam, alpha=settings.length_penalty, number=number, choose=choose, on_token=hear)


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
        choose=manner.choose(np.array([sample_index(place, sample)])),
        process=manner.process(),
        on_token=listener.on_token,
    )
    return DecodingTask(
        request,
        lambda: StreamResult(
            generated_text(writer),
            listener.words,
            listener.probabilities,
            len(writer.tokens) >= room - 1 and not hit_stop_string(writer),
            len(ids),
        ),
    )


def hit_stop_string(writer: TextStreamer) -> bool:
    """Whether a stop string was found: it is still held back."""
    return any(writer.pending.startswith(stop) for stop in writer.stops)
