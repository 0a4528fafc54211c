"""A Triton kernel for a step of decoding: a few queries attend to many keys, without a mask or a copy of the cache.

Each program handles one query of one head. It reads the keys in blocks; slot j of a block keeps the largest score m_j, the sum
l_j of exp(s - m_j) and the mean of values under it of every block's j-th key (online softmax, Milakov & Gimelshein 2018), and the
slots are merged at the end, so that programs never wait between blocks. The next block is on its way while one is computed with.
The keys that a query sees are an interval.

In self-attention the kernel also appends the new key and value to the cache (it reads them where they were projected, so that
it need not wait until they are written), and may read each position t of hypothesis i from the row index[i, t] of the cache, so
that beam search reorders hypotheses without moving keys and values. The kernel must equal `core.attend`
(tests/attention/test_decode_kernel.py).
"""

from torch import Tensor

from regard.attention.masks import Mask
from regard.hardware import HAS_TRITON, runs_inference_kernels

if HAS_TRITON:
    import triton
    import triton.language as tl

MAX_QUERIES = 16
"""Queries of one sentence; more share keys, and are faster as a product of matrices."""
MAX_HEAD_WIDTH = 256
LONG_CACHE, MIN_PROGRAMS = 2048, 128
"""With fewer programs than these, long caches leave the GPU idle: torch's kernels split the keys."""
BYTES_PER_WARP, SHORT_CACHE = 2048, 64
"""Bytes of keys that a warp reads at once; half as many where there are few keys, or programs of one warp."""
MULTIPROCESSORS, MAX_WARPS = 132, 8
"""Those of an H100 or H200, and most warps of one program; with these, each needs a multiprocessor of its own."""
WARPS = 12 * MULTIPROCESSORS
"""Warps of all programs that fill the GPU."""


