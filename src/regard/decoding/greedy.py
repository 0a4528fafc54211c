"""One hypothesis a sentence: greedy search and sampling differ only in how the next token is chosen."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from weakref import proxy

import numpy as np
import torch
from torch import Tensor

from regard.decoding.cuda_graphs import CudaGraphCache, CudaGraphSearch, cuda_graph_cache, flatten_inputs, round_up_limit
from regard.decoding.protocol import (
    Decodable,
    DecodingState,
    Hypothesis,
    best_next_tokens,
    end_token,
    last_logits,
    length_penalty,
    next_log_probabilities,
    start_decoding,
)
from regard.decoding.sampling import Sampler
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens

ChooseToken = Callable[[Tensor, Tensor, int], Tensor]
LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""Logits (rows, V) and what is written so far (rows, L), filled with -1 on the left -> logits (rows, V)."""


def greedy(log_p: Tensor, rows: Tensor, step: int) -> Tensor:
    return log_p.argmax(-1)


@dataclass
class DecodingStep:
    """The next token of every sentence still being written."""

    rows: Tensor  # (rows,) which sentences
    tokens: Tensor  # (rows,)
    log_p: Tensor  # (rows,) how likely the model found them
    active: Tensor
    """(rows,) Which go on: not the end mark. Who reads the step may let others end here too, by setting theirs to False."""

    def each(self) -> Iterator[tuple[int, int, float, bool]]:
        return zip(self.rows.tolist(), self.tokens.tolist(), self.log_p.tolist(), self.active.tolist())


@dataclass
class DecodingGroup:
    """Sentences that began together, and how their tokens are chosen."""

    limits: Tensor  # (B,) most tokens, end mark included
    choose: ChooseToken = greedy
    process: LogitsProcessor | None = None
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

    def chosen(self, logits: Tensor, log_p: Tensor, special_tokens: SpecialTokens) -> tuple[Tensor, Tensor]:
        """Of all log p (rows, V), the chosen ones, and their tokens: (rows,) each."""
        wanted = (
            log_p
            if self.process is None
            else next_log_probabilities(self.process(logits, self.written), self.ends_now(), special_tokens)
        )
        token = self.choose(wanted, self.rows, self.number)
        return log_p.gather(-1, token[:, None])[:, 0], token

    def take(self, log_p: Tensor, token: Tensor, end: int) -> DecodingStep:
        self.step = DecodingStep(self.rows, token, log_p, token != end)
        self.number += 1
        return self.step

    def settle(self) -> Tensor:
        """Go on with those that do: their last tokens (rows,)."""
        going = self.step.active
        self.rows, tokens, self.written = self.rows[going], self.step.tokens[going], self.written[going]
        if self.process is not None:
            self.written = torch.cat([self.written, tokens[:, None]], dim=1)
        return tokens


class DecodingBatch:
    """Sentences of several parties that are written at once, a token each in every step; others may join between steps."""

    @torch.no_grad()
    def __init__(
        self,
        model: Decodable,
        inputs: Any,
        parties: list[DecodingGroup],
        prefix: Tensor | None = None,
        special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
    ):
        self.model, self.parties, self.special_tokens = model, parties, special_tokens
        last, state = start_decoding(model, inputs, torch.cat([party.limits for party in parties]), prefix, special_tokens)
        for party, written in zip(parties, (last if prefix is None else prefix).split([len(party.limits) for party in parties])):
            party.begin(written)
        self.read(last, state)

    @torch.inference_mode()
    def read(self, last: Tensor, state: DecodingState) -> None:
        logits, self.state = self.model.step(last, state)
        self.logits = last_logits(logits)  # (rows, V)

    @torch.no_grad()
    def step(self) -> list[DecodingStep]:
        """The next token of every sentence, those of a party together."""
        ends_now, plain = torch.cat([party.ends_now() for party in self.parties]), [party.is_plain for party in self.parties]
        best = [part[:, 0] for part in best_next_tokens(self.logits, ends_now, 1, self.special_tokens)] if any(plain) else []
        log_p = None if all(plain) else next_log_probabilities(self.logits, ends_now, self.special_tokens)
        found, first, end = [], 0, end_token(self.logits, self.special_tokens)
        for party in self.parties:
            rows, first = slice(first, first + len(party.rows)), first + len(party.rows)
            said, token = (
                (part[rows] for part in best)
                if party.is_plain or log_p is None
                else party.chosen(self.logits[rows], log_p[rows], self.special_tokens)
            )
            found.append(party.take(said, token, end))
        return found

    @torch.no_grad()
    def advance(self) -> None:
        """Read what was chosen, in the sentences that have not ended."""
        going = torch.cat([party.step.active for party in self.parties]).nonzero()[:, 0]
        whole = sum(len(party.rows) for party in self.parties)
        last = torch.cat([party.settle() for party in self.parties])[:, None]
        self.parties = [party for party in self.parties if len(party.rows)]
        if self.parties:
            self.read(last, self.state if len(going) == whole else self.state.keep(going))

    def join(self, other: "DecodingBatch") -> None:
        """Both are between `go_on` and the next step."""
        self.state = type(self.state).join([self.state, other.state])
        self.logits, self.parties = torch.cat([self.logits, other.logits]), self.parties + other.parties


