"""Span corruption, T5's pre-training (Raffel et al. 2020): fill in spans of any length."""

import math
from collections.abc import Iterable
from typing import Literal, Self, overload

import torch
from pydantic import model_validator
from torch import Tensor

from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, decoder_inputs, encoder_inputs
from regard.batches.span_rows import SpanCorruptionRows
from regard.corpus.examples import TextLines
from regard.decoding.beam import beam_search
from regard.decoding.protocol import Hypothesis
from regard.errors import UserError
from regard.recipe import Model, Recipe, SpanCorruption, TextData, TransformerModel, require_fixed_split
from regard.tasks.base import Run
from regard.tasks.masked import MASK_PATTERN, FilledText
from regard.tasks.shared.embedding import embed_texts
from regard.tasks.shared.labels import Prediction
from regard.tasks.shared.one_or_many import one_or_many
from regard.tasks.starters.text_starters import span_corruption_recipe
from regard.tasks.task import GENERATED_MISUSE, TEXT_LIMITS, EvaluationResult, Task, TaskCard
from regard.tasks.translate import SEQ2SEQ_MODELS
from regard.tokens.special_tokens import SPECIAL_TOKEN_NAMES

SENTINELS = range(len(SPECIAL_TOKEN_NAMES), len(SPECIAL_TOKEN_NAMES) + 100)


class SpanCorruptionRecipe(Recipe):
    """Predict the spans that were cut out of a text, as T5 is pre-trained."""

    task: Literal["span-corruption"] = "span-corruption"
    data: TextData
    model: Model = TransformerModel(preset="t5-small")
    corruption: SpanCorruption = SpanCorruption()

    @model_validator(mode="after")
    def check_data(self) -> Self:
        if self.data.stream:
            raise ValueError("data.stream: spans are cut out line by line; set it to false")
        if self.data.pack:
            raise ValueError("data.pack: only the tasks language and masked pack lines; set it to false")
        require_fixed_split(self)
        return self


class SpanCorruptionRun(Run):
    """A model pre-trained by span corruption."""

    recipe: SpanCorruptionRecipe
    _extra_special_tokens = tuple(f"<extra_id_{number}>" for number in range(len(SENTINELS)))

    embed = embed_texts

    @overload
    def fill(self, texts: str, *, number: int = 5) -> FilledText: ...  # type: ignore[overload-overlap]
    @overload
    def fill(self, texts: Iterable[str], *, number: int = 5) -> list[FilledText]: ...
    def fill(self, texts: str | Iterable[str], *, number: int = 5) -> FilledText | list[FilledText]:
        """Return the most probable spans for each mask, written [MASK] or <mask>; a probability is that of all spans."""
        return one_or_many(texts, lambda several: [self._fill_one(text, number) for text in several])

    def _fill_one(self, text: str, number: int) -> FilledText:
        parts = self._encode_parts(text)
        hypotheses = self._search(self._masked_inputs(parts), number)
        spans = [self._spans(hypothesis.tokens, len(parts) - 1) for hypothesis in hypotheses]
        candidates = [
            [Prediction(span[at], math.exp(hypothesis.log_probability)) for span, hypothesis in zip(spans, hypotheses)]
            for at in range(len(parts) - 1)
        ]
        best = iter(spans[0])
        return FilledText(MASK_PATTERN.sub(lambda _: next(best), text), candidates)

    def _encode_parts(self, text: str) -> list[list[int]]:
        """Tokenize the parts of a text between its masks."""
        parts = self.tokenizers[0].encode(MASK_PATTERN.split(text))
        if not 2 <= len(parts) <= len(SENTINELS):
            raise UserError(
                f"{text!r} has {len(parts) - 1} masks; write [MASK] where words are missing, at most {len(SENTINELS) - 1} times"
            )
        return parts

    def _masked_inputs(self, parts: list[list[int]]) -> dict[str, Tensor]:
        ids = [*parts[0], *(token for sentinel, part in zip(SENTINELS, parts[1:]) for token in (sentinel, *part))]
        return encoder_inputs(Ragged.from_rows([ids]), self._special_tokens)

    def _search(self, inputs: dict[str, Tensor], number: int) -> list[Hypothesis]:
        limit = torch.tensor([self.recipe.model.max_length], device=self.device)
        source = inputs["source"].to(self.device), inputs["lengths"].to(self.device)
        beam = max(number, self.recipe.decode.beam)
        return beam_search(self.model, source, limit, beam=beam, number=number, special_tokens=self._special_tokens)[0]

    def _spans(self, output: list[int], number: int) -> list[str]:
        """Return the text that an output has after each of the first `number` sentinels."""
        found: list[list[int]] = [[] for _ in range(number)]
        at = -1
        for token in output:
            if token in SENTINELS:
                at = token - SENTINELS.start
            elif 0 <= at < number:
                found[at].append(token)
        return self.tokenizers[0].decode(found)

    def _inputs(self, text: str) -> dict[str, Tensor]:
        """Return a text with its masks, and the best output as decoder input."""
        inputs = self._masked_inputs(self._encode_parts(text))
        output = Ragged.from_rows([self._search(inputs, 1)[0].tokens])
        return {**inputs, "target": decoder_inputs(output, self._special_tokens)}

    def _encode(self, examples: TextLines, *, training: bool = False) -> Rows:
        store = self._token_store(examples.text, self.tokenizers[0], training)
        return SpanCorruptionRows(store, self.recipe.corruption, SENTINELS, special_tokens=self._special_tokens)

    def _score(self, name: str, examples: TextLines) -> EvaluationResult:
        return EvaluationResult(name, examples, [], {"perplexity": self._perplexity(examples)})


SPAN_CORRUPTION = Task(
    name="span-corruption",
    does="fills in spans",
    recipe=SpanCorruptionRecipe,
    run=SpanCorruptionRun,
    models=SEQ2SEQ_MODELS,
    verbs=("fill", "embed"),
    encoder_decoder=True,
    model_sizes=lambda recipe, vocabulary: vocabulary,
    starter=span_corruption_recipe,
    card=TaskCard(
        uses="Filling in missing passages of texts like those it was trained on, fine-tuning. Research and teaching.",
        misuses=GENERATED_MISUSE,
        limits=f"{TEXT_LIMITS} What it fills in is likely, not true.",
        commands=('fill {} "the [MASK] ran"',),
    ),
)
