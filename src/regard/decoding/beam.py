"""Beam search over the state protocol, all sentences and hypotheses at once.

N hypotheses a sentence are kept alive; an ended one that ranks among the N best candidates of its step joins the sentence's
N best finished ones. A sentence is done when nothing alive can still beat what is finished, whatever comes: the score of a
hypothesis of log-probability l that ends at length n is l / penalty(n), and l only falls. Sentences may join a search that has
begun, and leave one that has not ended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, cast
from weakref import proxy

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decoding.cuda_graphs import CudaGraphCache, cuda_graph_cache, flatten_inputs, round_up_limit
from regard.decoding.protocol import (
    Decodable,
    Hypothesis,
    best_next_tokens,
    end_token,
    last_logits,
    length_penalty,
    start_decoding,
)
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, PAD, SpecialTokens


@dataclass
class BeamState:
    """The search of B sentences: N alive and N finished hypotheses each."""

    rows: Tensor  # (B,) which sentence of the batch
    limits: Tensor  # (B,) most tokens, end included
    steps: Tensor  # (B,) tokens so far
    alphas: Tensor  # (B,) of the length penalty
    numbers: Tensor  # (B,) hypotheses wanted
    alive: Tensor  # (B, N) log-probabilities
    tokens: Tensor  # (B, N, L)
    ways: Tensor  # (B, N, L) row of the batch in each step
    finished: Tensor  # (B, N) scores, best first
    finished_log_p: Tensor  # (B, N)
    finished_tokens: Tensor  # (B, N, L)
    finished_ways: Tensor  # (B, N, L)
    end: int

    @staticmethod
    def begin(
        limits: Tensor,
        beam: int,
        end: int,
        alphas: Sequence[float] | Tensor,
        numbers: Sequence[int] | Tensor,
        longest: int | None = None,
    ) -> "BeamState":
        B, L, device = len(limits), int(limits.max()) if longest is None else longest, limits.device
        nothing = torch.full((B, beam), -torch.inf, device=device)
        alive = nothing.clone()
        alive[:, 0] = 0  # the empty hypothesis
        blank = torch.full((B, beam, L), PAD, device=device)
        penalties = torch.as_tensor(alphas, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        return BeamState(
            torch.arange(B, device=device),
            limits,
            torch.zeros_like(limits),
            penalties,
            torch.as_tensor(numbers, device=device),
            alive,
            blank,
            blank.clone(),
            nothing,
            nothing,
            blank,
            blank,
            end,
        )

    def keep(self, which: Tensor) -> "BeamState":
        return replace(self, **{part.name: getattr(self, part.name)[which] for part in fields(self) if part.name != "end"})

    def join(self, other: "BeamState") -> "BeamState":
        """Both, one behind the other; `rows` go on from the last."""
        L = max(self.tokens.size(2), other.tokens.size(2))

        def both(name: str) -> Tensor:
            parts = [getattr(beams, name) for beams in (self, other)]
            return torch.cat([F.pad(part, (0, L - part.size(2)), value=PAD) if part.dim() == 3 else part for part in parts])

        joined: dict[str, Any] = {part.name: both(part.name) for part in fields(self) if part.name != "end"}
        joined["rows"] = torch.cat([self.rows, other.rows + (int(self.rows.max()) + 1 if len(self.rows) else 0)])
        return replace(self, **joined)

    def penalized(self, log_p: Tensor, length: Tensor) -> Tensor:
        """The scores of hypotheses, (B,) or (B, N), of these lengths (B,)."""
        penalty = torch.as_tensor(length_penalty(length.to(self.alphas.dtype), self.alphas)).to(log_p.dtype)
        return log_p / penalty.view(-1, *[1] * (log_p.dim() - 1))


@dataclass(frozen=True)
class BeamCandidates:
    """One step of a search: the 2N best continuations of each of B sentences, best first."""

    rows: Tensor  # (B,) which sentence of the batch
    origin: Tensor  # (B, 2N) which hypothesis alive it goes on from
    tokens: Tensor  # (B, 2N)
    log_p: Tensor  # (B, 2N) of the whole hypothesis
    kept: Tensor  # (B, N) which of them stay alive, in order


BeamCallback = Callable[[BeamCandidates], None]


class BeamSearch:
    """Beam searches of one width that go on together, a token each in every step; others may join between steps."""

    @torch.inference_mode()
    def __init__(
        self,
        model: Decodable,
        inputs: Any,
        limits: Tensor,
        *,
        beam: int,
        alphas: Sequence[float] | Tensor,
        numbers: Sequence[int] | Tensor,
        prefix: Tensor | None = None,
        special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
        longest: int | None = None,
    ):
        self.model, self.beam, self.special_tokens = model, beam, special_tokens
        last, state = start_decoding(model, inputs, limits, prefix, special_tokens, longest)
        logits, state = model.step(last, state)
        self.beams = BeamState.begin(limits, beam, end_token(logits, special_tokens), alphas, numbers, longest)
        self.state = state.reorder(torch.arange(len(limits), device=limits.device).repeat_interleave(beam))
        self.logits = last_logits(logits).repeat_interleave(beam, dim=0)  # (B·N, V)

    @torch.inference_mode()
    def step(self, *, stop_early: bool = True, on_step: BeamCallback | None = None) -> Tensor:
        """Extend every hypothesis by a token; which sentences are done with that (B,)."""
        ends_now = self.beams.limits == self.beams.steps + 1
        best = best_next_tokens(self.logits, ends_now.repeat_interleave(self.beam), 2 * self.beam, self.special_tokens)
        self.origin = advance_beams(self.beams, *best, on_step)
        return is_done(self.beams, stop_early)

    @torch.inference_mode()
    def advance(self, going: Tensor) -> None:
        """With these sentences alone (B,)."""
        if not going.all():
            which = going.nonzero()[:, 0]
            self.beams = self.beams.keep(which)
            if not len(which):
                return
            self.state, self.origin = self.state.keep(which), self.origin[which]
        self.read()

    def read(self) -> None:
        """What was chosen."""
        first = torch.arange(len(self.origin), device=self.origin.device)[:, None] * self.beam
        state = self.state.reorder((first + self.origin).flatten())
        last = self.beams.tokens.gather(2, (self.beams.steps - 1)[:, None, None].expand(-1, self.beam, 1))  # (B, N, 1)
        logits, self.state = self.model.step(last.reshape(-1, 1), state)
        self.logits = last_logits(logits)

    @torch.inference_mode()
    def join(self, other: "BeamSearch") -> None:
        """Both are between `go_on` and the next step."""
        self.state = type(self.state).join([self.state, other.state])
        self.logits, self.beams = torch.cat([self.logits, other.logits]), self.beams.join(other.beams)


@torch.inference_mode()
def beam_search(
    model: Decodable,
    inputs: Any,
    limits: Tensor,
    *,
    beam: int,
    alpha: float = 0.0,
    number: int = 1,
    stop_early: bool = True,
    prefix: Tensor | None = None,
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
    on_step: BeamCallback | None = None,
) -> list[list[Hypothesis]]:
    """The `number` best hypotheses of each sentence, best first; of what follows its prefix, where there is one. Each step is
    told to `report`."""
    results: list[list[Hypothesis]] = [[] for _ in limits]
    tapes = None if on_step is not None or prefix is not None else cuda_graph_cache(model, limits.device)
    again = (
        None
        if tapes is None
        else replay_beam_search(tapes, model, inputs, limits, (beam, alpha, number, stop_early, special_tokens))
    )
    if again is not None:
        return again
    search = BeamSearch(
        model,
        inputs,
        limits,
        beam=beam,
        alphas=[alpha] * len(limits),
        numbers=[number] * len(limits),
        prefix=prefix,
        special_tokens=special_tokens,
    )
    while len(search.beams.rows):
        done = search.step(stop_early=stop_early, on_step=on_step)
        if done.any():
            for row, found in collect_hypotheses(search.beams.keep(done)):
                results[row] = found
        search.advance(~done)
    return results


class CapturableBeamSearch:
    """A search of which every sentence stays in the batch, which is how it can be recorded."""

    def __init__(
        self,
        model: Decodable,
        inputs: Any,
        limits: Tensor,
        longest: int,
        beam: int,
        alpha: float,
        number: int,
        stop_early: bool,
        special_tokens: SpecialTokens,
    ):
        self.stop_early, each = stop_early, torch.ones_like(limits)
        self.new = partial(
            BeamSearch,
            model,
            inputs,
            limits,
            beam=beam,
            alphas=each.double() * alpha,
            numbers=each * number,
            special_tokens=special_tokens,
            longest=longest,
        )
        self.after: list[BeamState] = []

    def begin(self) -> None:
        self.search = self.new()

    def step(self) -> list[Tensor]:
        """Whether all are done."""
        done = self.search.step(stop_early=self.stop_early)
        self.search.read()  # a sentence that is done stays as it is, whatever it goes on with
        self.after.append(replace(self.search.beams))
        return [done.all()]


def replay_beam_search(
    tapes: CudaGraphCache, model: Decodable, inputs: Any, limits: Tensor, settings: tuple
) -> list[list[Hypothesis]] | None:
    """The best of each sentence by a recorded search, where there is one."""
    (parts, together), longest = flatten_inputs(inputs), round_up_limit(limits)
    tape = tapes.find(
        longest,
        settings,
        [*parts, limits],
        lambda places: CapturableBeamSearch(proxy(model), together(places[:-1]), places[-1], longest, *settings),
    )
    if tape is None:
        return None
    after = iter(cast(CapturableBeamSearch, tape.search).after)
    for (all_done,) in tape.play([*parts, limits], longest):
        last = next(after)
        if all_done:
            break
    return [found for _, found in collect_hypotheses(last)]


def advance_beams(beams: BeamState, log_p: Tensor, tokens: Tensor, on_step: BeamCallback | None = None) -> Tensor:
    """Extend every alive hypothesis by one of its 2N best tokens (B·N, 2N); returns which hypothesis each new one goes on from
    (B, N)."""
    B, N = beams.alive.shape
    each = log_p.size(-1)  # a vocabulary may be smaller
    candidates = (beams.alive[..., None] + log_p.view(B, N, each)).flatten(1)  # (B, N · 2N)
    best, flat = candidates.topk(min(2 * N, N * each), dim=1)  # at most N of these end
    origin, token = flat // each, tokens.view(B, N * each).gather(1, flat)
    ends = token == beams.end
    sentence, place = torch.arange(B, device=flat.device)[:, None], torch.arange(N, device=flat.device)
    begun = beams.steps[:, None] > 0
    scatter_at(beams.ways, beams.steps, torch.where(begun, sentence * N + place, sentence))  # the first reads each sentence once

    ending = torch.where(ends, best, -torch.inf)[:, :N]
    update_finished(beams, ending, origin[:, :N])

    beams.alive, chosen = torch.where(ends, -torch.inf, best).topk(N, dim=1)
    if on_step is not None:
        on_step(BeamCandidates(beams.rows, origin, token, best, chosen))
    origin, token = origin.gather(1, chosen), token.gather(1, chosen)
    beams.tokens, beams.ways = gather_hypothesis_rows(beams.tokens, origin), gather_hypothesis_rows(beams.ways, origin)
    scatter_at(beams.tokens, beams.steps, torch.where(beams.alive > -torch.inf, token, PAD))
    beams.steps = beams.steps + 1
    return origin


def update_finished(beams: BeamState, ending: Tensor, origin: Tensor) -> None:
    """Let newly ended hypotheses (B, N), with what they go on from, compete with the finished ones."""
    tokens, ways = gather_hypothesis_rows(beams.tokens, origin), gather_hypothesis_rows(beams.ways, origin)
    scatter_at(tokens, beams.steps, torch.full_like(origin, beams.end))
    scores = torch.cat([beams.finished, beams.penalized(ending, beams.steps + 1)], dim=1)
    beams.finished, chosen = scores.topk(beams.finished.size(1), dim=1)
    beams.finished_log_p = torch.cat([beams.finished_log_p, ending], dim=1).gather(1, chosen)
    beams.finished_tokens = gather_hypothesis_rows(torch.cat([beams.finished_tokens, tokens], dim=1), chosen)
    beams.finished_ways = gather_hypothesis_rows(torch.cat([beams.finished_ways, ways], dim=1), chosen)


def is_done(beams: BeamState, stop_early: bool = True) -> Tensor:
    """(B,) whether the best of each sentence are settled."""
    at_limit = beams.limits <= beams.steps
    if not stop_early:
        return at_limit
    hope = beams.alive[:, 0]  # log p of the best one alive
    most = torch.maximum(beams.penalized(hope, beams.steps + 1), beams.penalized(hope, beams.limits))
    return at_limit | (beams.finished.gather(1, beams.numbers[:, None] - 1)[:, 0] >= most)


def collect_hypotheses(beams: BeamState) -> list[tuple[int, list[Hypothesis]]]:
    """The row of each sentence, and its best."""
    finished = zip(
        beams.rows.tolist(),
        beams.numbers.tolist(),
        beams.finished_tokens.tolist(),
        beams.finished_log_p.tolist(),
        beams.finished.tolist(),
        beams.finished_ways.tolist(),
    )
    return [
        (
            row,
            [
                Hypothesis(said[: said.index(beams.end)], log_probability, score, way[: said.index(beams.end) + 1])
                for said, log_probability, score, way in zip(tokens, log_p, scores, ways)
                if score > -torch.inf
            ][:number],
        )
        for row, number, tokens, log_p, scores, ways in finished
    ]


def scatter_at(rows: Tensor, at: Tensor, values: Tensor) -> None:
    """Write values (B, N) at a place of each sentence (B,) of rows (B, N, L)."""
    rows.scatter_(2, at[:, None, None].expand(*values.shape, 1), values[..., None])


def gather_hypothesis_rows(tokens: Tensor, which: Tensor) -> Tensor:
    return tokens.gather(1, which[..., None].expand(-1, -1, tokens.size(-1)))  # (B, N, L), (B, M) -> (B, M, L)
