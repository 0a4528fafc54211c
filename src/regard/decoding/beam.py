"""Beam search over the state protocol, all sentences and hypotheses at once.

N hypotheses a sentence are kept alive; an ended one that ranks among the N best candidates of its step joins the sentence's
N best finished ones. A sentence is done when nothing alive can still beat what is finished, whatever comes: the score of a
hypothesis of log-probability l that ends at length n is l / penalty(n), and l only falls.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from regard.decoding.protocol import Decodes, Hypothesis, begin, best_next, end_of, last_logits, length_penalty
from regard.tokens.special import FILL, OURS, Marks


@dataclass
class Beams:
    """The search of B sentences: N alive and N finished hypotheses each."""

    rows: Tensor                                                                  # (B,) which sentence of the batch
    limits: Tensor                                                                # (B,) most tokens, end included
    alive: Tensor                                                                 # (B, N) log-probabilities
    tokens: Tensor                                                                # (B, N, L)
    ways: Tensor                                                                  # (B, N, L) row of the batch in each step
    finished: Tensor                                                              # (B, N) scores, best first
    finished_log_p: Tensor                                                        # (B, N)
    finished_tokens: Tensor                                                       # (B, N, L)
    finished_ways: Tensor                                                         # (B, N, L)
    end: int

    @staticmethod
    def begin(limits: Tensor, beam: int, end: int) -> "Beams":
        B, L, device = len(limits), int(limits.max()), limits.device
        nothing = torch.full((B, beam), -torch.inf, device=device)
        alive = nothing.clone()
        alive[:, 0] = 0                                                           # the empty hypothesis
        blank = torch.full((B, beam, L), FILL, device=device)
        return Beams(torch.arange(B, device=device), limits, alive, blank, blank.clone(), nothing, nothing, blank, blank, end)

    def keep(self, which: Tensor) -> "Beams":
        return replace(self, **{part.name: getattr(self, part.name)[which] for part in fields(self) if part.name != "end"})


@dataclass(frozen=True)
class Candidates:
    """One step of a search: the 2N best continuations of each of B sentences, best first."""

    rows: Tensor                                                                  # (B,) which sentence of the batch
    origin: Tensor                                                                # (B, 2N) which hypothesis alive it goes on from
    tokens: Tensor                                                                # (B, 2N)
    log_p: Tensor                                                                 # (B, 2N) of the whole hypothesis
    kept: Tensor                                                                  # (B, N) which of them stay alive, in order


Report = Callable[[Candidates], None]


@torch.inference_mode()
def beam_search(model: Decodes, inputs: Any, limits: Tensor, *, beam: int, alpha: float = 0.0, number: int = 1,
                stop_early: bool = True, prefix: Tensor | None = None, marks: Marks = OURS,
                report: Report | None = None) -> list[list[Hypothesis]]:
    """The `number` best hypotheses of each sentence, best first; of what follows its prefix, where there is one. Each step is
    told to `report`."""
    longest, device = int(limits.max()), limits.device
    results: list[list[Hypothesis]] = [[] for _ in limits]
    last, state = begin(model, inputs, limits, prefix, marks)
    logits, state = model.step(last, state)
    beams = Beams.begin(limits, beam, end_of(logits, marks))
    state = state.reorder(torch.arange(len(limits), device=device).repeat_interleave(beam))
    logits = logits.repeat_interleave(beam, dim=0)
    for step in range(longest):
        ends_now = (beams.limits == step + 1).repeat_interleave(beam)
        origin = advance(beams, *best_next(last_logits(logits), ends_now, 2 * beam, marks), step, alpha, report)
        done = is_done(beams, step + 1, alpha, number, stop_early)
        if done.any():
            collect(beams.keep(done), number, results)
            going = (~done).nonzero()[:, 0]
            if len(going) == 0:
                break
            beams, origin, state = beams.keep(going), origin[going], state.keep(going)
        state = state.reorder((torch.arange(len(origin), device=device)[:, None] * beam + origin).flatten())
        logits, state = model.step(beams.tokens[:, :, step].reshape(-1, 1), state)
    return results


def advance(beams: Beams, log_p: Tensor, tokens: Tensor, step: int, alpha: float, report: Report | None = None) -> Tensor:
    """Extend every alive hypothesis by one of its 2N best tokens (B·N, 2N); returns which hypothesis each new one goes on from
    (B, N)."""
    B, N = beams.alive.shape
    each = log_p.size(-1)                                                         # a vocabulary may be smaller
    candidates = (beams.alive[..., None] + log_p.view(B, N, each)).flatten(1)     # (B, N · 2N)
    best, flat = candidates.topk(min(2 * N, N * each), dim=1)                     # at most N of these end
    origin, token = flat // each, tokens.view(B, N * each).gather(1, flat)
    ends = token == beams.end
    sentence, place = torch.arange(B, device=flat.device)[:, None], torch.arange(N, device=flat.device)
    beams.ways[:, :, step] = sentence * N + place if step else sentence           # the first step reads each sentence once

    ending = torch.where(ends, best, -torch.inf)[:, :N]
    finish(beams, ending, origin[:, :N], step, alpha)

    beams.alive, chosen = torch.where(ends, -torch.inf, best).topk(N, dim=1)
    if report is not None:
        report(Candidates(beams.rows, origin, token, best, chosen))
    origin, token = origin.gather(1, chosen), token.gather(1, chosen)
    beams.tokens, beams.ways = take(beams.tokens, origin), take(beams.ways, origin)
    beams.tokens[:, :, step] = torch.where(beams.alive > -torch.inf, token, FILL)
    return origin


def finish(beams: Beams, ending: Tensor, origin: Tensor, step: int, alpha: float) -> None:
    """Let newly ended hypotheses (B, N), with what they go on from, compete with the finished ones."""
    tokens, ways = take(beams.tokens, origin), take(beams.ways, origin)
    tokens[:, :, step] = beams.end
    scores = torch.cat([beams.finished, ending / length_penalty(step + 1, alpha)], dim=1)
    beams.finished, chosen = scores.topk(beams.finished.size(1), dim=1)
    beams.finished_log_p = torch.cat([beams.finished_log_p, ending], dim=1).gather(1, chosen)
    beams.finished_tokens = take(torch.cat([beams.finished_tokens, tokens], dim=1), chosen)
    beams.finished_ways = take(torch.cat([beams.finished_ways, ways], dim=1), chosen)


def is_done(beams: Beams, length: int, alpha: float, number: int, stop_early: bool) -> Tensor:
    """(B,) whether a sentence's `number` best are settled."""
    at_limit = beams.limits <= length
    if not stop_early:
        return at_limit
    hope = beams.alive[:, 0]                                                      # log p of the best one alive
    soon, late = length_penalty(length + 1, alpha), length_penalty(beams.limits.to(hope.dtype), alpha)
    return at_limit | (beams.finished[:, number - 1] >= torch.maximum(hope / soon, hope / late))


def collect(beams: Beams, number: int, results: list[list[Hypothesis]]) -> None:
    finished = zip(beams.rows.tolist(), beams.finished_tokens.tolist(), beams.finished_log_p.tolist(), beams.finished.tolist(),
                   beams.finished_ways.tolist())
    for row, tokens, log_p, scores, ways in finished:
        results[row] = [Hypothesis(said[:said.index(beams.end)], log_probability, score, way[:said.index(beams.end) + 1])
                        for said, log_probability, score, way in zip(tokens, log_p, scores, ways) if score > -torch.inf][:number]


def take(tokens: Tensor, which: Tensor) -> Tensor:
    return tokens.gather(1, which[..., None].expand(-1, -1, tokens.size(-1)))     # (B, N, L), (B, M) -> (B, M, L)
