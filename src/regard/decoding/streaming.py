"""How a text is written, and the text itself while it is: pieces that are never taken back, up to the first stop string."""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.decoding.greedy import ChooseToken, DecodingStep, LogitsProcessor, greedy
from regard.decoding.logits import apply_repetition_penalty
from regard.decoding.sampling import Sampler
from regard.errors import UserError
from regard.tokens.detokenizer import Detokenizer
from regard.tokens.tokenizer import Tokenizer

MIN_TEMPERATURE = 1e-6
MAX_REPETITION_PENALTY = 1000
MAX_MAX_TOKENS = 10**9
NEEDS_TEMPERATURE = "says what to draw from, and nothing is drawn without a temperature; add one, such as 1"


@dataclass(frozen=True)
class SamplingParams:
    """The settings of writing, checked."""

    max_tokens: int = 100
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    stop: Sequence[str] = ()
    seed: int = 0
    number: int = 1
    """Texts a prompt."""

    def __post_init__(self) -> None:
        for name, holds, should in [
            ("max_tokens", 1 <= self.max_tokens <= MAX_MAX_TOKENS, f"should be at least 1 and at most {MAX_MAX_TOKENS}"),
            (
                "temperature",
                self.temperature is None or MIN_TEMPERATURE <= self.temperature < math.inf,
                f"should be finite and at least {MIN_TEMPERATURE:f}; without one, the likeliest token is taken each time",
            ),
            ("top_k", self.top_k >= 0, "should be at least 0, which is all tokens"),
            ("top_p", 0 < self.top_p <= 1, "should be more than 0 and at most 1, which is all tokens"),
            ("top_k", self.temperature is not None or self.top_k == 0, NEEDS_TEMPERATURE),
            ("top_p", self.temperature is not None or self.top_p == 1, NEEDS_TEMPERATURE),
            (
                "repetition_penalty",
                1 / MAX_REPETITION_PENALTY <= self.repetition_penalty <= MAX_REPETITION_PENALTY,
                f"should be from {1 / MAX_REPETITION_PENALTY} to {MAX_REPETITION_PENALTY}; 1 is none",
            ),
            ("number", self.number >= 1, "should be at least 1"),
            (
                "number",
                self.number == 1 or self.temperature is not None,
                "without a temperature they would all be the same; add one, such as 1",
            ),
            ("seed", -(2**63) <= self.seed < 2**63, "should have at most 18 digits"),
        ]:
            if not holds:
                raise UserError(f"{name} = {getattr(self, name)}: {should}")
        if not all(self.stops):
            raise UserError("stop = '': an empty text is everywhere; leave it out, or say what should end the text")

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def choose(self, numbers: np.ndarray) -> ChooseToken:
        if self.temperature is None:
            return greedy
        return Sampler(seed=self.seed, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, sequence_ids=numbers)

    def process(self) -> LogitsProcessor | None:
        return None if self.repetition_penalty == 1 else self.penalize

    def penalize(self, logits: Tensor, written: Tensor) -> Tensor:
        return apply_repetition_penalty(logits, written, self.repetition_penalty)


class TextStreamer:
    """One text while its tokens come. White space at its end is kept back, as decoding leaves it out, and so is whatever may be
    the beginning of a stop string."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str] = (), line_end: int | None = None):
        self.ids, self.stops = list(ids), stops
        self.detokenizer = Detokenizer(tokenizer, ids, line_end)
        self.prompt = self.detokenizer.prompt.lstrip()
        self.tokens: list[int] = []
        self.log_probability = 0.0
        self.written, self.pending = "", ""
        self.ended = False

    def add(self, token: int) -> str:
        """The piece of text that is certain with this token."""
        self.tokens.append(token)
        return self.say(self.detokenizer.push(token), more=True)

    def end(self) -> str:
        """The last piece: nothing more comes."""
        return self.say(self.detokenizer.rest(), more=False)

    def say(self, text: str, more: bool) -> str:
        self.pending += text
        if not self.prompt + self.written:
            self.pending = self.pending.lstrip()
        found = min((place for stop in self.stops if (place := self.pending.find(stop)) >= 0), default=None)
        begun = (
            min((partial_stop_start(self.pending, stop) for stop in self.stops), default=len(self.pending))
            if more
            else len(self.pending)
        )
        if found is not None and found <= begun:  # else one that began earlier may still turn out to be the first
            self.ended, size = True, found
        else:
            self.ended, size = not more, len(self.pending[:begun].rstrip())
        piece, self.pending = self.pending[:size], self.pending[size:]
        self.written += piece
        return piece


def partial_stop_start(text: str, stop: str) -> int:
    """Where the end of a text may be the beginning of a stop string; its length where nowhere."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return len(text) - next((size for size in sizes if text.endswith(stop[:size])), 0)


def stream_texts(steps: Iterator[DecodingStep], writers: Sequence[TextStreamer]) -> Generator[str]:
    """Write all texts at once, each piece as it comes; a text that has found its end is not computed any further."""
    for step in steps:
        for place, (row, token, log_p, going) in enumerate(step.each()):
            writer = writers[row]
            writer.log_probability += log_p
            piece = writer.add(token) if going else writer.end()
            if going and writer.ended:
                step.active[place] = False
            if piece:
                yield piece


def pad_prompts(writers: Sequence[TextStreamer], device: torch.device) -> Tensor:
    """What the texts begin with (B, P), short ones filled with -1 on the left."""
    prefix = torch.full((len(writers), max(len(writer.ids) for writer in writers)), -1, device=device)
    for row, writer in zip(prefix, writers):
        row[len(row) - len(writer.ids) :] = torch.tensor(writer.ids)
    return prefix
