"""Continuous batching (Yu et al. 2022, "Orca"): requests that arrive at any time are decoded together. Waiting requests join
between two steps; those that have ended or were cancelled leave.

Greedy search and sampling share one batch; beam searches share one batch for each width, since all sentences of a state have the
same number of hypotheses.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decoding.batching import SearchParams, Sources
from regard.decoding.beam import BeamSearch, collect_hypotheses
from regard.decoding.greedy import DecodingBatch, DecodingGroup
from regard.decoding.protocol import Decodable, Hypothesis, length_penalty
from regard.decoding.sampling import ChooseToken, LogitsProcessor, greedy
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens

TokenCallback = Callable[[int, float, bool], bool]
"""Called with each token, its log p, and False for the end token; returns whether to continue."""


@dataclass(eq=False)
class DecodingRequest:
    """An output to decode: one row of what the model's `start` takes, a prefix, and how to search."""

    inputs: Any
    limit: int
    prefix: Sequence[int] | None = None
    beam: int = 1
    alpha: float = 0.0
    number: int = 1
    choose: ChooseToken = greedy
    process: LogitsProcessor | None = None
    on_token: TokenCallback | None = None
    """Not called by beam search."""
    tokens: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    hypotheses: list[Hypothesis] = field(default_factory=list)
    """The result, once it is done."""

    @staticmethod
    def from_source(
        sources: Sources, params: SearchParams, *, index: int = 0, sequence_id: int = 0, on_token: TokenCallback | None = None
    ) -> "DecodingRequest":
        """Return the request whose result is that of `decode_all` for this source; `sequence_id` seeds its sampling."""
        return DecodingRequest(
            sources.collate([index]),
            sources.limits[index],
            beam=params.width,
            alpha=params.length_penalty,
            number=params.num_hypotheses,
            choose=params.chooser(np.array([sequence_id])),
            on_token=on_token if params.width == 1 else None,
        )

    def add_token(self, token: int, log_p: float, active: bool) -> bool:
        """Add a token; return whether to continue."""
        self.log_probability += log_p
        if active:
            self.tokens.append(token)
        active = (self.on_token is None or self.on_token(token, log_p, active)) and active
        if not active:
            score = self.log_probability / float(length_penalty(len(self.tokens) + 1, self.alpha))
            self.hypotheses = [Hypothesis(self.tokens, self.log_probability, score)]
        return active


class ContinuousBatcher:
    """All requests that one model is decoding."""

    def __init__(self, model: Decodable, device: torch.device, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS):
        self.model, self.device, self.special_tokens = model, device, special_tokens
        self.batch: DecodingBatch | None = None
        self.searches: dict[int, BeamSearch] = {}
        self.beam_requests: dict[int, list[DecodingRequest]] = {}
        """The request of each sentence of each search."""

    def __len__(self) -> int:
        return sum(map(len, self.beam_requests.values())) + (0 if self.batch is None else len(self.batch.groups))

    def add(self, requests: Iterable[DecodingRequest]) -> None:
        """Start more requests, those of a kind together."""
        kinds: dict[tuple[int, bool], list[DecodingRequest]] = {}
        for request in requests:
            kinds.setdefault((request.beam, request.prefix is None), []).append(request)
        for (beam, _), alike in kinds.items():
            inputs, prefix = collate_inputs([one.inputs for one in alike]), self._pad_prefixes(alike)
            if beam == 1:
                groups = [DecodingGroup(self._limits([one]), one.choose, one.process, one) for one in alike]
                batch = DecodingBatch(self.model, inputs, groups, prefix, self.special_tokens)
                if self.batch is None:
                    self.batch = batch
                else:
                    self.batch.join(batch)
                continue
            search = BeamSearch(
                self.model,
                inputs,
                self._limits(alike),
                beam=beam,
                alphas=[one.alpha for one in alike],
                numbers=[one.number for one in alike],
                prefix=prefix,
                special_tokens=self.special_tokens,
            )
            if beam in self.searches:
                self.searches[beam].join(search)
            else:
                self.searches[beam] = search
            self.beam_requests.setdefault(beam, []).extend(alike)

    def _limits(self, requests: Sequence[DecodingRequest]) -> Tensor:
        return torch.tensor([request.limit for request in requests], device=self.device)

    def _pad_prefixes(self, requests: Sequence[DecodingRequest]) -> Tensor | None:
        given = [request.prefix for request in requests if request.prefix is not None]
        return pad_left(given, self.device) if given else None

    def step(self, is_cancelled: Callable[[DecodingRequest], bool] = lambda request: False) -> list[DecodingRequest]:
        """Decode one more token of every request that is not cancelled; return those that are done."""
        done = [] if self.batch is None else self._step_batch(self.batch, is_cancelled)
        for beam in list(self.searches):
            done += self._step_beams(beam, is_cancelled)
        return done

    def _step_batch(self, batch: DecodingBatch, is_cancelled: Callable[[DecodingRequest], bool]) -> list[DecodingRequest]:
        done = []
        for step, group in zip(batch.step(), batch.groups):
            ((_, token, log_p, active),) = step.items()
            if is_cancelled(group.owner):
                step.active[:] = False
            elif not group.owner.add_token(token, log_p, active):
                step.active[:] = False
                done.append(group.owner)
        batch.advance()
        if not batch.groups:
            self.batch = None
        return done

    def _step_beams(self, beam: int, is_cancelled: Callable[[DecodingRequest], bool]) -> list[DecodingRequest]:
        search, requests = self.searches[beam], self.beam_requests[beam]
        ended = search.step()
        cancelled = torch.tensor([is_cancelled(request) for request in requests], device=ended.device)
        done = [request for request, over in zip(requests, (ended & ~cancelled).tolist()) if over]
        for request, (_, found) in zip(done, collect_hypotheses(search.beams.keep(ended & ~cancelled)) if done else []):
            request.hypotheses = found
        active = ~(ended | cancelled)
        self.beam_requests[beam] = [request for request, stays in zip(requests, active.tolist()) if stays]
        search.advance(active)
        if not self.beam_requests[beam]:
            del self.searches[beam], self.beam_requests[beam]
        return done


def pad_left(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return sequences as (B, P), padded with -1 on the left."""
    longest = max(map(len, sequences))
    return torch.tensor([[-1] * (longest - len(one)) + list(one) for one in sequences], device=device)


def collate_inputs(inputs: Sequence[Any]) -> Any:
    """Return rows of model inputs as one batch: images, or texts with their lengths; None if the model has no inputs."""
    if inputs[0] is None:
        return None
    if isinstance(inputs[0], Tensor):
        return torch.cat(list(inputs))
    longest = max(ids.size(1) for ids, _ in inputs)
    texts = torch.cat([F.pad(ids, (0, longest - ids.size(1))) for ids, _ in inputs])
    return texts, torch.cat([lengths for _, lengths in inputs])
