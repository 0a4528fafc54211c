"""Language modelling: predict the next token, generate text from a prompt."""

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Literal, Self, TypedDict, Unpack, overload

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from regard.batches.language_rows import LanguageModelRows, StreamRows
from regard.batches.rows import BidirectionalRows, Rows
from regard.corpus.examples import TextLines
from regard.decoding.batching import batches_by_length
from regard.decoding.continuous_batching import pad_left
from regard.decoding.greedy import decode_steps
from regard.decoding.protocol import NO_OUTPUT
from regard.decoding.sampling import SamplingParams, sample_index
from regard.decoding.streaming import TextStreamer, stream_texts
from regard.errors import UserError
from regard.models.gpt import Gpt
from regard.models.recurrent_language import Elmo, RecurrentLanguageModel
from regard.recipe import (
    DecoderModel,
    LanguageModel,
    LanguageTraining,
    Recipe,
    RecurrentDecoderModel,
    TextData,
    require_fixed_split,
)
from regard.tasks.base import Run
from regard.tasks.shared.embedding import embed_texts
from regard.tasks.shared.one_or_many import best_or_ranked
from regard.tasks.starters.text_starters import language_recipe
from regard.tasks.task import GENERATED_MISUSE, TEXT_LIMITS, EvaluationResult, Task, TaskCard
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens

GENERATE_BATCH = 64


class LanguageRecipe(Recipe):
    """Predict the next token of a text."""

    task: Literal["language"] = "language"
    data: TextData
    model: LanguageModel = RecurrentDecoderModel()
    train: LanguageTraining = LanguageTraining()

    @model_validator(mode="after")
    def check_data(self) -> Self:
        if self.data.overlap >= self.model.max_length:
            raise ValueError(
                f"data.overlap = {self.data.overlap} leaves nothing of a window of model.max_length = "
                f"{self.model.max_length} tokens; lower it"
            )
        if self.data.pack and self.model.kind != "transformer":
            raise ValueError(
                f"data.pack: a model of kind {self.model.kind!r} would read on from one line into the next; "
                "set model.kind = 'transformer'"
            )
        if self.model.kind == "elmo":
            require_fixed_split(self)
        return self

    @model_validator(mode="after")
    def check_regularization(self) -> Self:
        if (name := self.train.regularize.recurrent_setting()) and self.model.kind != "recurrent":
            raise ValueError(
                f"train.regularize.{name}: a model of kind {self.model.kind!r} does not have it; leave it out, or set "
                "model.kind = 'recurrent'"
            )
        return self


@dataclass(frozen=True)
class GeneratedText:
    """A prompt and its continuation."""

    text: str
    """The prompt and the continuation."""
    continuation: str
    score: float
    """Log-probability of the generated tokens, with that of the end token if the model ended the text."""
    tokens: list[int]
    """The generated tokens; with a stop string, up to the token that completed it."""

    def __str__(self) -> str:
        return self.text


class SamplingOptions(TypedDict, total=False):
    """How to generate a text: the fields of `SamplingParams` that both `generate` and `stream` take."""

    max_tokens: int
    temperature: float | None
    top_k: int
    top_p: float
    repetition_penalty: float
    stop: str | Sequence[str]
    seed: int