def decode_steps(
    model: Decodable,
    inputs: Any,
    limits: Tensor,
    choose: ChooseToken = greedy,
    *,
    process: LogitsProcessor | None = None,
    prefix: Tensor | None = None,
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
) -> Iterator[DecodingStep]:
    """Write until every sentence has ended; sentence i has at most limits[i] tokens after its prefix, its end mark included."""
    tapes = (
        cuda_graph_cache(model, limits.device) if process is None and (choose is greedy or isinstance(choose, Sampler)) else None
    )
    tape, given = (None, []) if tapes is None else find_captured(tapes, model, inputs, limits, choose, prefix, special_tokens)
    if tape is not None:
        yield from replay_steps(tape, given, limits)
        return
    walking = DecodingBatch(model, inputs, [DecodingGroup(limits, choose, process)], prefix, special_tokens)
    while walking.parties:
        yield from walking.step()
        walking.advance()


class CapturableDecoding:
    """A walk of which every sentence stays in the batch, which is how it can be recorded; the keys to draw by are given."""

    def __init__(
        self,
        model: Decodable,
        inputs: Any,
        limits: Tensor,
        longest: int,
        keys: Tensor | None,
        choose: ChooseToken,
        prefix: Tensor | None,
        special_tokens: SpecialTokens,
    ):
        self.model, self.limits, self.keys, self.choose, self.special_tokens = model, limits, keys, choose, special_tokens
        self.start = partial(start_decoding, model, inputs, limits, prefix, special_tokens, longest)

    def begin(self) -> None:
        self.number = 0
        self.read(*self.start())

    def read(self, last: Tensor, state: DecodingState) -> None:
        logits, self.state = self.model.step(last, state)
        self.logits = last_logits(logits)  # (rows, V)

    def step(self) -> list[Tensor]:
        """The tokens (rows,) and their log p."""
        ends_now, end = self.limits == self.number + 1, end_token(self.logits, self.special_tokens)
        if self.keys is None:
            log_p, token = (part[:, 0] for part in best_next_tokens(self.logits, ends_now, 1, self.special_tokens))
        else:
            every = next_log_probabilities(self.logits, ends_now, self.special_tokens)
            token = cast(Sampler, self.choose).pick(every, self.keys[:, self.number])
            log_p = every.gather(-1, token[:, None])[:, 0]
        self.number += 1
        self.read(torch.where(token == end, 0, token)[:, None], self.state)
        self.end = end
        return [token, log_p]


def find_captured(
    tapes: CudaGraphCache,
    model: Decodable,
    inputs: Any,
    limits: Tensor,
    choose: ChooseToken,
    prefix: Tensor | None,
    special_tokens: SpecialTokens,
) -> tuple[CudaGraphSearch | None, list[Tensor]]:
    """The tape of such a walk, where there is one, and what is to be put on it."""
    if prefix is not None and bool((prefix[:, 0] < 0).any()):  # rows that begin later need a mask
        return None, []
    (parts, together), longest = flatten_inputs(inputs), round_up_limit(limits)
    given, manner = [*parts, limits], None
    if isinstance(choose, Sampler):
        drawn = choose.keys(np.arange(len(limits))[:, None], np.arange(longest))  # (B, L)
        given, manner = [*given, torch.from_numpy(drawn).to(limits.device)], (choose.temperature, choose.top_k, choose.top_p)
    if prefix is not None:
        given = [*given, prefix]

    def build(places: Sequence[Tensor]) -> CapturableDecoding:
        *read, limited = places[: len(parts) + 1]
        keys = places[len(parts) + 1] if isinstance(choose, Sampler) else None
        return CapturableDecoding(
            proxy(model), together(read), limited, longest, keys, choose, None if prefix is None else places[-1], special_tokens
        )

    return tapes.find(longest, (special_tokens, manner, prefix is None), given, build), given


def replay_steps(tape: CudaGraphSearch, given: Sequence[Tensor], limits: Tensor) -> Iterator[DecodingStep]:
    """Steps as the host hears of them; what was said of a sentence after its end is left out."""
    rows = torch.arange(len(limits))
    for tokens, log_p in tape.play(given, int(limits.max())):
        said = tokens[rows]
        step = DecodingStep(rows, said, log_p[rows], said != cast(CapturableDecoding, tape.search).end)
        yield step
        rows = rows[step.active]
        if not len(rows):
            break


def greedy_or_sample(
    model: Decodable,
    inputs: Any,
    limits: Tensor,
    choose: ChooseToken = greedy,
    alpha: float = 0.0,
    prefix: Tensor | None = None,
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
) -> list[Hypothesis]:
    """What is written of each sentence in the end."""
    said: list[list[int]] = [[] for _ in range(len(limits))]
    total, way = [0.0] * len(said), [list[int]() for _ in said]
    for step in decode_steps(model, inputs, limits, choose, prefix=prefix, special_tokens=special_tokens):
        for place, (row, token, log_p, going) in enumerate(step.each()):
            total[row] += log_p
            way[row].append(place)
            if going:
                said[row].append(token)
    return [
        Hypothesis(tokens, log_probability, log_probability / float(length_penalty(len(tokens) + 1, alpha)), rows)
        for tokens, log_probability, rows in zip(said, total, way)
    ]
