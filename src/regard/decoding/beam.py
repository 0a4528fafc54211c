"""Beam search over the state protocol, all sentences and hypotheses at once.

N hypotheses per sentence are kept alive; an ended one that ranks among the N best candidates of its step joins the sentence's
N best finished ones. A sentence is done when no living hypothesis can still beat the finished ones: the score of a hypothesis of
log-probability l that ends at length n is l / penalty(n), and l only falls. Sentences may join a running search, and leave it
before they are done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, cast
from weakref import proxy

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decoding import beam_kernel
from regard.decoding.cuda_graphs import CudaGraphCache, cuda_graph_cache, flatten_inputs
from regard.decoding.protocol import (
    Decodable,
    Hypothesis,
    best_next_tokens,
    end_token,
    length_penalty,
    round_up_limit,
    start_decoding,
)
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, PAD, SpecialTokens


@dataclass
class BeamState:
    """The search of B sentences: N alive and N finished hypotheses each.

    Hypotheses are kept as back-pointers: the token of each in each step, and which hypothesis of the step before it continues.
    """

    rows: Tensor  # (B,) which sentence of the batch
    limits: Tensor  # (B,) most tokens, end token included
    steps: Tensor  # (B,) tokens so far
    alphas: Tensor  # (B,) exponent of the length penalty
    numbers: Tensor  # (B,) hypotheses to return
    alive: Tensor  # (B, N) log-probabilities
    tokens: Tensor  # (B, N, L)
    origins: Tensor  # (B, N, L)
    places: Tensor  # (B, L) index of the sentence among those of the step
    finished: Tensor  # (B, N) scores, best first
    finished_log_p: Tensor  # (B, N)
    finished_origin: Tensor  # (B, N) the hypothesis that ended
    finished_length: Tensor  # (B, N) its tokens, with the end token
    end: int

    @staticmethod
    def start(
        limits: Tensor,
        beam: int,
        end: int,
        alphas: Sequence[float] | Tensor,
        numbers: Sequence[int] | Tensor,
        longest: int | None = None,
    ) -> "BeamState":
        B, L, device = len(limits), int(limits.max()) if longest is None else longest, limits.device
        impossible = torch.full((B, beam), -torch.inf, device=device)
        alive = impossible.clone()
        alive[:, 0] = 0  # the empty hypothesis
        blank = torch.full((B, beam, L), PAD, device=device)
        zeros = torch.zeros_like(blank[..., 0])
        penalties = torch.as_tensor(alphas, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        return BeamState(
            rows=torch.arange(B, device=device),
            limits=limits,
            steps=torch.zeros_like(limits),
            alphas=penalties,
            numbers=torch.as_tensor(numbers, device=device),
            alive=alive,
            tokens=blank,
            origins=blank.clone(),
            places=blank[:, 0].clone(),
            finished=impossible,
            finished_log_p=impossible.clone(),
            finished_origin=zeros,
            finished_length=zeros.clone(),
            end=end,
        )

    def keep(self, which: Tensor) -> "BeamState":
        return replace(self, **{part.name: getattr(self, part.name)[which] for part in fields(self) if part.name != "end"})

    def join(self, other: "BeamState") -> "BeamState":
        """Return both, one after the other; the other's `rows` continue after the last of this one."""
        L = max(self.tokens.size(2), other.tokens.size(2))

        def concatenate(name: str) -> Tensor:
            parts = [getattr(state, name) for state in (self, other)]
            is_long = name in ("tokens", "origins", "places")
            return torch.cat([F.pad(part, (0, L - part.size(-1))) for part in parts] if is_long else parts)

        joined: dict[str, Any] = {part.name: concatenate(part.name) for part in fields(self) if part.name != "end"}
        joined["rows"] = torch.cat([self.rows, other.rows + (int(self.rows.max()) + 1 if len(self.rows) else 0)])
        return replace(self, **joined)

    def scores(self, log_p: Tensor, length: Tensor) -> Tensor:
        """Return the scores of hypotheses, (B,) or (B, N), of these lengths (B,)."""
        penalty = torch.as_tensor(length_penalty(length.to(self.alphas.dtype), self.alphas)).to(log_p.dtype)
        return log_p / penalty.view(-1, *[1] * (log_p.dim() - 1))


@dataclass(frozen=True)
class BeamCandidates:
    """One step of a search: the 2N best continuations of each of B sentences, best first."""

    rows: Tensor  # (B,) which sentence of the batch
    origin: Tensor  # (B, 2N) which living hypothesis it continues
    tokens: Tensor  # (B, 2N)
    log_p: Tensor  # (B, 2N) of the whole hypothesis
    kept: Tensor  # (B, N) which of them stay alive, in order


BeamCallback = Callable[[BeamCandidates], None]