class TextStream(Iterator[str]):
    """A text while it is generated: an iterator of its pieces, which may be closed at any time."""

    def __init__(self, streamer: TextStreamer, pieces: Generator[str]):
        self._streamer, self._pieces = streamer, pieces
        self.prompt = streamer.prompt
        """The prompt as the model reads it."""

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop generating, and free what it needed."""
        self._pieces.close()

    @property
    def result(self) -> GeneratedText:
        """The text generated so far."""
        return generated_text(self._streamer)


class LanguageRun(Run):
    """A language model."""

    embed = embed_texts

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompts: str, *, number: None = None, place: int = 0, **options: Unpack[SamplingOptions]
    ) -> GeneratedText: ...
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompts: str, *, number: int, place: int = 0, **options: Unpack[SamplingOptions]
    ) -> list[GeneratedText]: ...
    @overload
    def generate(
        self, prompts: Iterable[str], *, number: None = None, place: int = 0, **options: Unpack[SamplingOptions]
    ) -> list[GeneratedText]: ...
    @overload
    def generate(
        self, prompts: Iterable[str], *, number: int, place: int = 0, **options: Unpack[SamplingOptions]
    ) -> list[list[GeneratedText]]: ...
    def generate(
        self, prompts: str | Iterable[str], *, number: int | None = None, place: int = 0, **options: Unpack[SamplingOptions]
    ) -> GeneratedText | list[GeneratedText] | list[list[GeneratedText]]:
        """Continue a prompt, or each prompt of a list, greedily; with a `temperature`, by sampling.

        With a `number`, a list of so many samples. A text ends before the first of its `stop` strings. A sample depends on the
        seed, the index of the prompt among all prompts (`place` is that of the first) and the number of the sample, not on the
        batch. Options: max_tokens, temperature, top_k, top_p, repetition_penalty, stop, seed.
        """
        params = SamplingParams(**options, number=1 if number is None else number)
        return best_or_ranked(prompts, number, lambda several: self._generate(several, params, place))

    def _generate(self, prompts: Sequence[str], params: SamplingParams, place: int = 0) -> list[list[GeneratedText]]:
        """Return `params.number` texts of each prompt."""
        rows = list(product(enumerate(self._encode_prompts(prompts, place), start=place), range(params.number)))
        streamers = [self._streamer(ids, params) for (_, ids), _ in rows]
        samples = [sample_index(prompt, sample) for (prompt, _), sample in rows]
        lengths = [len(streamer.ids) for streamer in streamers]
        for batch in batches_by_length(lengths, GENERATE_BATCH * max(lengths, default=1)):
            for _ in self._stream([streamers[i] for i in batch], params, [samples[i] for i in batch]):
                pass
        texts = iter([generated_text(streamer) for streamer in streamers])
        return [list(islice(texts, params.number)) for _ in prompts]

    def stream(
        self,
        prompt: str,
        *,
        sample: int = 0,
        place: int = 0,
        **options: Unpack[SamplingOptions],
    ) -> TextStream:
        """Return the text that `generate` gives for a prompt, piece by piece while it is generated.

        Of several samples, the one numbered `sample`, counted from 0.
        """
        params = SamplingParams(**options)
        streamer = self._streamer(self._encode_prompts([prompt], place)[0], params)
        return TextStream(streamer, self._stream([streamer], params, [sample_index(place, sample)]))

    def _stream(self, streamers: Sequence[TextStreamer], params: SamplingParams, samples: Sequence[int]) -> Generator[str]:
        limits = [self._output_limit(len(streamer.ids), params.max_tokens) for streamer in streamers]
        return stream_texts(
            decode_steps(
                self._predictor,
                None,
                torch.tensor(limits, device=self.device),
                params.chooser(np.array(samples)),
                process=params.logits_processor(),
                prefix=pad_left([streamer.ids for streamer in streamers], self.device),
                special_tokens=self._output_special_tokens(),
            ),
            streamers,
        )

    def _streamer(self, ids: Sequence[int], params: SamplingParams) -> TextStreamer:
        return TextStreamer(self.tokenizers[0], ids, params.stops, self._special_tokens.eos if self._is_stream else None)

    @property
    def _is_stream(self) -> bool:
        """Whether it was trained on a stream, in which the end token ends a line and not the text."""
        return bool(self.recipe.data.stream)

    def _output_special_tokens(self) -> SpecialTokens:
        return replace(self._special_tokens, eos=NO_TOKEN) if self._is_stream else self._special_tokens

    def _encode_prompts(self, prompts: Sequence[str], place: int = 0) -> list[list[int]]:
        """Tokenize prompts, each after the begin token if the vocabulary has one."""
        if "generate" not in self.task.verbs:
            raise UserError(
                f"{self.folder}: model.kind = {self.recipe.model.kind!r} does not decode token by token, and cannot generate; "
                f"use: {', '.join((*self.task.verbs, 'evaluate'))}"
            )
        found = [self._encode_prompt(prompt) for prompt in prompts]
        for number, ids in enumerate(found, start=place + 1):
            if not ids:
                raise UserError("the prompt is empty, and the vocabulary has no begin token; give at least one word")
            if self._max_context is not None and len(ids) >= self._max_context:
                raise UserError(
                    f"prompt {number} has {len(ids)} tokens, and the model takes {self._max_context} with what it "
                    "generates; shorten it"
                )
        return found

    def _encode_prompt(self, prompt: str) -> list[int]:
        """Tokenize a prompt after the begin token if there is one, or in a stream after the end of the line before it."""
        if self._is_stream:
            lines = self.tokenizers[0].encode(prompt.split("\n"))
            return [token for line in lines for token in (self._special_tokens.eos, *line)]
        bos = self._special_tokens.bos
        return [*([] if bos == NO_TOKEN else [bos]), *self.tokenizers[0].encode([prompt])[0]]

    def _continue(self, text: str, max_tokens: int) -> tuple[list[int], list[int]]:
        (prompt,), generated = self._encode_prompts([text]), self.generate(text, max_tokens=max_tokens)
        end, capacity = self._output_special_tokens().eos, self._output_limit(len(prompt), max_tokens)
        stopped = end != NO_TOKEN and len(generated.tokens) < capacity - 1
        return prompt, [*generated.tokens, end] if stopped else generated.tokens

    @property
    def _max_context(self) -> int | None:
        """Tokens of prompt and continuation; a recurrent model has no limit."""
        return self.recipe.model.max_length if self.recipe.model.kind == "transformer" else None

    def _output_limit(self, length: int, max_tokens: int) -> int:
        """Return the most tokens to generate after a prompt of this length, end token included."""
        return max_tokens + 1 if self._max_context is None else min(max_tokens, self._max_context - length) + 1

    def _inputs(self, text: str) -> dict[str, Tensor]:
        return {"target": torch.tensor(self._encode_prompts([text]))}

    def _encode(self, examples: TextLines, *, training: bool = False) -> Rows:
        store, special_tokens = self._token_store(examples.text, self.tokenizers[0], training), self._special_tokens
        if special_tokens.bos == NO_TOKEN:  # as GPT-2 was trained: the end of one text begins the next
            special_tokens = replace(special_tokens, bos=special_tokens.eos)
        if special_tokens.eos == NO_TOKEN:
            raise UserError(f"{self.folder}: the vocabulary has no end token, so that texts cannot be told apart")
        if self.recipe.model.kind == "elmo":
            return BidirectionalRows(store, special_tokens=self._special_tokens)
        if not self.recipe.data.stream:
            return LanguageModelRows(store, special_tokens=special_tokens)
        ends = np.full((len(store.ids), 1), self._special_tokens.eos, store.ids.flat.dtype)
        lines = [part for line, end in zip(range(len(store.ids)), ends) for part in (store.ids[line], end)]
        return StreamRows(np.concatenate(lines), self.recipe.model.max_length, 0 if training else self.recipe.data.overlap)

    def _score(self, name: str, examples: TextLines) -> EvaluationResult:
        return EvaluationResult(name, examples, [], {"perplexity": self._perplexity(examples)})


def generated_text(streamer: TextStreamer) -> GeneratedText:
    """Return what a streamer has received so far; refuse a text of no probability."""
    if math.isnan(streamer.log_probability):
        raise UserError(NO_OUTPUT)
    return GeneratedText(streamer.prompt + streamer.text, streamer.text, streamer.log_probability, streamer.tokens)


LANGUAGE = Task(
    name="language",
    does="generates text",
    recipe=LanguageRecipe,
    run=LanguageRun,
    models={"transformer": Gpt, "recurrent": RecurrentLanguageModel},
    verbs=("generate", "stream", "embed"),
    decoder_only=True,
    pretrained=(DecoderModel, TextData),
    explains="next_token",
    starter=language_recipe,
    card=TaskCard(
        uses="Text like its training text, its perplexity, contextual vectors of words. Research and teaching.",
        misuses=GENERATED_MISUSE,
        limits=f"{TEXT_LIMITS} What it writes is likely, not true.",
        commands=('generate {} "…"', 'embed {} "…" --pool words'),
    ),
)
ELMO = replace(LANGUAGE, models={"elmo": Elmo}, does="embeds words in context", verbs=("embed",), pretrained=None)
