"""Decoding with one hypothesis per sequence: greedy search and sampling differ only in how the next token is chosen.

`DecodingBatch` holds the sequences that are decoded together; sequences may join between steps and leave when they end. A CUDA
graph captures the same steps with every sequence kept in the batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast
from weakref import proxy

import numpy as np
import torch
from torch import Tensor

from regard.decoding.cuda_graphs import CudaGraphSearch, cuda_graph_cache, flatten_inputs
from regard.decoding.protocol import (
    Decodable,
    DecodingState,
    Hypothesis,
    best_next_tokens,
    end_token,
    length_penalty,
    next_log_probabilities,
    round_up_limit,
    start_decoding,
    to_single_precision,
)
from regard.decoding.sampling import ChooseToken, LogitsProcessor, Sampler, greedy
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens


@dataclass
class DecodingStep:
    """The next token of every sequence that is still being decoded."""

    rows: Tensor  # (rows,) which sequences
    tokens: Tensor  # (rows,)
    log_p: Tensor  # (rows,) under the model, before any logits processor
    end: int

    @cached_property
    def active(self) -> Tensor:
        """Whether each sequence goes on (rows,): False where the token is the end token. The reader of a step may end a sequence
        by setting its entry to False."""
        return self.tokens != self.end

    def items(self) -> Iterator[tuple[int, int, float, bool]]:
        return zip(self.rows.tolist(), self.tokens.tolist(), self.log_p.tolist(), self.active.tolist())


@dataclass
class DecodingGroup:
    """Sequences that started together and whose tokens are chosen in the same way."""

    limits: Tensor  # (rows,) most tokens, end token included
    choose: ChooseToken = greedy
    process: LogitsProcessor | None = None
    owner: Any = None
    """Whatever the caller wants to find again."""
    ending: Tensor | None = None  # (L, rows) which sequences end in each step at the latest, if all stay in the batch
    num_steps: int = 0

    def start(self, prefix: Tensor) -> None:
        self.rows = torch.arange(len(self.limits), device=self.limits.device)  # (rows,) those still being decoded
        self.generated = prefix  # (rows, L)

    def ends_now(self) -> Tensor:
        return self.limits == self.num_steps + 1 if self.ending is None else self.ending[self.num_steps]

    @property
    def is_plain_greedy(self) -> bool:
        return self.choose is greedy and self.process is None

    def choose_tokens(self, logits: Tensor, log_p: Tensor, special_tokens: SpecialTokens) -> tuple[Tensor, Tensor]:
        """Return log p and ids of the chosen tokens, (rows,) each, from log p of all tokens (rows, V)."""
        processed = log_p
        if self.process is not None:
            logits = self.process(to_single_precision(logits), self.generated)
            processed = next_log_probabilities(logits, self.ends_now(), special_tokens)
        tokens = self.choose(processed, self.rows, self.num_steps)
        return log_p.gather(-1, tokens[:, None])[:, 0], tokens

    def finish_step(self, log_p: Tensor, tokens: Tensor, end: int) -> DecodingStep:
        self.step = DecodingStep(self.rows, tokens, log_p, end)
        self.num_steps += 1
        return self.step

    def drop_ended(self) -> Tensor:
        """Keep the active sequences and return their last tokens (rows,)."""
        active = self.step.active
        self.rows, self.limits, self.generated = self.rows[active], self.limits[active], self.generated[active]
        tokens = self.step.tokens[active]
        if self.process is not None:
            self.generated = torch.cat([self.generated, tokens[:, None]], dim=1)
        return tokens


class DecodingBatch:
    """Groups of sequences that are decoded together, one token each per step; others may join between steps."""

    @torch.no_grad()
    def __init__(
        self,
        model: Decodable,
        inputs: Any,
        groups: list[DecodingGroup],
        prefix: Tensor | None = None,
        special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
        longest: int | None = None,
    ):
        self.model, self.groups, self.special_tokens = model, groups, special_tokens
        limits = torch.cat([group.limits for group in groups])
        last, state = start_decoding(model, inputs, limits, prefix, special_tokens, longest)
        sizes = [len(group.limits) for group in groups]
        for group, generated in zip(groups, (last if prefix is None else prefix).split(sizes)):
            group.start(generated)
        self._read(last, state)

    @torch.inference_mode()
    def _read(self, last: Tensor, state: DecodingState) -> None:
        logits, self.state = self.model.step(last, state)
        self.logits = logits[:, -1]  # (rows, V)

    @torch.no_grad()
    def step(self) -> list[DecodingStep]:
        """Choose the next token of every sequence; return one step per group."""
        ends_now, plain = _concatenate([g.ends_now() for g in self.groups]), [group.is_plain_greedy for group in self.groups]
        best = [part[:, 0] for part in best_next_tokens(self.logits, ends_now, 1, self.special_tokens)] if any(plain) else []
        log_p = None if all(plain) else next_log_probabilities(self.logits, ends_now, self.special_tokens)
        steps, first, self.end = [], 0, end_token(self.logits, self.special_tokens)
        for group in self.groups:
            rows, first = slice(first, first + len(group.rows)), first + len(group.rows)
            chosen_log_p, tokens = (
                (part[rows] for part in best)
                if group.is_plain_greedy or log_p is None
                else group.choose_tokens(self.logits[rows], log_p[rows], self.special_tokens)
            )
            steps.append(group.finish_step(chosen_log_p, tokens, self.end))
        return steps

    @torch.no_grad()
    def advance(self) -> None:
        """Drop the sequences that have ended and feed the chosen tokens of the others to the model."""
        active = torch.cat([group.step.active for group in self.groups]).nonzero()[:, 0]
        num_rows = sum(len(group.rows) for group in self.groups)
        last = torch.cat([group.drop_ended() for group in self.groups])[:, None]
        self.groups = [group for group in self.groups if len(group.rows)]
        if self.groups:
            self._read(last, self.state if len(active) == num_rows else self.state.keep(active))

    def advance_in_place(self) -> None:
        """Feed the chosen tokens of all sequences to the model, also of those that have ended: no host synchronisation."""
        tokens, V = _concatenate([group.step.tokens for group in self.groups]), self.logits.size(-1)
        self._read((tokens if self.end < V else tokens.clamp(max=V - 1))[:, None], self.state)  # an end token that no one reads

    def join(self, other: "DecodingBatch") -> None:
        """Add the sequences of another batch; both must be between `advance` and the next `step`."""
        self.state = type(self.state).join([self.state, other.state])
        self.logits, self.groups = torch.cat([self.logits, other.logits]), self.groups + other.groups


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate, without a copy of a single part."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


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
    """Yield steps until every sequence has ended; sequence i has at most limits[i] tokens after its prefix, the end included."""
    captured, tensors = None, list[Tensor]()
    if process is None and (choose is greedy or isinstance(choose, Sampler)):
        captured, tensors = _find_captured(model, inputs, limits, choose, prefix, special_tokens)
    if captured is not None:
        yield from _replay_steps(captured, tensors, limits)
        return
    batch = DecodingBatch(model, inputs, [DecodingGroup(limits, choose, process)], prefix, special_tokens)
    while batch.groups:
        yield from batch.step()
        batch.advance()


class CapturableDecoding:
    """A `DecodingBatch` in which every sequence stays, so that a CUDA graph can capture its steps."""

    def __init__(self, start: partial[DecodingBatch], limits: Tensor, longest: int, choose: ChooseToken):
        self.start_batch, self.limits, self.longest, self.choose = start, limits, longest, choose

    def start(self) -> None:
        ending = self.limits == torch.arange(1, self.longest + 1, device=self.limits.device)[:, None]
        self.batch = self.start_batch(groups=[DecodingGroup(self.limits, self.choose, ending=ending)], longest=self.longest)

    def step(self) -> list[Tensor]:
        """Read the tokens of the step before; return the next ones (rows,) and their log p."""
        if self.batch.groups[0].num_steps:
            self.batch.advance_in_place()
        (step,) = self.batch.step()
        return [step.tokens, step.log_p]


def _find_captured(
    model: Decodable, inputs: Any, limits: Tensor, choose: ChooseToken, prefix: Tensor | None, special_tokens: SpecialTokens
) -> tuple[CudaGraphSearch | None, list[Tensor]]:
    """Return the captured decoding for these shapes, if there is one, and the tensors to copy into it."""
    cache = cuda_graph_cache(model, limits.device)
    if cache is None or (prefix is not None and bool((prefix[:, 0] < 0).any())):  # padded rows need a mask
        return None, []
    (parts, rebuild_inputs), longest = flatten_inputs(inputs), round_up_limit(int(limits.max()))
    tensors, sampling = [*parts, limits], None
    if isinstance(choose, Sampler):
        keys = choose.keys(np.arange(len(limits))[:, None], np.arange(longest))  # (B, L)
        tensors, sampling = [*tensors, torch.from_numpy(keys).to(limits.device)], (choose.temperature, choose.top_k, choose.top_p)
    if prefix is not None:
        tensors = [*tensors, prefix]

    def build(buffers: Sequence[Tensor]) -> CapturableDecoding:
        *own_inputs, own_limits = buffers[: len(parts) + 1]
        own_prefix = None if prefix is None else buffers[-1]
        captured_choose = choose.with_keys(buffers[len(parts) + 1]) if isinstance(choose, Sampler) else choose
        start = partial(
            DecodingBatch,
            proxy(model),
            rebuild_inputs(own_inputs),
            prefix=own_prefix,
            special_tokens=special_tokens,
        )
        return CapturableDecoding(start, own_limits, longest, captured_choose)

    return cache.find(longest, (special_tokens, sampling, prefix is None), tensors, build), tensors


def _replay_steps(captured: CudaGraphSearch, tensors: Sequence[Tensor], limits: Tensor) -> Iterator[DecodingStep]:
    """Yield the steps of a captured decoding; leave out the tokens of a sequence after its end."""
    rows = torch.arange(len(limits))
    for tokens, log_p in captured.replay(tensors, int(limits.max())):
        step = DecodingStep(rows, tokens[rows], log_p[rows], cast(CapturableDecoding, captured.search).batch.end)
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
    """Return the output of each sequence."""
    tokens: list[list[int]] = [[] for _ in range(len(limits))]
    log_probabilities, rows = [0.0] * len(tokens), [list[int]() for _ in tokens]
    for step in decode_steps(model, inputs, limits, choose, prefix=prefix, special_tokens=special_tokens):
        for place, (row, token, log_p, active) in enumerate(step.items()):
            log_probabilities[row] += log_p
            rows[row].append(place)
            if active:
                tokens[row].append(token)
    return [
        Hypothesis(own, log_p, log_p / float(length_penalty(len(own) + 1, alpha)), places)
        for own, log_p, places in zip(tokens, log_probabilities, rows)
    ]
