"""One hypothesis a sentence: greedy search and sampling differ only in how the next token is chosen."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from weakref import proxy

import numpy as np
import torch
from torch import Tensor

from regard.decoding.cuda_graphs import Tape, Tapes, laid_out, raised, tapes_of
from regard.decoding.protocol import (
    Decodes,
    Hypothesis,
    State,
    begin,
    best_next,
    end_of,
    last_logits,
    length_penalty,
    next_log_probabilities,
)
from regard.decoding.sampling import Sampler
from regard.tokens.special import OURS, Marks

Choose = Callable[[Tensor, Tensor, int], Tensor]
Process = Callable[[Tensor, Tensor], Tensor]
"""Logits (rows, V) and what is written so far (rows, L), filled with -1 on the left -> logits (rows, V)."""


def greedy(log_p: Tensor, rows: Tensor, step: int) -> Tensor:
    return log_p.argmax(-1)


@dataclass
class Step:
    """The next token of every sentence still being written."""

    rows: Tensor  # (rows,) which sentences
    tokens: Tensor  # (rows,)
    log_p: Tensor  # (rows,) how likely the model found them
    going: Tensor
    """(rows,) Which go on: not the end mark. Who reads the step may let others end here too, by setting theirs to False."""

    def each(self) -> Iterator[tuple[int, int, float, bool]]:
        return zip(self.rows.tolist(), self.tokens.tolist(), self.log_p.tolist(), self.going.tolist())


@dataclass
class Party:
    """Sentences that began together, and how their tokens are chosen."""

    limits: Tensor  # (B,) most tokens, end mark included
    choose: Choose = greedy
    process: Process | None = None
    owner: Any = None
    """Whoever they are for."""
    number: int = 0
    """Steps taken."""

    def begin(self, prefix: Tensor) -> None:
        self.rows = torch.arange(len(self.limits), device=self.limits.device)  # (rows,) those still being written
        self.written = prefix  # (rows, L)

    def ends_now(self) -> Tensor:
        return self.limits[self.rows] == self.number + 1

    @property
    def is_plain(self) -> bool:
        """Whether the likeliest tokens are taken as they are."""
        return self.choose is greedy and self.process is None

    def chosen(self, logits: Tensor, log_p: Tensor, marks: Marks) -> tuple[Tensor, Tensor]:
        """Of all log p (rows, V), the chosen ones, and their tokens: (rows,) each."""
        wanted = (
            log_p if self.process is None else next_log_probabilities(self.process(logits, self.written), self.ends_now(), marks)
        )
        token = self.choose(wanted, self.rows, self.number)
        return log_p.gather(-1, token[:, None])[:, 0], token

    def take(self, log_p: Tensor, token: Tensor, end: int) -> Step:
        self.step = Step(self.rows, token, log_p, token != end)
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

    @torch.inference_mode()
    def read(self, last: Tensor, state: State) -> None:
        logits, self.state = self.model.step(last, state)
        self.logits = last_logits(logits)  # (rows, V)

    @torch.no_grad()
    def step(self) -> list[Step]:
        """The next token of every sentence, those of a party together."""
        ends_now, plain = torch.cat([party.ends_now() for party in self.parties]), [party.is_plain for party in self.parties]
        best = [part[:, 0] for part in best_next(self.logits, ends_now, 1, self.marks)] if any(plain) else []
        log_p = None if all(plain) else next_log_probabilities(self.logits, ends_now, self.marks)
        found, first, end = [], 0, end_of(self.logits, self.marks)
        for party in self.parties:
            rows, first = slice(first, first + len(party.rows)), first + len(party.rows)
            said, token = (
                (part[rows] for part in best)
                if party.is_plain or log_p is None
                else party.chosen(self.logits[rows], log_p[rows], self.marks)
            )
            found.append(party.take(said, token, end))
        return found

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


def steps(
    model: Decodes,
    inputs: Any,
    limits: Tensor,
    choose: Choose = greedy,
    *,
    process: Process | None = None,
    prefix: Tensor | None = None,
    marks: Marks = OURS,
) -> Iterator[Step]:
    """Write until every sentence has ended; sentence i has at most limits[i] tokens after its prefix, its end mark included."""
    tapes = tapes_of(model, limits.device) if process is None and (choose is greedy or isinstance(choose, Sampler)) else None
    tape, given = (None, []) if tapes is None else recorded(tapes, model, inputs, limits, choose, prefix, marks)
    if tape is not None:
        yield from replayed(tape, given, limits)
        return
    walking = Walking(model, inputs, [Party(limits, choose, process)], prefix, marks)
    while walking.parties:
        yield from walking.step()
        walking.go_on()


class WalkInPlace:
    """A walk of which every sentence stays in the batch, which is how it can be recorded; the keys to draw by are given."""

    def __init__(
        self,
        model: Decodes,
        inputs: Any,
        limits: Tensor,
        longest: int,
        keys: Tensor | None,
        choose: Choose,
        prefix: Tensor | None,
        marks: Marks,
    ):
        self.model, self.limits, self.keys, self.choose, self.marks = model, limits, keys, choose, marks
        self.start = partial(begin, model, inputs, limits, prefix, marks, longest)

    def begin(self) -> None:
        self.number = 0
        self.read(*self.start())

    def read(self, last: Tensor, state: State) -> None:
        logits, self.state = self.model.step(last, state)
        self.logits = last_logits(logits)  # (rows, V)

    def step(self) -> list[Tensor]:
        """The tokens (rows,) and their log p."""
        ends_now, end = self.limits == self.number + 1, end_of(self.logits, self.marks)
        if self.keys is None:
            log_p, token = (part[:, 0] for part in best_next(self.logits, ends_now, 1, self.marks))
        else:
            every = next_log_probabilities(self.logits, ends_now, self.marks)
            token = cast(Sampler, self.choose).pick(every, self.keys[:, self.number])
            log_p = every.gather(-1, token[:, None])[:, 0]
        self.number += 1
        self.read(torch.where(token == end, 0, token)[:, None], self.state)
        self.end = end
        return [token, log_p]


def recorded(
    tapes: Tapes, model: Decodes, inputs: Any, limits: Tensor, choose: Choose, prefix: Tensor | None, marks: Marks
) -> tuple[Tape | None, list[Tensor]]:
    """The tape of such a walk, where there is one, and what is to be put on it."""
    if prefix is not None and bool((prefix[:, 0] < 0).any()):  # rows that begin later need a mask
        return None, []
    (parts, together), longest = laid_out(inputs), raised(limits)
    given, manner = [*parts, limits], None
    if isinstance(choose, Sampler):
        drawn = choose.keys(np.arange(len(limits))[:, None], np.arange(longest))  # (B, L)
        given, manner = [*given, torch.from_numpy(drawn).to(limits.device)], (choose.temperature, choose.top_k, choose.top_p)
    if prefix is not None:
        given = [*given, prefix]

    def build(places: Sequence[Tensor]) -> WalkInPlace:
        *read, limited = places[: len(parts) + 1]
        keys = places[len(parts) + 1] if isinstance(choose, Sampler) else None
        return WalkInPlace(
            proxy(model), together(read), limited, longest, keys, choose, None if prefix is None else places[-1], marks
        )

    return tapes.find(longest, (marks, manner, prefix is None), given, build), given


def replayed(tape: Tape, given: Sequence[Tensor], limits: Tensor) -> Iterator[Step]:
    """Steps as the host hears of them; what was said of a sentence after its end is left out."""
    rows = torch.arange(len(limits))
    for tokens, log_p in tape.play(given, int(limits.max())):
        said = tokens[rows]
        step = Step(rows, said, log_p[rows], said != cast(WalkInPlace, tape.search).end)
        yield step
        rows = rows[step.going]
        if not len(rows):
            break


def walk(
    model: Decodes,
    inputs: Any,
    limits: Tensor,
    choose: Choose = greedy,
    alpha: float = 0.0,
    prefix: Tensor | None = None,
    marks: Marks = OURS,
) -> list[Hypothesis]:
    """What is written of each sentence in the end."""
    said: list[list[int]] = [[] for _ in range(len(limits))]
    total, way = [0.0] * len(said), [list[int]() for _ in said]
    for step in steps(model, inputs, limits, choose, prefix=prefix, marks=marks):
        for place, (row, token, log_p, going) in enumerate(step.each()):
            total[row] += log_p
            way[row].append(place)
            if going:
                said[row].append(token)
    return [
        Hypothesis(tokens, log_probability, log_probability / float(length_penalty(len(tokens) + 1, alpha)), rows)
        for tokens, log_probability, rows in zip(said, total, way)
    ]