class BeamSearch:
    """Beam searches of one width that advance together, one token each per step; others may join between steps."""

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
        self.beams = BeamState.start(limits, beam, end_token(logits, special_tokens), alphas, numbers, longest)
        self.state = state.reorder(torch.arange(len(limits), device=limits.device).repeat_interleave(beam))
        self.logits = logits[:, -1].repeat_interleave(beam, dim=0)  # (B·N, V)

    @torch.inference_mode()
    def step(self, *, stop_early: bool = True, on_step: BeamCallback | None = None) -> Tensor:
        """Extend every hypothesis by one token; return which sentences are done (B,)."""
        ends_now = self.beams.limits == self.beams.steps + 1
        best = best_next_tokens(self.logits, ends_now, 2 * self.beam, self.special_tokens)
        if on_step is None and beam_kernel.can_run(*best):
            self.last, self.before, done = beam_kernel.advance_beams(self.beams, *best, stop_early=stop_early)
            return done
        self.last, self.before = advance_beams(self.beams, *best, on_step)
        return is_done(self.beams, stop_early)

    @torch.inference_mode()
    def advance(self, active: Tensor) -> None:
        """Keep these sentences (B,) and feed their chosen tokens to the model."""
        if not active.all():
            which = active.nonzero()[:, 0]
            self.beams = self.beams.keep(which)
            if not len(which):
                return
            self.state, self.last = self.state.keep(which), self.last[which]
            self.before = self.before[which] + (torch.arange(len(which), device=which.device) - which)[:, None] * self.beam
        self.advance_in_place()

    def advance_in_place(self) -> None:
        """Feed the chosen tokens of all sentences to the model: no host synchronisation."""
        logits, self.state = self.model.step(self.last.view(-1, 1), self.state.reorder(self.before.view(-1)))
        self.logits = logits[:, -1]

    @torch.inference_mode()
    def join(self, other: "BeamSearch") -> None:
        """Add the sentences of another search; both must be between `advance` and the next `step`."""
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
    """Return the `number` best hypotheses of each sentence, best first, without the prefix; call `on_step` with each step."""
    results: list[list[Hypothesis]] = [[] for _ in limits]
    cache = None if on_step is not None or prefix is not None else cuda_graph_cache(model, limits.device)
    settings = (beam, alpha, number, stop_early, special_tokens)
    replayed = None if cache is None else _replay_beam_search(cache, model, inputs, limits, settings)
    if replayed is not None:
        return replayed
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
            for row, hypotheses in collect_hypotheses(search.beams.keep(done)):
                results[row] = hypotheses
        search.advance(~done)
    return results


class CapturableBeamSearch:
    """A `BeamSearch` in which every sentence stays, so that a CUDA graph can capture its steps."""

    def __init__(self, start: partial[BeamSearch], stop_early: bool):
        self.start_search, self.stop_early = start, stop_early
        self.beams_after: list[BeamState] = []

    def start(self) -> None:
        self.search = self.start_search()

    def step(self) -> list[Tensor]:
        """Read the tokens of the step before and choose the next ones; return which sentences are done (B,)."""
        if self.beams_after:
            self.search.advance_in_place()
        done = self.search.step(stop_early=self.stop_early)  # the result of a sentence that is done does not change any more
        self.beams_after.append(replace(self.search.beams))
        return [done]


def _replay_beam_search(
    cache: CudaGraphCache, model: Decodable, inputs: Any, limits: Tensor, settings: tuple[int, float, int, bool, SpecialTokens]
) -> list[list[Hypothesis]] | None:
    """Return the best hypotheses by a captured search, or None if these shapes are not captured."""
    (parts, rebuild_inputs), max_steps = flatten_inputs(inputs), int(limits.max())
    longest, (beam, alpha, number, stop_early, special_tokens) = round_up_limit(max_steps), settings

    def build(buffers: Sequence[Tensor]) -> CapturableBeamSearch:
        ones = torch.ones_like(buffers[-1])
        start = partial(
            BeamSearch,
            proxy(model),
            rebuild_inputs(buffers[:-1]),
            buffers[-1],
            beam=beam,
            alphas=ones.double() * alpha,
            numbers=ones * number,
            special_tokens=special_tokens,
            longest=longest,
        )
        return CapturableBeamSearch(start, stop_early)

    captured = cache.find(longest, settings, [*parts, limits], build)
    if captured is None:
        return None
    beams_after = iter(cast(CapturableBeamSearch, captured.search).beams_after)
    for (done,) in captured.replay([*parts, limits], max_steps):
        last = next(beams_after)
        if done.all():
            break
    return [hypotheses for _, hypotheses in collect_hypotheses(last)]


