"""What runs write, one text each, so that it can be written together with others (decoding/continuous_batching.py): translations, captions,
texts that go on from a prompt. What comes out is what `translate`, `caption` and `generate` say."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.batches.image_store import take
from regard.decoding.batching import limit_of
from regard.decoding.continuous_batching import Request, Together
from regard.decoding.greedy import greedy
from regard.decoding.sampling import Sampler
from regard.decoding.streaming import Manner, Writer
from regard.show.recording import spelled
from regard.tasks.base import Run, searching
from regard.tasks.caption import CaptionRun
from regard.tasks.images import Picture
from regard.tasks.language import LanguageRun, Text, sample_number, written
from regard.tasks.translate import Translation, Translator
from regard.tokens.tokenizer import Tokenizer

__all__ = ["Manner", "Piece", "Task", "Together", "Translation", "Wrote", "captioning", "together", "translating", "writing"]


@dataclass(frozen=True)
class Piece:
    """What is certain of a text with one more token, the token as a word, and how likely it was."""

    text: str
    word: str
    probability: float


Tell = Callable[[Piece], None]


@dataclass(eq=False)
class Task:
    """A text to be written: `request` goes to `Together`, and when it is done `result` has what a run would have said. Without a
    request there is nothing to compute."""

    request: Request | None
    result: Callable[[], Any]


@dataclass(frozen=True)
class Wrote:
    """A text that goes on from a prompt, its tokens as words, how likely each was, and whether it had to end."""

    text: Text
    words: list[str]
    probabilities: list[float]
    cut: bool
    read: int
    """Tokens of the prompt."""


def together(run: Run) -> Together:
    return Together(run.model, run.device, run.writing_marks())


class Listener:
    """Hears the tokens of a text, and tells what is certain of it."""

    def __init__(self, tokenizer: Tokenizer, writer: Writer, tell: Tell | None):
        self.tokenizer, self.writer, self.tell = tokenizer, writer, tell
        self.words: list[str] = []
        self.probabilities: list[float] = []

    def hear(self, token: int, log_p: float, going: bool) -> bool:
        self.writer.log_probability += log_p
        piece = self.writer.add(token) if going else self.writer.end()
        if going:
            self.words += spelled(self.tokenizer, [token])
            self.probabilities.append(math.exp(log_p))
        if self.tell is not None and (going or piece):
            self.tell(Piece(piece, self.words[-1] if going else "", math.exp(log_p)))
        return not self.writer.ended


def translating(
    run: Translator,
    text: str,
    *,
    place: int = 0,
    tell: Tell | None = None,
    number: int = 1,
    temperature: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    **given: Any,
) -> Task:
    """The `number` best translations of a text; `place` is that of the text among all that are not empty."""
    settings = searching(run.recipe.decode, number, temperature, "hypotheses", **given)
    (ids,) = run.ids([text])
    if not ids:
        return Task(None, lambda: [Translation("", 0.0, 0.0, [])])
    source = [*run.marks.before, *ids, *run.marks.after]
    inputs = torch.tensor([source], device=run.device), torch.tensor([len(source)], device=run.device)
    limit = limit_of(len(source), run.recipe.model.max_length, settings.max_tokens)
    request = spoken(
        run.tokenizers[1], inputs, limit, settings, tell, number, temperature, place, top_k=top_k, top_p=top_p, seed=seed
    )
    return Task(request, lambda: run.translations(request.found))


def captioning(
    run: CaptionRun,
    picture: Picture,
    *,
    tell: Tell | None = None,
    number: int = 1,
    temperature: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    **given: Any,
) -> Task:
    """The `number` best captions of a picture."""
    settings = searching(run.recipe.decode, number, temperature, "captions", **given)
    pixels = take(run.seen([picture]), np.arange(1)).to(run.device)
    request = spoken(
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
    return Task(request, lambda: run.captions(request.found))


def spoken(
    tokenizer: Tokenizer,
    inputs: Any,
    limit: int,
    settings: Any,
    tell: Tell | None,
    number: int,
    temperature: float | None,
    place: int,
    **drawing: Any,
) -> Request:
    choose = greedy if temperature is None else Sampler(temperature=temperature, numbers=np.array([place]), **drawing)
    beam = settings.beam if temperature is None else 1
    hear = None if tell is None or beam > 1 else Listener(tokenizer, Writer(tokenizer, []), tell).hear
    return Request(inputs, limit, beam=beam, alpha=settings.length_penalty, number=number, choose=choose, hear=hear)


def writing(
    run: LanguageRun, prompt: str | Sequence[int], manner: Manner, *, place: int = 0, sample: int = 0, tell: Tell | None = None
) -> Task:
    """What is written after a prompt, a text or its ids, by its place among all and which of its texts it is."""
    ids = run.begun([prompt], place)[0] if isinstance(prompt, str) else list(prompt)
    writer, room = run.writer(ids, manner), run.room(len(ids), manner.max_tokens)
    listener = Listener(run.tokenizers[0], writer, tell)
    request = Request(
        None,
        room,
        ids,
        choose=manner.choose(np.array([sample_number(place, sample)])),
        process=manner.process(),
        hear=listener.hear,
    )
    return Task(
        request,
        lambda: Wrote(
            written(writer),
            listener.words,
            listener.probabilities,
            len(writer.tokens) >= room - 1 and not stopped(writer),
            len(ids),
        ),
    )


def stopped(writer: Writer) -> bool:
    """Whether a stop string was found: it is still held back."""
    return any(writer.held.startswith(stop) for stop in writer.stops)
