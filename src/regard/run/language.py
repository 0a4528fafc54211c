"""A language model: a run that says what comes next, and writes on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from regard.batches.rows import BothWays, Rows, Sentences, Stream
from regard.corpus.examples import Lines
from regard.decoding.walk import greedy, sampler, walk
from regard.errors import Mistake
from regard.run.base import Result, Run
from regard.tokens.special import BOS, EOS, PAD

WRITE_AT_ONCE = 64


@dataclass(frozen=True)
class Text:
    text: str
    """The prompt and what was written after it."""
    score: float
    """Log-probability of what was written."""
    tokens: list[int]


class LanguageRun(Run):
    does = "writes on"

    def encode(self, examples: Lines, *, training: bool = False) -> Rows:
        side = self.side(examples.text, self.tokenizers[0], training)
        if self.recipe.model.kind == "elmo":
            return BothWays(side)
        if not self.recipe.data.stream:
            return Sentences(side)
        ends = np.full((len(side.ids), 1), EOS, side.ids.flat.dtype)
        lines = [part for line, end in zip(range(len(side.ids)), ends) for part in (side.ids[line], end)]
        return Stream(np.concatenate(lines), self.recipe.model.max_length)

    def score(self, name: str, examples: Lines) -> Result:
        return Result(name, examples, [], {"perplexity": self.perplexity(examples)})

    def generate(self, prompts: Sequence[str], *, max_tokens: int = 100, temperature: float | None = None, top_k: int = 0,
                 top_p: float = 1.0, seed: int = 0) -> list[Text]:
        """Write on from each prompt, the likeliest token each time; with a `temperature`, draw instead."""
        if not hasattr(self.model, "step"):
            raise Mistake(f"{self.folder} reads in both directions (model.kind = {self.recipe.model.kind!r}) "
                          "and cannot write on; use: regard embed")
        found = []
        for start in range(0, len(prompts), WRITE_AT_ONCE):
            numbers = np.arange(start, min(start + WRITE_AT_ONCE, len(prompts)))
            begun = [[BOS, *ids] for ids in self.ids(prompts[start:start + WRITE_AT_ONCE])]
            prefix = torch.full((len(begun), max(map(len, begun))), PAD, device=self.device)
            for row, ids in zip(prefix, begun):
                row[len(row) - len(ids):] = torch.tensor(ids)
            choose = greedy if temperature is None else \
                sampler(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, numbers=numbers)
            limits = torch.full((len(begun),), max_tokens + 1, device=self.device)
            for ids, written in zip(begun, walk(self.model, None, limits, choose, prefix=prefix)):
                text = self.tokenizers[0].decode([[*ids[1:], *written.tokens]])[0]
                found.append(Text(text, written.log_probability, written.tokens))
        return found
