"""A run pre-trained as T5: it fills in passages that were cut out, each of any length."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, decoder_inputs, encoder_inputs
from regard.batches.span_rows import SpanCorruptionRows
from regard.corpus.examples import TextLines
from regard.decoding.beam import beam_search
from regard.decoding.protocol import Hypothesis
from regard.errors import UserError
from regard.models.registry import MODELS
from regard.tasks.base import EvaluationResult, Run
from regard.tasks.classify import Prediction
from regard.tasks.masked import MASK_PATTERN, FilledText
from regard.tokens.special_tokens import SPECIAL_TOKEN_NAMES

SENTINELS = range(len(SPECIAL_TOKEN_NAMES), len(SPECIAL_TOKEN_NAMES) + 100)


class SpanCorruptionRun(Run):
    does = "fills in passages"
    more_marks = tuple(f"<extra_id_{number}>" for number in range(len(SENTINELS)))

    def build_model(self) -> nn.Module:
        settings: Any = self.recipe.model
        size = self.tokenizers[0].size
        return MODELS["span-corruption"][settings.kind](settings, size, size, self.recipe.train.regularize)

    def encode(self, examples: TextLines, *, training: bool = False) -> Rows:
        side = self.side(examples.text, self.tokenizers[0], training)
        return SpanCorruptionRows(side, self.recipe.corruption, SENTINELS, special_tokens=self.special_tokens)

    def score(self, name: str, examples: TextLines) -> EvaluationResult:
        return EvaluationResult(name, examples, [], {"perplexity": self.perplexity(examples)})

    def fill(self, texts: Sequence[str], *, number: int = 5) -> list[FilledText]:
        """The likeliest passages in place of each mask, written [MASK] or <mask>; the probability is that of all of them."""
        return [self.fill_one(text, number) for text in texts]

    def masked(self, text: str) -> list[list[int]]:
        """The ids of a text's parts, between which there are masks."""
        parts = self.tokenizers[0].encode(MASK_PATTERN.split(text))
        if not 2 <= len(parts) <= len(SENTINELS):
            raise UserError(
                f"{text!r} has {len(parts) - 1} masks; write [MASK] where words are missing, at most {len(SENTINELS) - 1} times"
            )
        return parts

    def read_masked(self, parts: list[list[int]]) -> dict[str, Tensor]:
        ids = [*parts[0], *(token for sentinel, part in zip(SENTINELS, parts[1:]) for token in (sentinel, *part))]
        return encoder_inputs(Ragged.from_rows([ids]), self.special_tokens)

    def reading(self, text: str) -> dict[str, Tensor]:
        """A text with its masks, and what is said of them as the decoder reads it."""
        inputs = self.read_masked(self.masked(text))
        said = Ragged.from_rows([self.said(inputs, 1)[0].tokens])
        return {**inputs, "target": decoder_inputs(said, self.special_tokens)}

    def said(self, inputs: dict[str, Tensor], number: int) -> list[Hypothesis]:
        limit = torch.tensor([self.recipe.model.max_length], device=self.device)
        asked = inputs["source"].to(self.device), inputs["lengths"].to(self.device)
        beam = max(number, self.recipe.decode.beam)
        return beam_search(self.model, asked, limit, beam=beam, number=number, special_tokens=self.special_tokens)[0]

    def fill_one(self, text: str, number: int) -> FilledText:
        parts = self.masked(text)
        found = self.said(self.read_masked(parts), number)
        spans = [self.spans(hypothesis.tokens, len(parts) - 1) for hypothesis in found]
        candidates = [
            [Prediction(span[at], math.exp(hypothesis.log_probability)) for span, hypothesis in zip(spans, found)]
            for at in range(len(parts) - 1)
        ]
        words = iter(spans[0])
        return FilledText(MASK_PATTERN.sub(lambda _: next(words), text), candidates)

    def spans(self, said: list[int], number: int) -> list[str]:
        """What an output says after each of the first sentinels."""
        found: list[list[int]] = [[] for _ in range(number)]
        at = -1
        for token in said:
            if token in SENTINELS:
                at = token - SENTINELS.start
            elif 0 <= at < number:
                found[at].append(token)
        return self.tokenizers[0].decode(found)
