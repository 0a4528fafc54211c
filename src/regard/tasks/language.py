"""A language model: a run that says what comes next, and writes on."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from regard.batches.language_rows import LanguageModelRows, StreamRows
from regard.batches.rows import BidirectionalRows, Rows
from regard.corpus.examples import TextLines
from regard.decoding.continuous_batching import pad_left
from regard.decoding.greedy import decode_steps
from regard.decoding.sampling import SamplingParams
from regard.decoding.streaming import TextStreamer, stream_texts
from regard.errors import UserError
from regard.tasks.base import EvaluationResult, Run
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens

WRITE_AT_ONCE = 64


@dataclass(frozen=True)
class GeneratedText:
    text: str
    """The prompt and what was written after it."""
    generated_text: str
    """What was written after it."""
    score: float
    """Log-probability of its tokens, and of the end mark where it ended by itself."""
    tokens: list[int]
    """What was written; with a stop string, up to the one that it ended in."""


class TextStream(Iterator[str]):
    """A text while it is written: an iterator of its pieces, which may be left at any time."""

    def __init__(self, writer: TextStreamer, pieces: Generator[str]):
        self.writer, self.pieces = writer, pieces
        self.prompt = writer.prompt
        """What the text begins with: the prompt, as the model reads it."""

    def __next__(self) -> str:
        return next(self.pieces)

    def close(self) -> None:
        """Write no further, and let go of what that needed."""
        self.pieces.close()

    @property
    def result(self) -> GeneratedText:
        """As far as it has been written."""
        return generated_text(self.writer)


class LanguageRun(Run):
    does = "writes on"

    def encode(self, examples: TextLines, *, training: bool = False) -> Rows:
        side, marks = self.side(examples.text, self.tokenizers[0], training), self.special_tokens
        if marks.bos == NO_TOKEN:  # as GPT-2 was trained: the end of one text begins the next
            marks = replace(marks, bos=marks.eos)
        if marks.eos == NO_TOKEN:
            raise UserError(f"{self.folder}: nothing marks where a text ends, so that texts cannot be told apart")
        if self.recipe.model.kind == "elmo":
            return BidirectionalRows(side, special_tokens=self.special_tokens)
        if not self.recipe.data.stream:
            return LanguageModelRows(side, special_tokens=marks)
        ends = np.full((len(side.ids), 1), self.special_tokens.eos, side.ids.flat.dtype)
        lines = [part for line, end in zip(range(len(side.ids)), ends) for part in (side.ids[line], end)]
        return StreamRows(np.concatenate(lines), self.recipe.model.max_length, 0 if training else self.recipe.data.overlap)

    def score(self, name: str, examples: TextLines) -> EvaluationResult:
        return EvaluationResult(name, examples, [], {"perplexity": self.perplexity(examples)})

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int = 100,
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        number: int = 1,
        place: int = 0,
    ) -> list[GeneratedText]:
        """Write on from each prompt, the likeliest token each time; with a `temperature`, draw instead, `number` texts a prompt,
        one after another. A text ends before the first of its `stop` strings. What is drawn depends on the seed, the place of
        the prompt among all (`place` is that of the first) and which of its texts it is, not on the batch."""
        manner = SamplingParams(max_tokens, temperature, top_k, top_p, repetition_penalty, stop, seed, number)
        begun = list(product(enumerate(self.begun(prompts, place), start=place), range(number)))
        found: list[GeneratedText] = []
        for start in range(0, len(begun), WRITE_AT_ONCE):
            rows = begun[start : start + WRITE_AT_ONCE]
            writers = [self.writer(ids, manner) for (_, ids), _ in rows]
            for _ in self.write(writers, manner, [sample_index(prompt, sample) for (prompt, _), sample in rows]):
                pass
            found += map(generated_text, writers)
        return found

    def stream(
        self,
        prompt: str,
        *,
        max_tokens: int = 100,
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        sample: int = 0,
        place: int = 0,
    ) -> TextStream:
        """The text that `generate` writes on from a prompt, piece by piece while it is written; of several the one numbered
        `sample`, counted from 0."""
        manner = SamplingParams(max_tokens, temperature, top_k, top_p, repetition_penalty, stop, seed)
        writer = self.writer(self.begun([prompt], place)[0], manner)
        return TextStream(writer, self.write([writer], manner, [sample_index(place, sample)]))

    def write(self, writers: Sequence[TextStreamer], manner: SamplingParams, numbers: Sequence[int]) -> Generator[str]:
        limits = torch.tensor([self.room(len(writer.ids), manner.max_tokens) for writer in writers], device=self.device)
        return stream_texts(
            decode_steps(
                self.model,
                None,
                limits,
                manner.chooser(np.array(numbers)),
                process=manner.logits_processor(),
                prefix=pad_left([writer.ids for writer in writers], self.device),
                special_tokens=self.writing_marks(),
            ),
            writers,
        )

    def writer(self, ids: Sequence[int], manner: SamplingParams) -> TextStreamer:
        return TextStreamer(self.tokenizers[0], ids, manner.stops, self.special_tokens.eos if self.flows else None)

    @property
    def flows(self) -> bool:
        """Whether it has learned from a stream, in which the end mark ends a line and not the text."""
        return bool(self.recipe.data.stream)

    def writing_marks(self) -> SpecialTokens:
        return replace(self.special_tokens, eos=NO_TOKEN) if self.flows else self.special_tokens

    def begun(self, prompts: Sequence[str], place: int = 0) -> list[list[int]]:
        """The prompts as ids, each opened by the begin mark where the vocabulary has one."""
        if not hasattr(self.model, "step"):
            raise UserError(
                f"{self.folder} reads in both directions (model.kind = {self.recipe.model.kind!r}) "
                "and cannot write on; use: regard embed"
            )
        begun = [self.opened(prompt) for prompt in prompts]
        for number, ids in enumerate(begun, start=place + 1):
            if not ids:
                raise UserError("an empty prompt: nothing marks the beginning of a text here; give at least one word")
            if self.most is not None and len(ids) >= self.most:
                raise UserError(
                    f"prompt {number} is {len(ids)} tokens long, and the model takes {self.most} with what it writes; shorten it"
                )
        return begun

    def reading(self, text: str) -> dict[str, Tensor]:
        return {"target": torch.tensor(self.begun([text]))}

    def opened(self, prompt: str) -> list[int]:
        """A prompt as it is read: after the begin mark where there is one, or in a stream after the line before it."""
        if self.flows:
            return [token for line in self.tokenizers[0].encode(prompt.split("\n")) for token in (self.special_tokens.eos, *line)]
        return [
            *([] if self.special_tokens.bos == NO_TOKEN else [self.special_tokens.bos]),
            *self.tokenizers[0].encode([prompt])[0],
        ]

    @property
    def most(self) -> int | None:
        """Tokens it can read; a Transformer has no positions behind its last."""
        return self.recipe.model.max_length if self.recipe.model.kind == "transformer" else None

    def room(self, length: int, max_tokens: int) -> int:
        """Most tokens to write after so many, end mark included."""
        return max_tokens + 1 if self.most is None else min(max_tokens, self.most - length) + 1


def sample_index(prompt: int, sample: int) -> int:
    """What a text is drawn by: the first of a prompt is the only one where one is asked for."""
    return prompt + (sample << 32)


def generated_text(writer: TextStreamer) -> GeneratedText:
    return GeneratedText(writer.prompt + writer.text, writer.text, writer.log_probability, writer.tokens)
