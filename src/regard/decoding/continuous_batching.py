"""Texts that are asked for at any time, written together (continuous batching, Yu et al. 2022, "Orca"): what waits joins between
two steps, what has ended or is not wanted any more leaves.

Greedy search and sampling share one batch; beam searches share one for each width, for the hypotheses of all sentences in a state
are equally many.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decoding.beam import BeamSearch, collect_hypotheses
from regard.decoding.greedy import ChooseToken, DecodingBatch, DecodingGroup, LogitsProcessor, greedy
from regard.decoding.protocol import Decodable, Hypothesis, length_penalty
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens

TokenCallback = Callable[[int, float, bool], bool]
"""Told of each token, how likely it was and whether it is not the end; says whether to go on."""


@dataclass(eq=False)
class DecodingRequest:
    """A text to be written: what is read for it (one row of what the model's `start` takes), what it begins with, and how."""

    inputs: Any
    limit: int
    prefix: Sequence[int] | None = None
    beam: int = 1
    alpha: float = 0.0
    number: int = 1
    choose: ChooseToken = greedy
    process: LogitsProcessor | None = None
    on_token: TokenCallback | None = None
    """Where there is no beam."""
    tokens: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    hypotheses: list[Hypothesis] = field(default_factory=list)
    """In the end."""

    def take(self, token: int, log_p: float, going: bool) -> bool:
        """One token more; whether to go on."""
        self.log_probability += log_p
        if going:
            self.tokens.append(token)
        more = (self.on_token is None or self.on_token(token, log_p, going)) and going
        if not more:
            score = self.log_probability / float(length_penalty(len(self.tokens) + 1, self.alpha))
            self.hypotheses = [Hypothesis(self.tokens, self.log_probability, score)]
        return more


class ContinuousBatcher:
    """All texts that one model is writing."""

    def __init__(self, model: Decodable, device: torch.device, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS):
        self.model, self.device, self.special_tokens = model, device, special_tokens
        self.walks: DecodingBatch | None = None
        self.searches: dict[int, BeamSearch] = {}
        self.beams: dict[int, list[DecodingRequest]] = {}
        """Whose the sentences of each search are."""

    def __len__(self) -> int:
        return sum(map(len, self.beams.values())) + (0 if self.walks is None else len(self.walks.parties))

    def add(self, requests: Iterable[DecodingRequest]) -> None:
        """Let more begin, those of a kind at once."""
        kinds: dict[tuple[int, bool], list[DecodingRequest]] = {}
        for request in requests:
            kinds.setdefault((request.beam, request.prefix is None), []).append(request)
        for (beam, _), alike in kinds.items():
            inputs, prefix = collate_inputs([one.inputs for one in alike]), self.prefix_of(alike)
            if beam == 1:
                parties = [DecodingGroup(self.limits([one]), one.choose, one.process, one) for one in alike]
                walking = DecodingBatch(self.model, inputs, parties, prefix, self.special_tokens)
                if self.walks is None:
                    self.walks = walking
                else:
                    self.walks.join(walking)
                continue
            search = BeamSearch(
                self.model,
                inputs,
                self.limits(alike),
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
            self.beams.setdefault(beam, []).extend(alike)

    def limits(self, requests: Sequence[DecodingRequest]) -> Tensor:
        return torch.tensor([request.limit for request in requests], device=self.device)

    def prefix_of(self, requests: Sequence[DecodingRequest]) -> Tensor | None:
        """What texts begin with (B, P), short ones filled with -1 on the left."""
        given = [request.prefix for request in requests if request.prefix is not None]
        if not given:
            return None
        longest = max(map(len, given))
        return torch.tensor([[-1] * (longest - len(one)) + list(one) for one in given], device=self.device)

    def step(self, unwanted: Callable[[DecodingRequest], bool] = lambda request: False) -> list[DecodingRequest]:
        """A token more of each text that is still wanted; those that have ended with it."""
        done: list[DecodingRequest] = []
        if self.walks is not None:
            done += self.step_walks(unwanted)
        for beam in list(self.searches):
            done += self.step_beams(beam, unwanted)
        return done

    def step_walks(self, unwanted: Callable[[DecodingRequest], bool]) -> list[DecodingRequest]:
        assert self.walks is not None
        done = []
        for step, party in zip(self.walks.step(), self.walks.parties):
            ((_, token, log_p, going),) = step.each()
            if unwanted(party.owner):
                step.active[:] = False
            elif not party.owner.take(token, log_p, going):
                step.active[:] = False
                done.append(party.owner)
        self.walks.advance()
        if not self.walks.parties:
            self.walks = None
        return done

    def step_beams(self, beam: int, unwanted: Callable[[DecodingRequest], bool]) -> list[DecodingRequest]:
        search, requests = self.searches[beam], self.beams[beam]
        ended = search.step()
        left = torch.tensor([unwanted(request) for request in requests], device=ended.device)
        done = [request for request, over in zip(requests, (ended & ~left).tolist()) if over]
        for request, (_, found) in zip(done, collect_hypotheses(search.beams.keep(ended & ~left)) if done else []):
            request.hypotheses = found
        going = ~(ended | left)
        self.beams[beam] = [request for request, on in zip(requests, going.tolist()) if on]
        search.advance(going)
        if not self.beams[beam]:
            del self.searches[beam], self.beams[beam]
        return done


def collate_inputs(inputs: Sequence[Any]) -> Any:
    """Rows that a model reads, as one batch: pictures, or texts with their lengths; nothing where it reads nothing."""
    if inputs[0] is None:
        return None
    if isinstance(inputs[0], Tensor):
        return torch.cat(list(inputs))
    longest = max(ids.size(1) for ids, _ in inputs)
    texts = torch.cat([F.pad(ids, (0, longest - ids.size(1))) for ids, _ in inputs])
    return texts, torch.cat([lengths for _, lengths in inputs])