def advance_beams(beams: BeamState, log_p: Tensor, tokens: Tensor, on_step: BeamCallback | None = None) -> tuple[Tensor, Tensor]:
    """Extend every living hypothesis by one of its 2N best tokens (B·N, 2N); return the last tokens of the new ones (B, N), and
    the rows of the batch that they continue (B, N)."""
    B, N = beams.alive.shape
    per_hypothesis = log_p.size(-1)  # a small vocabulary may have fewer than 2N tokens
    candidates = (beams.alive[..., None] + log_p.view(B, N, per_hypothesis)).flatten(1)  # (B, N · 2N)
    best, flat = candidates.topk(min(2 * N, N * per_hypothesis), dim=1)  # at most N of these end
    origin, token = flat // per_hypothesis, tokens.view(B, N * per_hypothesis).gather(1, flat)
    ends = token == beams.end
    _update_finished(beams, torch.where(ends, best, -torch.inf)[:, :N], origin[:, :N])

    beams.alive, chosen = torch.where(ends, -torch.inf, best).topk(N, dim=1)
    if on_step is not None:
        on_step(BeamCandidates(beams.rows, origin, token, best, chosen))
    origin, token = origin.gather(1, chosen), token.gather(1, chosen)
    token = torch.where(beams.alive > -torch.inf, token, PAD)
    sentence, at = torch.arange(B, device=flat.device)[:, None], beams.steps[:, None]  # (B, 1)
    beams.tokens.scatter_(2, at[..., None].expand(B, N, 1), token[..., None])
    beams.origins.scatter_(2, at[..., None].expand(B, N, 1), origin[..., None])
    beams.places.scatter_(1, at, sentence)
    beams.steps = beams.steps + 1
    return token, sentence * N + origin


def _update_finished(beams: BeamState, ending: Tensor, origin: Tensor) -> None:
    """Rank newly ended hypotheses (B, N) with the finished ones; `origin` says which hypothesis each continues."""
    length = beams.steps + 1
    scores = torch.cat([beams.finished, beams.scores(ending, length)], dim=1)
    beams.finished, chosen = scores.topk(beams.finished.size(1), dim=1)
    beams.finished_log_p = torch.cat([beams.finished_log_p, ending], dim=1).gather(1, chosen)
    beams.finished_origin = torch.cat([beams.finished_origin, origin], dim=1).gather(1, chosen)
    beams.finished_length = torch.cat([beams.finished_length, length[:, None].expand_as(origin)], dim=1).gather(1, chosen)


def is_done(beams: BeamState, stop_early: bool = True) -> Tensor:
    """Return whether the best hypotheses of each sentence are settled (B,)."""
    at_limit = beams.limits <= beams.steps
    if not stop_early:
        return at_limit
    best_alive = beams.alive[:, 0]  # (B,) log p
    bound = torch.maximum(beams.scores(best_alive, beams.steps + 1), beams.scores(best_alive, beams.limits))
    return at_limit | (beams.finished.gather(1, beams.numbers[:, None] - 1)[:, 0] >= bound)


def collect_hypotheses(beams: BeamState) -> list[tuple[int, list[Hypothesis]]]:
    """Return the row of each sentence and its best hypotheses."""
    most = int(beams.numbers.max()) if len(beams.numbers) else 0
    columns = (beams.finished_length[:, :most], beams.finished_log_p[:, :most], beams.finished[:, :most])
    return [
        (
            row,
            [
                Hypothesis(own[: length - 1], log_probability, score, rows[:length])
                for own, rows, length, log_probability, score in zip(tokens, history, lengths, log_p, scores)
                if score > -torch.inf
            ][:number],
        )
        for row, number, tokens, history, lengths, log_p, scores in zip(
            beams.rows.tolist(), beams.numbers.tolist(), *_follow_origins(beams, most), *(column.tolist() for column in columns)
        )
    ]


def _follow_origins(beams: BeamState, most: int) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
    """Follow the best finished hypotheses back to their start: return their tokens, and the row of the batch that held each of
    them in each step, (B, M, L) both."""
    B, N = beams.finished.shape
    held_by, length = (part[:, :most].cpu().numpy() for part in (beams.finished_origin, beams.finished_length))
    L = int(length.max(initial=0))
    parts = (beams.tokens[..., :L], beams.origins[..., :L], beams.places[:, :L])
    tokens, origins, places = (part.cpu().numpy() for part in parts)
    (found, rows), sentence = np.zeros((2, B, most, L), np.int64), np.arange(B)[:, None]
    for step in reversed(range(L)):
        found[..., step] = tokens[sentence, held_by, step]
        held_by = np.where(step < length - 1, origins[sentence, held_by, step], held_by)
        rows[..., step] = places[:, step, None] * N + held_by if step else places[:, :1]  # first step: a row per sentence
    return found.tolist(), rows.tolist()
