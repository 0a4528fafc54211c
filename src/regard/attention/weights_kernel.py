"""Attention weights, their block means or their entropies in one pass over the GPU, nothing larger than the result being made.

Each program has BM queries of one head and goes over the keys twice: for the largest score m and the sum l of exp(s - m) (online
softmax, Milakov & Gimelshein 2018), then for the weights exp(s - m) / l. The written-out equation (core.py) is what it must equal
(tests/attention/test_gpu.py). Triton comes with torch for GPUs; without it, record.py goes part by part.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.masks import NO_MASK, Mask

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

KNOWN = {"causal", "lengths", "starts", "window", "documents", "allowed"}
"""What of a mask the kernel reads; prefixes and grids it does not."""
WIDEST = 256
"""Keys that still fit."""
TILE = 64
COARSEST = 32
"""Blocks that one program averages by itself; larger ones are averages of these."""


def can_run(q: Tensor, mask: Mask | None) -> bool:
    return (
        triton is not None
        and q.is_cuda
        and q.size(-1) <= WIDEST
        and (mask or NO_MASK).structure <= KNOWN
        and q.dtype in (torch.float32, torch.bfloat16, torch.float16)
    )


def fill_record(
    parts: dict[str, Tensor],
    kind: str,
    size: int,
    q: Tensor,
    k: Tensor,
    *,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> bool:
    """Compute what a record keeps of a map (kept.py) into `parts`; whether this kind can be computed here."""
    match kind:
        case "weights" | "entropy":
            launch(kind, 1, parts[kind], q, k, mask or NO_MASK, bias, scale)
        case "blocks" if size & (size - 1) == 0:
            launch_blocks(size, parts["means"], q, k, mask or NO_MASK, bias, scale)
        case _:
            return False
    return True


def launch_blocks(size: int, means: Tensor, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None, scale: float | None) -> None:
    B, H, T, S = (*q.shape[:3], k.size(2))
    fine = min(size, COARSEST)
    sums = q.new_empty(B, H, -(-T // fine), -(-S // fine), dtype=torch.float32) if size > fine else means
    launch("sums" if size > fine else "blocks", fine, sums, q, k, mask, bias, scale)
    if size > fine:
        sums = F.avg_pool2d(sums, size // fine, ceil_mode=True, divisor_override=1)
        down, across = (torch.full((-(-n // size),), size, device=q.device) for n in (T, S))
        down[-1], across[-1] = T - (len(down) - 1) * size, S - (len(across) - 1) * size
        means.copy_(sums / (down[:, None] * across))


def launch(kind: str, size: int, out: Tensor, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None, scale: float | None) -> None:
    (B, H, T, K), S = q.shape, k.size(2)
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    allowed = spread(mask.allowed, (B, H, T, S))
    added = spread(bias, (B, H, T, S))
    documents = None if mask.documents is None else mask.documents.contiguous()
    rows = 16 if T <= 16 and kind not in ("blocks", "sums") else TILE
    look[(triton.cdiv(T, rows), B * H)](
        q,
        k,
        out,
        mask.lengths,
        mask.starts,
        documents,
        allowed,
        added,
        *q.stride()[:3],
        *k.stride()[:3],
        *(out.stride() if out.dim() == 4 else (*out.stride(), 0)),
        *strides(allowed),
        *strides(added),
        H,
        H // k.size(1),
        T,
        S,
        K**-0.5 if scale is None else scale,
        CAUSAL=mask.causal,
        WINDOW=mask.window or 0,
        LENGTHS=mask.lengths is not None,
        STARTS=mask.starts is not None,
        DOCUMENTS=documents is not None,
        ALLOWED=allowed is not None,
        BIAS=added is not None,
        KIND=kind,
        SIZE=size,
        K=K,
        KP=max(16, triton.next_power_of_2(K)),
        BM=rows,
        BN=TILE,
        EXACT="ieee" if q.dtype == torch.float32 else "tf32",
    )


def spread(x: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """A view of what broadcasts to this shape, of stride 0 where it is repeated."""
    return None if x is None else x.expand(shape)


def strides(x: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0, 0) if x is None else x.stride()


if triton is not None:

    @triton.jit
    def scores(
        q,
        k,
        n,
        S,
        rows,
        where,
        k_step,
        b,
        h,
        lengths,
        starts,
        documents,
        allowed,
        bias,
        a_b,
        a_h,
        a_t,
        a_s,
        c_b,
        c_h,
        c_t,
        c_s,
        T,
        scale,
        CAUSAL: tl.constexpr,
        WINDOW: tl.constexpr,
        LENGTHS: tl.constexpr,
        STARTS: tl.constexpr,
        DOCUMENTS: tl.constexpr,
        ALLOWED: tl.constexpr,
        BIAS: tl.constexpr,
        K: tl.constexpr,
        KP: tl.constexpr,
        BN: tl.constexpr,
        EXACT: tl.constexpr,
    ):
        """Of a tile of queries and BN keys from n on; -inf where one may not look."""
        keys, dims = n + tl.arange(0, BN), tl.arange(0, KP)
        tile = tl.load(
            k + keys[None, :].to(tl.int64) * k_step + dims[:, None], mask=(keys[None, :] < S) & (dims[:, None] < K), other=0.0
        )
        s = tl.dot(q, tile, input_precision=EXACT) * scale
        here, there = rows[:, None], keys[None, :]
        both = (here < T) & (there < S)
        if BIAS:
            s += tl.load(bias + b * c_b + h * c_h + here.to(tl.int64) * c_t + there * c_s, mask=both, other=0.0).to(tl.float32)
        see = both
        if CAUSAL:
            see = see & (there <= where[:, None])
        if WINDOW > 0:
            see = see & (there < where[:, None] + WINDOW) & (there > where[:, None] - WINDOW)
        if LENGTHS:
            see = see & (there < tl.load(lengths + b))
        if STARTS:
            see = see & (there >= tl.load(starts + b))
        if DOCUMENTS:
            mine = tl.load(documents + b * S + where, mask=rows < T, other=-1)
            theirs = tl.load(documents + b * S + keys, mask=keys < S, other=-2)
            see = see & (mine[:, None] == theirs[None, :])
        if ALLOWED:
            see = see & (tl.load(allowed + b * a_b + h * a_h + here.to(tl.int64) * a_t + there * a_s, mask=both, other=0) != 0)
        return tl.where(see, s, -float("inf"))

    @triton.jit
    def look(
        q,
        k,
        out,
        lengths,
        starts,
        documents,
        allowed,
        bias,
        q_b,
        q_h,
        q_t,
        k_b,
        k_h,
        k_s,
        o_b,
        o_h,
        o_t,
        o_s,
        a_b,
        a_h,
        a_t,
        a_s,
        c_b,
        c_h,
        c_t,
        c_s,
        H,
        shared,
        T,
        S,
        scale,
        CAUSAL: tl.constexpr,
        WINDOW: tl.constexpr,
        LENGTHS: tl.constexpr,
        STARTS: tl.constexpr,
        DOCUMENTS: tl.constexpr,
        ALLOWED: tl.constexpr,
        BIAS: tl.constexpr,
        KIND: tl.constexpr,
        SIZE: tl.constexpr,
        K: tl.constexpr,
        KP: tl.constexpr,
        BM: tl.constexpr,
        BN: tl.constexpr,
        EXACT: tl.constexpr,
    ):
        b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
        rows, dims = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, KP)
        where = rows + (S - T)  # queries are the last of the positions
        asked = tl.load(
            q + b * q_b + h * q_h + rows[:, None].to(tl.int64) * q_t + dims[None, :],
            mask=(rows[:, None] < T) & (dims[None, :] < K),
            other=0.0,
        )
        k += b * k_b + (h // shared) * k_h
        out += b * o_b + h * o_h

        m, total = tl.full((BM,), -float("inf"), tl.float32), tl.zeros((BM,), tl.float32)
        for n in range(0, S, BN):
            s = scores(
                asked,
                k,
                n,
                S,
                rows,
                where,
                k_s,
                b,
                h,
                lengths,
                starts,
                documents,
                allowed,
                bias,
                a_b,
                a_h,
                a_t,
                a_s,
                c_b,
                c_h,
                c_t,
                c_s,
                T,
                scale,
                CAUSAL,
                WINDOW,
                LENGTHS,
                STARTS,
                DOCUMENTS,
                ALLOWED,
                BIAS,
                K,
                KP,
                BN,
                EXACT,
            )
            higher = tl.maximum(m, tl.max(s, 1))
            base = tl.where(higher == -float("inf"), 0.0, higher)  # nothing seen so far
            total = total * tl.exp(m - base) + tl.sum(tl.exp(s - base[:, None]), 1)
            m = higher
        m = tl.where(m == -float("inf"), 0.0, m)
        share = tl.where(total > 0, 1.0 / total, 0.0)  # a query that may look nowhere gives zeros
        level = m + tl.log(tl.where(total > 0, total, 1.0))

        entropy = tl.zeros((BM,), tl.float32)
        for n in range(0, S, BN):
            s = scores(
                asked,
                k,
                n,
                S,
                rows,
                where,
                k_s,
                b,
                h,
                lengths,
                starts,
                documents,
                allowed,
                bias,
                a_b,
                a_h,
                a_t,
                a_s,
                c_b,
                c_h,
                c_t,
                c_s,
                T,
                scale,
                CAUSAL,
                WINDOW,
                LENGTHS,
                STARTS,
                DOCUMENTS,
                ALLOWED,
                BIAS,
                K,
                KP,
                BN,
                EXACT,
            )
            p = tl.exp(s - m[:, None]) * share[:, None]
            if KIND == "weights":
                keys = n + tl.arange(0, BN)
                tl.store(
                    out + rows[:, None].to(tl.int64) * o_t + keys[None, :] * o_s,
                    p.to(out.dtype.element_ty),
                    mask=(rows[:, None] < T) & (keys[None, :] < S),
                )
            elif KIND == "entropy":
                entropy += tl.sum(tl.where(p > 0, p * (level[:, None] - s), 0.0), 1)
            else:
                blocks = tl.sum(tl.sum(tl.reshape(p, (BM // SIZE, SIZE, BN // SIZE, SIZE)), 3), 1)
                down = tl.program_id(0) * (BM // SIZE) + tl.arange(0, BM // SIZE)
                across = n // SIZE + tl.arange(0, BN // SIZE)
                if KIND == "blocks":
                    high, wide = tl.minimum(SIZE, T - down * SIZE), tl.minimum(SIZE, S - across * SIZE)
                    blocks = blocks / tl.maximum(high[:, None] * wide[None, :], 1)
                tl.store(
                    out + down[:, None].to(tl.int64) * o_t + across[None, :] * o_s,
                    blocks.to(out.dtype.element_ty),
                    mask=(down[:, None] * SIZE < T) & (across[None, :] * SIZE < S),
                )
        if KIND == "entropy":
            tl.store(out + rows.to(tl.int64) * o_t, entropy, mask=rows < T)