def can_run(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> bool:
    """Return whether the kernel computes attention of these queries (B, H, T, K), to keys and values of any layout."""
    if not runs_inference_kernels(q):
        return False
    (B, H, T, K), J = q.shape, v.size(-1)
    return (
        T <= MAX_QUERIES
        and mask.structure <= ({"lengths", "starts", "causal", "window"} if T == 1 else {"lengths", "starts"})
        and max(K, J) <= MAX_HEAD_WIDTH
        and q.dtype == k.dtype == v.dtype
        and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        and (k.size(2) <= LONG_CACHE or B * H * T >= MIN_PROGRAMS)
    )


def attend_few_queries(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    scale: float | None,
    new: tuple[Tensor, Tensor] | None = None,
    index: Tensor | None = None,
    length: int | None = None,
) -> Tensor:
    """Return the result of `attend`: (B, H, T, K), (B, G, S, K), (B, G, S, J) -> (B, H, T, J).

    `new` keys and values (B, G, 1, ·) come after the first `length` positions of k and v, to which they are appended. Position t
    of row i is read from row index[i, t] (B, S) of k and v, and there index[i, length] becomes i.
    """
    (B, H, T, K), G, J = q.shape, k.size(1), v.size(-1)
    keys = k.size(2) if length is None else length + 1
    intervals = mask.intervals(T, keys, q.device) if mask.structure & {"lengths", "starts"} else None
    new_k, new_v = (k, v) if new is None else new
    out = v.new_empty(B, T, H, J)
    strides = *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *new_k.stride()[:2], *new_v.stride()[:2]
    KEY, VALUE = (max(16, triton.next_power_of_2(width)) for width in (K, J))
    block, warps = _tiling(B * H * T, _allocated_positions(k), max(KEY, VALUE) * k.element_size())
    decode_attention_kernel[(H, B * T)](
        q,
        (k, v),
        new,
        out,
        index,
        None if intervals is None else intervals.expand(B, T, 2).contiguous(),
        0 if mask.window is None else max(0, keys - mask.window),
        keys,
        (K, J, T, H // G, *strides, 0 if index is None else index.size(1)),
        K**-0.5 if scale is None else scale,
        (block, KEY, VALUE),
        num_warps=warps,
    )
    return out.transpose(1, 2)


def _tiling(programs: int, positions: int, key_bytes: int) -> tuple[int, int]:
    """Return the keys of a block and the warps of a program: enough to fill the GPU, but each with two blocks to read."""
    most = MAX_WARPS if programs <= MULTIPROCESSORS else MAX_WARPS // 2
    warps = min(most, triton.next_power_of_2(max(1, WARPS // programs) + 1) // 2)
    keys_per_warp = max(1, BYTES_PER_WARP // key_bytes // (2 if positions <= SHORT_CACHE or warps == 1 else 1))
    warps = min(warps, triton.next_power_of_2(triton.cdiv(positions, 2 * keys_per_warp)))
    return warps * keys_per_warp, warps


def _allocated_positions(k: Tensor) -> int:
    """Return the capacity of the cache that keys (B, G, S, K) are a part of, so that all its steps round alike; else S."""
    return max(k.size(2), k.stride(1) // k.stride(2))


if HAS_TRITON:

    @triton.jit(do_not_specialize=["first", "last"])
    def decode_attention_kernel(
        q,  # (B, H, T, K)
        cache,  # keys (B, G, S, K), values (B, G, S, J)
        new,  # keys (B, G, 1, K), values (B, G, 1, J), or None
        out,  # (B, T, H, J)
        index,  # (B, S), or None
        intervals,  # (B, T, 2), or None
        first,  # the interval of keys that are seen
        last,
        layout,  # K, J, T, heads that share one of keys; strides of q, keys, values (rows, heads, positions), new ones, index
        scale,
        TILES: tl.constexpr,  # keys of a block, powers of two from K and J on
    ):
        T, group = layout[2], layout[3]
        BLOCK: tl.constexpr = TILES[0]
        VALUE: tl.constexpr = TILES[2]
        h, row = tl.program_id(0), tl.program_id(1)
        b, g, end = (row // T).to(tl.int64), h // group, last - 1
        if intervals is not None:
            first = tl.maximum(first, tl.load(intervals + 2 * row))
            last = tl.minimum(last, tl.load(intervals + 2 * row + 1))
        slots, key_dims, value_dims = tl.arange(0, BLOCK), tl.arange(0, TILES[1]), tl.arange(0, VALUE)
        in_key, in_value = key_dims < layout[0], value_dims < layout[1]
        key, value = load_block(cache, new, index, (b, g, end), first + slots, last, layout, TILES)
        query = tl.load(q + b * layout[4] + h * layout[5] + (row % T) * layout[6] + key_dims, mask=in_key, other=0.0)
        query = query.to(tl.float32) * scale
        if new is not None:
            new_key = tl.load(new[0] + b * layout[13] + g * layout[14] + key_dims, mask=in_key, other=0.0)
            new_value = tl.load(new[1] + b * layout[15] + g * layout[16] + value_dims, mask=in_value, other=0.0)

        m, total = tl.full((BLOCK,), -float("inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
        mixed = tl.zeros((BLOCK, VALUE), tl.float32)
        for n in range(first, last, BLOCK):
            next_key, next_value = load_block(cache, new, index, (b, g, end), n + BLOCK + slots, last, layout, TILES)
            s = tl.where(n + slots < last, tl.sum(key.to(tl.float32) * query[None, :], 1), -float("inf"))
            larger = tl.maximum(m, s)
            base = tl.where(larger == -float("inf"), 0.0, larger)  # no key in this slot so far
            p, decay = tl.exp(s - base), tl.exp(m - base)
            total, mixed, m = total * decay + p, mixed * decay[:, None] + p[:, None] * value.to(tl.float32), larger
            key, value = next_key, next_value

        top = tl.max(m, 0)
        share = tl.exp(m - tl.where(top == -float("inf"), 0.0, top))
        normalizer = tl.sum(total * share, 0)
        result = tl.sum(mixed * share[:, None], 0) / tl.where(normalizer > 0, normalizer, 1.0)  # no key at all gives zeros
        place = out + (row.to(tl.int64) * tl.num_programs(0) + h) * layout[1] + value_dims
        tl.store(place, result.to(out.dtype.element_ty), mask=in_value)
        if new is not None:  # all heads that share it write the same
            tl.store(cache[0] + b * layout[7] + g * layout[8] + end * layout[9] + key_dims, new_key, mask=in_key)
            tl.store(cache[1] + b * layout[10] + g * layout[11] + end * layout[12] + value_dims, new_value, mask=in_value)
            if index is not None:
                tl.store(index + b * layout[17] + end, b.to(tl.int32))

    @triton.jit
    def load_block(
        cache,
        new,
        index,
        places,  # the row b, its head of keys g, and the position of the new key
        keys,  # (BLOCK,) positions
        last,
        layout,
        TILES: tl.constexpr,
    ):
        """Return the keys (BLOCK, K) and values (BLOCK, J) at these positions, zeros from `last` on."""
        b, g, end = places
        key_dims, value_dims, seen = tl.arange(0, TILES[1]), tl.arange(0, TILES[2]), keys < last
        rows = b + 0 * keys.to(tl.int64)
        if index is not None:
            rows = tl.load(index + b * layout[17] + keys, mask=seen & (keys < end), other=0).to(tl.int64)
        k = cache[0] + g * layout[8] + rows * layout[7] + keys * layout[9]  # (BLOCK,)
        v = cache[1] + g * layout[11] + rows * layout[10] + keys * layout[12]
        if new is not None:
            k = tl.where(keys == end, new[0] + b * layout[13] + g * layout[14], k)
            v = tl.where(keys == end, new[1] + b * layout[15] + g * layout[16], v)
        key = tl.load(k[:, None] + key_dims[None, :], mask=seen[:, None] & (key_dims < layout[0])[None, :], other=0.0)
        value = tl.load(v[:, None] + value_dims[None, :], mask=seen[:, None] & (value_dims < layout[1])[None, :], other=0.0)
        return key, value
