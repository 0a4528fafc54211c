"""A language model: a run that says what comes next, and writes on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from regard.batches.rows import BothWays, Rows, Sentences, Stream
from regard.corpus.examples import Lines
from regard.decoding.walk import greedy, sampler, walk
from regard.errors import Mistake
from regard.run.base import Result, Run
from regard.tokens.special import NO_MARK

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
        side, marks = self.side(examples.text, self.tokenizers[0], training), self.marks
        if marks.begin == NO_MARK:                    # as GPT-2 was trained: the end of one text begins the next
            marks = replace(marks, begin=marks.end)
        if marks.end == NO_MARK:
            raise Mistake(f"{self.folder}: nothing marks where a text ends, so that texts cannot be told apart")
        if self.recipe.model.kind == "elmo":
            return BothWays(side, marks=self.marks)
        if not self.recipe.data.stream:
            return Sentences(side, marks=marks)
        ends = np.full((len(side.ids), 1), self.marks.end, side.ids.flat.dtype)
        lines = [part for line, end in zip(range(len(side.ids)), ends) for part in (side.ids[line], end)]
        return Stream(np.concatenate(lines), self.recipe.model.max_length, 0 if training else self.recipe.data.overlap)

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
            begun = self.begun(prompts[start:start + WRITE_AT_ONCE])
            prefix = torch.full((len(begun), max(map(len, begun))), -1, device=self.device)
            for row, ids in zip(prefix, begun):
                row[len(row) - len(ids):] = torch.tensor(ids)
            choose = greedy if temperature is None else \
                sampler(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, numbers=numbers)
            limits = torch.tensor([self.room(len(ids), max_tokens) for ids in begun], device=self.device)
            for ids, written in zip(begun, walk(self.model, None, limits, choose, prefix=prefix, marks=self.marks)):
                text = self.tokenizers[0].decode([[*ids, *written.tokens]])[0]
                found.append(Text(text, written.log_probability, written.tokens))
        return found

    def begun(self, prompts: Sequence[str]) -> list[list[int]]:
        """The prompts as ids, each opened by the begin mark where the vocabulary has one."""
        begun = [[*([] if self.marks.begin == NO_MARK else [self.marks.begin]), *ids] for ids in self.ids(prompts)]
        if not all(begun):
            raise Mistake("an empty prompt: nothing marks the beginning of a text here; give at least one word")
        return begun

    def room(self, length: int, max_tokens: int) -> int:
        """Most tokens to write after so many, end mark included; a Transformer has no positions behind its last."""
        most = max_tokens + 1
        return min(most, max(1, self.recipe.model.max_length + 1 - length)) if self.recipe.model.kind == "transformer" else most
