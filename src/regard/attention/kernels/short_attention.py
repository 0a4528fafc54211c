"""Triton kernels: attention of short sequences, in which one program holds all queries and keys of one head.

The fused kernels of torch are made for long sequences: they walk over tiles of keys, keep the sums of the softmax between the
passes, and leave their fastest path where lengths differ. Up to MAX_LENGTH positions, as in translation, nothing has to be kept:
with P the softmax of s Q Kᵀ over the keys that each query sees, O = P V, and from the gradient dO of O

    dV = Pᵀ dO        dP = dO Vᵀ        dS = P ⊙ (dP - rowsum(P ⊙ dP))        dQ = s dS K        dK = s dSᵀ Q

each program computes P again and writes its part of every gradient once, so that the result is the same in every run. A mask
reaches the kernels as one interval of keys per query (`Mask.intervals`). They must equal the written-out equation in core.py
(tests/attention/test_gpu.py). Triton comes with torch for GPUs.
"""

from typing import Any

import torch
from torch import Tensor

from regard.attention.masks import Mask

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

MAX_LENGTH = 64
"""Queries and keys that fit into one program; from more on, the kernels of torch are faster."""
MAX_HEAD_WIDTH = 128
MASKS = {"causal", "prefix", "lengths", "starts", "window"}


def can_run(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> bool:
    """Return whether the kernels support these queries, keys and values under this mask."""
    return (
        triton is not None
        and q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.dtype == k.dtype == v.dtype
        and max(q.size(2), k.size(2)) <= MAX_LENGTH
        and q.size(3) == v.size(3) <= MAX_HEAD_WIDTH
        and q.size(1) == k.size(1)
        and mask.structure <= MASKS
    )


def short_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None) -> Tensor:
    """Return `attend` under this mask: (B, H, T, K), (B, H, S, K), (B, H, S, K) -> (B, H, T, K)."""
    intervals = mask.intervals(q.size(2), k.size(2), q.device)
    assert intervals is not None
    direct = not torch.compiler.is_compiling() and not torch.is_grad_enabled()  # an operator of torch takes longer to call
    return (_launch if direct else _forward)(q, k, v, intervals, q.size(-1) ** -0.5 if scale is None else scale)


def _launch(q: Tensor, k: Tensor, v: Tensor, intervals: Tensor, scale: float) -> Tensor:
    out = _empty(q)
    forward_kernel[(q.size(1), q.size(0))](*_arguments(q, k, v, intervals, scale, out))
    return out


_forward = torch.library.custom_op("regard::short_attention", _launch, mutates_args=())


@torch.library.custom_op("regard::short_attention_backward", mutates_args=())
def _backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, intervals: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    grad = grad if grad.stride(3) == 1 else grad.contiguous()
    dq, dk, dv = _empty(q), _empty(k), _empty(v)
    arguments = _arguments(q, k, v, intervals, scale, grad)
    backward_kernel[(q.size(1), q.size(0))]((dq, dk, dv), *arguments)
    return dq, dk, dv


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, intervals: Tensor, scale: float) -> Tensor:
    return _empty(q)


@_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, intervals: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(q), _empty(k), _empty(v)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, intervals, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, intervals)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(grad, *ctx.saved_tensors, ctx.scale), None, None


_forward.register_autograd(_gradients, setup_context=_save_for_backward)


def _empty(x: Tensor) -> Tensor:
    """Return an empty (B, H, T, K) that lies in memory as (B, T, H, K): joining the heads again copies nothing."""
    return x.new_empty(x.size(0), x.size(2), x.size(1), x.size(3)).transpose(1, 2)


def _arguments(q: Tensor, k: Tensor, v: Tensor, intervals: Tensor, scale: float, out: Tensor) -> tuple[Any, ...]:
    """Return what both kernels take: tensors, their lengths, width and strides, the scale, and the sides of the tiles."""
    (T, K), S = q.shape[2:], k.size(2)
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    strides = tuple(stride for x in (q, k, v, out) for stride in x.stride()[:3])
    tiles = tuple(max(16, 1 << (size - 1).bit_length()) for size in (T, S, K))
    sentence = 0 if intervals.size(0) == 1 else 2 * T
    return q, k, v, out, intervals.contiguous(), T, S, sentence, (K, *strides), scale, tiles


