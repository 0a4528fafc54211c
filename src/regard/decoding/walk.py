"""One hypothesis a sentence: greedy search and sampling differ only in how the next token is chosen."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import chance
from regard.decoding.protocol import (
    Decodes,
    Hypothesis,
    State,
    begin,
    end_of,
    last_logits,
    length_penalty,
    next_log_probabilities,
)
from regard.tokens.special import OURS, Marks

Choose = Callable[[Tensor, Tensor, int], Tensor]
Process = Callable[[Tensor, Tensor], Tensor]
"""Logits (rows, V) and what is written so far (rows, L), filled with -1 on the left -> logits (rows, V)."""


def greedy(log_p: Tensor, rows: Tensor, step: int) -> Tensor:
    return log_p.argmax(-1)


def sampler(*, seed: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
            numbers: np.ndarray | None = None) -> Choose:
    """Draw by inverting the cumulative distribution at one uniform number a row.

    The number is a pure function of (seed, sentence, step), so a text does not depend on the batch it was drawn in; `numbers`
    gives each row's sentence where it is not its place in the batch.
    """
    def choose(log_p: Tensor, rows: Tensor, step: int) -> Tensor:
        log_p, tokens = (log_p / temperature).sort(-1, descending=True)           # (rows, V)
        p = log_p.softmax(-1)
        if top_k:
            p[:, top_k:] = 0
        if top_p < 1:
            beyond = p.cumsum(-1) - p >= top_p        # the smallest set that reaches top_p,
            beyond[:, 0] = False                      # the best token always in it, even if p is rounded to 0
            p[beyond] = 0
        sums = p.cumsum(-1)
        sentences = rows.cpu().numpy() if numbers is None else numbers[rows.cpu().numpy()]
        where = torch.from_numpy(chance.uniform(seed, sentences, step)).to(sums) * sums[:, -1]
        rank = torch.searchsorted(sums, where[:, None], right=True).clamp(max=(p > 0).sum(-1, keepdim=True) - 1)
        return tokens.gather(-1, rank)[:, 0]
    return choose


@dataclass
class Step:
    """The next token of every sentence still being written."""

    rows: Tensor                                                                  # (rows,) which sentences
    tokens: Tensor                                                                # (rows,)
    log_p: Tensor                                                                 # (rows,) how likely the model found them
    going: Tensor
    """(rows,) Which go on: not the end mark. Who reads the step may let others end here too, by setting theirs to False."""

    def each(self) -> Iterator[tuple[int, int, float, bool]]:
        return zip(self.rows.tolist(), self.tokens.tolist(), self.log_p.tolist(), self.going.tolist())


@dataclass
class Party:
    """Sentences that began together, and how their tokens are chosen."""

    limits: Tensor                                                                # (B,) most tokens, end mark included
    choose: Choose = greedy
    process: Process | None = None
    owner: Any = None
    """Whoever they are for."""
    number: int = 0
    """Steps taken."""

    def begin(self, prefix: Tensor) -> None:
        self.rows = torch.arange(len(self.limits), device=self.limits.device)     # (rows,) those still being written
        self.written = prefix                                                     # (rows, L)

    def ends_now(self) -> Tensor:
        return self.limits[self.rows] == self.number + 1

    def take(self, logits: Tensor, log_p: Tensor, marks: Marks) -> Step:
        wanted = log_p if self.process is None else next_log_probabilities(self.process(logits, self.written), self.ends_now(),
                                                                           marks)
        token = self.choose(wanted, self.rows, self.number)                       # (rows,)
        self.step = Step(self.rows, token, log_p.gather(-1, token[:, None])[:, 0], token != end_of(logits, marks))
        self.number += 1
        return self.step

    def settle(self) -> Tensor:
        """Go on with those that do: their last tokens (rows,)."""
        going = self.step.going
        self.rows, tokens, self.written = self.rows[going], self.step.tokens[going], self.written[going]
        if self.process is not None:
            self.written = torch.cat([self.written, tokens[:, None]], dim=1)
        return tokens


class Walking:
    """Sentences of several parties that are written at once, a token each in every step; others may join between steps."""

    @torch.no_grad()
    def __init__(self, model: Decodes, inputs: Any, parties: list[Party], prefix: Tensor | None = None, marks: Marks = OURS):
        self.model, self.parties, self.marks = model, parties, marks
        last, state = begin(model, inputs, torch.cat([party.limits for party in parties]), prefix, marks)
        for party, written in zip(parties, (last if prefix is None else prefix).split([len(party.limits) for party in parties])):
            party.begin(written)
        self.read(last, state)

    def read(self, last: Tensor, state: State) -> None:
        logits, self.state = self.model.step(last, state)
        self.logits = last_logits(logits)                                         # (rows, V)

    @torch.no_grad()
    def step(self) -> list[Step]:
        """The next token of every sentence, those of a party together."""
        sizes = [len(party.rows) for party in self.parties]
        log_p = next_log_probabilities(self.logits, torch.cat([party.ends_now() for party in self.parties]), self.marks)
        each = zip(self.parties, self.logits.split(sizes), log_p.split(sizes))
        return [party.take(logits, chances, self.marks) for party, logits, chances in each]

    @torch.no_grad()
    def go_on(self) -> None:
        """Read what was chosen, in the sentences that have not ended."""
        going = torch.cat([party.step.going for party in self.parties]).nonzero()[:, 0]
        whole = sum(len(party.rows) for party in self.parties)
        last = torch.cat([party.settle() for party in self.parties])[:, None]
        self.parties = [party for party in self.parties if len(party.rows)]
        if self.parties:
            self.read(last, self.state if len(going) == whole else self.state.keep(going))

    def join(self, other: "Walking") -> None:
        """Both are between `go_on` and the next step."""
        self.state = type(self.state).join([self.state, other.state])
        self.logits, self.parties = torch.cat([self.logits, other.logits]), self.parties + other.parties


def steps(model: Decodes, inputs: Any, limits: Tensor, choose: Choose = greedy, *, process: Process | None = None,
          prefix: Tensor | None = None, marks: Marks = OURS) -> Iterator[Step]:
    """Write until every sentence has ended; sentence i has at most limits[i] tokens after its prefix, its end mark included."""
    walking = Walking(model, inputs, [Party(limits, choose, process)], prefix, marks)
    while walking.parties:
        yield from walking.step()
        walking.go_on()


def walk(model: Decodes, inputs: Any, limits: Tensor, choose: Choose = greedy, alpha: float = 0.0,
         prefix: Tensor | None = None, marks: Marks = OURS) -> list[Hypothesis]:
    """What is written of each sentence in the end."""
    said: list[list[int]] = [[] for _ in range(len(limits))]
    total, way = [0.0] * len(said), [list[int]() for _ in said]
    for step in steps(model, inputs, limits, choose, prefix=prefix, marks=marks):
        for place, (row, token, log_p, going) in enumerate(step.each()):
            total[row] += log_p
            way[row].append(place)
            if going:
                said[row].append(token)
    return [Hypothesis(tokens, log_probability, log_probability / float(length_penalty(len(tokens) + 1, alpha)), rows)
            for tokens, log_probability, rows in zip(said, total, way)]
