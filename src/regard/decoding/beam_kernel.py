"""A Triton kernel for the bookkeeping of beam search: `advance_beams` and `is_done` of decoding/beam.py at once, which it must
equal (tests/decoding/test_beam_kernel.py).

One program handles one sentence: it selects the 2N best of the N · 2N continuations one by one, the first one of equals, and
files each as it is found: an end token among the first N as finished, another token as the next living hypothesis.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.hardware import HAS_TRITON, runs_inference_kernels
from regard.tokens import special_tokens

if HAS_TRITON:
    import triton
    import triton.language as tl

if TYPE_CHECKING:
    from regard.decoding.beam import BeamState

MAX_CANDIDATES = 4096


def can_run(log_p: Tensor, tokens: Tensor) -> bool:
    """Return whether the kernel chooses among these candidates."""
    return (
        runs_inference_kernels(log_p)
        and log_p.size(-1) ** 2 <= MAX_CANDIDATES
        and log_p.is_contiguous()
        and tokens.is_contiguous()
    )


def advance_beams(beams: "BeamState", log_p: Tensor, tokens: Tensor, *, stop_early: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Advance the beams in place; return the last tokens (B, N), the rows that they continue (B, N), and who is done (B,)."""
    (B, N), per_hypothesis = beams.alive.shape, log_p.size(-1)
    last, before = torch.empty_like(beams.finished_origin), torch.empty_like(beams.finished_origin)
    done = torch.empty(B, dtype=torch.bool, device=log_p.device)
    advance_beams_kernel[(B,)](
        (log_p, tokens),
        (beams.limits, beams.steps, beams.alphas, beams.numbers),
        beams.alive,
        (beams.tokens, beams.origins, beams.places),
        (beams.finished, beams.finished_log_p, beams.finished_origin, beams.finished_length),
        (last, before, done),
        (per_hypothesis, beams.places.size(1), beams.end),
        stop_early,
        N,
        triton.next_power_of_2(2 * N),
        triton.next_power_of_2(N * per_hypothesis),
        num_warps=1,
    )
    return last, before, done


if HAS_TRITON:
    PAD = tl.constexpr(special_tokens.PAD)

    @triton.jit
    def length_normalized(log_p, length, alpha):
        """Return log p / ((5 + length) / 6)^α."""
        penalty = tl.exp(alpha * tl.log((5 + length).to(tl.float64) / 6)).to(tl.float32)
        return tl.div_rn(log_p, penalty)

    @triton.jit
    def best_of(values, left, places, number):
        """Return the largest of `number` values that is left, and the first place that has it."""
        best = tl.max(tl.where(left, values, -float("inf")), 0)
        return best, tl.min(tl.where(left & (values == best), places, number - 1), 0)  # NaN equals nothing

    @triton.jit
    def pick(values, places, place):
        return tl.sum(tl.where(places == place, values, 0), 0)

    @triton.jit(do_not_specialize=["sizes"])
    def advance_beams_kernel(
        candidates,  # log p (B, N, M), tokens (B, N, M)
        sentence,  # limits, steps, alphas, numbers (B,)
        alive,  # (B, N)
        history,  # tokens (B, N, L), origins (B, N, L), places (B, L)
        finished,  # scores, log p, origins, lengths (B, N)
        out,  # last tokens (B, N), rows that they continue (B, N), done (B,)
        sizes,  # M, L, end token
        STOP_EARLY: tl.constexpr,
        N: tl.constexpr,
        RANKS: tl.constexpr,  # powers of two from 2N and from N · M on
        CANDIDATES: tl.constexpr,
    ):
        M, L, end, b = sizes[0], sizes[1], sizes[2], tl.program_id(0).to(tl.int64)
        limit, step, alpha = tl.load(sentence[0] + b), tl.load(sentence[1] + b), tl.load(sentence[2] + b)
        c, rank = tl.arange(0, CANDIDATES), tl.arange(0, RANKS)
        left, place = c < N * M, b * N * M + c
        score = tl.load(candidates[0] + place, mask=left, other=0.0) + tl.load(alive + b * N + c // M, mask=left, other=0.0)
        token = tl.load(candidates[1] + place, mask=left, other=0)
        is_old = rank < N  # the finished ones so far, then those that end now, by their rank
        ended = tl.load(finished[0] + b * N + rank, mask=is_old, other=-float("inf"))
        ended_log_p = tl.load(finished[1] + b * N + rank, mask=is_old, other=-float("inf"))
        ended_origin = tl.load(finished[2] + b * N + rank, mask=is_old, other=0)
        ended_length = tl.load(finished[3] + b * N + rank, mask=is_old, other=0)

        living, most_probable = 0, -float("inf")
        for r in range(tl.minimum(2 * N, N * M)):
            best, chosen = best_of(score, left, c, N * M)
            left = left & (c != chosen)
            next_token, origin = pick(token, c, chosen), chosen // M
            if next_token == end:
                here = rank == N + r  # none from rank 2N on: a hypothesis must end among the N best
                ended = tl.where(here, length_normalized(best, step + 1, alpha), ended)
                ended_log_p, ended_origin = tl.where(here, best, ended_log_p), tl.where(here, origin, ended_origin)
                ended_length = tl.where(here, step + 1, ended_length)
            elif living < N:
                slot = b * N + living
                next_token = tl.where(best > -float("inf"), next_token, PAD)
                tl.store(alive + slot, best)
                tl.store(history[0] + slot * L + step, next_token)
                tl.store(history[1] + slot * L + step, origin)
                tl.store(out[0] + slot, next_token)
                tl.store(out[1] + slot, b * N + origin)
                most_probable = tl.where(living == 0, best, most_probable)
                living += 1
        for dead in range(living, N):
            slot = b * N + dead
            tl.store(alive + slot, -float("inf"))
            tl.store(history[0] + slot * L + step, PAD)
            tl.store(history[1] + slot * L + step, 0)
            tl.store(out[0] + slot, PAD)
            tl.store(out[1] + slot, b * N)

        left, number, settled = rank < 2 * N, tl.load(sentence[3] + b), -float("inf")
        for r in range(N):
            best, chosen = best_of(ended, left, rank, 2 * N)
            left, slot = left & (rank != chosen), b * N + r
            tl.store(finished[0] + slot, best)
            tl.store(finished[1] + slot, pick(ended_log_p, rank, chosen))
            tl.store(finished[2] + slot, pick(ended_origin, rank, chosen))
            tl.store(finished[3] + slot, pick(ended_length, rank, chosen))
            settled = tl.where(r == number - 1, best, settled)

        done = limit <= step + 1
        if STOP_EARLY:
            soonest, latest = length_normalized(most_probable, step + 2, alpha), length_normalized(most_probable, limit, alpha)
            done = done | (settled >= tl.maximum(soonest, latest))
        tl.store(history[2] + b * L + step, b)
        tl.store(sentence[1] + b, step + 1)
        tl.store(out[2] + b, done)
