"""Triton kernels for the best next tokens of each row of logits, which they read once and in the model's own precision.

The first kernel handles one block of the vocabulary of one row: the largest logit m, the sum l of exp(x - m), and the best tokens
of the block. The second merges the blocks of a row: log p = x - log Σ_blocks l exp(m). Of equal logits the lowest id comes first.
The result must equal that of `next_log_probabilities` followed by `topk` (tests/decoding/test_next_tokens.py).
"""

import torch
from torch import Tensor

from regard.hardware import HAS_TRITON, runs_inference_kernels

if HAS_TRITON:
    import triton
    import triton.language as tl

BLOCK = 1024
"""Logits that one program reads: one warp, so that its threads never wait for each other."""
CANDIDATES_PER_WARP = 1024
MAX_NUMBER = 64
MAX_SUPPRESSED = 16


def can_run(logits: Tensor, number: int, suppressed: tuple[int, ...]) -> bool:
    """Return whether the kernels find this number of tokens of each row."""
    return (
        runs_inference_kernels(logits)
        and number <= min(MAX_NUMBER, logits.size(-1))
        and len(suppressed) <= MAX_SUPPRESSED
        and logits.stride(-1) == 1
    )


def best_tokens(logits: Tensor, ends_now: Tensor, number: int, end: int, suppressed: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return log p and ids of the best tokens that are not suppressed: (rows, V) -> (rows, N), (rows, N).

    `ends_now` has one entry for each row or group of adjacent rows, in which only the end token is possible, if it is True; an
    end token of id V is then certain.
    """
    rows, V = logits.shape
    blocks, stride = triton.cdiv(V, BLOCK), logits.stride(0)
    sums = torch.empty(rows, blocks, 2, device=logits.device)
    values = torch.empty(rows, blocks, number, device=logits.device)
    tokens = torch.empty_like(values, dtype=torch.int32)
    best_of_block_kernel[(blocks, rows)](logits, sums, values, tokens, suppressed or None, V, number, stride, BLOCK, num_warps=1)
    candidates = triton.next_power_of_2(blocks * number)
    log_p, chosen = sums.new_empty(rows, number), tokens.new_empty(rows, number, dtype=torch.int64)
    best_of_row_kernel[(rows,)](
        logits,
        (sums, values, tokens),
        ends_now,
        (log_p, chosen),
        (V, number, blocks, end, rows // len(ends_now)),
        stride,
        triton.next_power_of_2(blocks),
        candidates,
        num_warps=min(8, max(1, candidates // CANDIDATES_PER_WARP)),
    )
    return log_p, chosen


if HAS_TRITON:

    @triton.jit(do_not_specialize=["suppressed", "number"])
    def best_of_block_kernel(
        logits,  # (rows, V)
        sums,  # (rows, blocks, 2) the largest logit m of each block, and Σ exp(x - m)
        values,  # (rows, blocks, N)
        tokens,  # (rows, blocks, N)
        suppressed,  # ids, or None
        V,
        number,  # N
        stride,  # of the rows of logits
        BLOCK: tl.constexpr,
    ):
        row, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
        place, ids = row * tl.num_programs(0) + block, block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(logits + row * stride + ids, mask=ids < V, other=-float("inf")).to(tl.float32)
        m = tl.max(x, 0)
        tl.store(sums + 2 * place, m)
        tl.store(sums + 2 * place + 1, tl.sum(tl.exp(x - tl.where(m == -float("inf"), 0.0, m)), 0))
        if suppressed is not None:
            for i in tl.static_range(len(suppressed)):
                x = tl.where(ids == suppressed[i], -float("inf"), x)
        for i in range(number):
            best = tl.max(x, 0)
            token = tl.minimum(tl.min(tl.where(x == best, ids, V), 0), V - 1)  # no logit equals the best one if all are NaN
            tl.store(values + place * number + i, best)
            tl.store(tokens + place * number + i, token)
            x = tl.where(ids == token, -float("inf"), x)

    @triton.jit(do_not_specialize=["ends_now", "sizes"])
    def best_of_row_kernel(
        logits,  # (rows, V)
        blocks,  # sums (rows, blocks, 2), values (rows, blocks, N), tokens (rows, blocks, N)
        ends_now,  # (groups of rows,)
        out,  # log p (rows, N), tokens (rows, N)
        sizes,  # V, N, blocks, end token, rows of a group
        stride,  # of the rows of logits
        BLOCKS: tl.constexpr,  # powers of two from the numbers of blocks and candidates on
        CANDIDATES: tl.constexpr,
    ):
        V, number, end = sizes[0], sizes[1], sizes[3]
        row, block, candidate = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCKS), tl.arange(0, CANDIDATES)
        place, inside = blocks[0] + 2 * (row * sizes[2] + block), block < sizes[2]
        m = tl.load(place, mask=inside, other=-float("inf"))
        top = tl.max(m, 0)
        top = tl.where(top == -float("inf"), 0.0, top)
        normalizer = top + tl.log(tl.sum(tl.load(place + 1, mask=inside, other=0.0) * tl.exp(m - top), 0))  # log Σ exp(x)

        place, inside = row * sizes[2] * number + candidate, candidate < sizes[2] * number
        x = tl.load(blocks[1] + place, mask=inside, other=-float("inf"))
        ids = tl.load(blocks[2] + place, mask=inside, other=V)
        ends, end_log_p = tl.load(ends_now + row // sizes[4]) != 0, 0.0
        if end < V:
            end_log_p = tl.load(logits + row * stride + end).to(tl.float32) - normalizer
        for i in range(number):
            best = tl.max(x, 0)
            token = tl.minimum(tl.min(tl.where(x == best, ids, V), 0), V - 1)
            x = tl.where(ids == token, -float("inf"), x)
            log_p = tl.where(ends, tl.where(i == 0, end_log_p, -float("inf")), best - normalizer)
            tl.store(out[0] + row * number + i, log_p)
            tl.store(out[1] + row * number + i, tl.where(ends, end, token).to(tl.int64))