if triton is not None:

    @triton.jit
    def load_tile(x, stride, positions, dims, length, width):
        """Return one head (positions, dims) of a tensor, zeros outside."""
        inside = (positions[:, None] < length) & (dims[None, :] < width)
        return tl.load(x + positions[:, None] * stride + dims[None, :], mask=inside, other=0.0)

    @triton.jit
    def store_tile(x, b, h, positions, dims, length, width, value):
        """Write one head of a tensor that lies in memory as (B, length, heads, width)."""
        inside = (positions[:, None] < length) & (dims[None, :] < width)
        place = ((b * length + positions[:, None]) * tl.num_programs(0) + h) * width + dims[None, :]
        tl.store(x + place, value.to(x.dtype.element_ty), mask=inside)

    @triton.jit
    def softmax_of_scores(q, k, intervals, rows, keys, T, scale):
        """Return P (T, S): the softmax of s q·k over the interval of keys that each query sees, zeros where it sees none."""
        first = tl.load(intervals + 2 * rows, mask=rows < T, other=0)
        end = tl.load(intervals + 2 * rows + 1, mask=rows < T, other=0)
        seen = (keys[None, :] >= first[:, None]) & (keys[None, :] < end[:, None])
        scores = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        largest = tl.max(scores, 1)
        p = tl.exp(scores - tl.where(largest == -float("inf"), 0.0, largest)[:, None])
        total = tl.sum(p, 1)
        return p * tl.where(total > 0, 1.0 / total, 0.0)[:, None]

    LENGTHS = ["T", "S", "sentence"]
    """Compiled once for all of them, not again for every multiple of 16; entries of a tuple cannot be left out in this way."""

    @triton.jit(do_not_specialize=LENGTHS)
    def forward_kernel(
        q,  # (B, H, T, K)
        k,  # (B, H, S, K)
        v,  # (B, H, S, K)
        out,  # (B, H, T, K)
        intervals,  # (B or 1, T, 2)
        T,
        S,
        sentence,  # stride of the intervals' sentences
        layout,  # K; strides of q, k, v and out: sentences, heads, positions
        scale,
        TILES: tl.constexpr,  # sides of the tiles: powers of two
    ):
        h, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
        rows, keys, dims = tl.arange(0, TILES[0]), tl.arange(0, TILES[1]), tl.arange(0, TILES[2])
        K = layout[0]
        queries = load_tile(q + b * layout[1] + h * layout[2], layout[3], rows, dims, T, K)
        tile = load_tile(k + b * layout[4] + h * layout[5], layout[6], keys, dims, S, K)
        values = load_tile(v + b * layout[7] + h * layout[8], layout[9], keys, dims, S, K)
        p = softmax_of_scores(queries, tile, intervals + b * sentence, rows, keys, T, scale)
        store_tile(out, b, h, rows, dims, T, K, tl.dot(p.to(values.dtype), values))

    @triton.jit(do_not_specialize=LENGTHS)
    def backward_kernel(
        gradients,  # of q, k and v, of the same shapes
        q,  # (B, H, T, K)
        k,  # (B, H, S, K)
        v,  # (B, H, S, K)
        grad,  # (B, H, T, K)
        intervals,  # (B or 1, T, 2)
        T,
        S,
        sentence,  # stride of the intervals' sentences
        layout,  # K; strides of q, k, v and grad: sentences, heads, positions
        scale,
        TILES: tl.constexpr,  # sides of the tiles: powers of two
    ):
        h, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
        rows, keys, dims = tl.arange(0, TILES[0]), tl.arange(0, TILES[1]), tl.arange(0, TILES[2])
        K = layout[0]
        queries = load_tile(q + b * layout[1] + h * layout[2], layout[3], rows, dims, T, K)
        tile = load_tile(k + b * layout[4] + h * layout[5], layout[6], keys, dims, S, K)
        values = load_tile(v + b * layout[7] + h * layout[8], layout[9], keys, dims, S, K)
        do = load_tile(grad + b * layout[10] + h * layout[11], layout[12], rows, dims, T, K)
        p = softmax_of_scores(queries, tile, intervals + b * sentence, rows, keys, T, scale)
        store_tile(gradients[2], b, h, keys, dims, S, K, tl.dot(tl.trans(p.to(do.dtype)), do))
        dp = tl.dot(do, tl.trans(values))
        ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(queries.dtype)
        store_tile(gradients[0], b, h, rows, dims, T, K, tl.dot(ds, tile))
        store_tile(gradients[1], b, h, keys, dims, S, K, tl.dot(tl.trans(ds), queries))
