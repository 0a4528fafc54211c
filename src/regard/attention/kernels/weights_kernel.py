"""Triton kernels: attention weights, their block means or their entropies in one pass, without a temporary map, and the largest
weights of each row.

Each program handles TILE queries of one head and reads the keys twice: once for the largest score m and the sum l of 2^(s - m)
(online softmax, Milakov & Gimelshein 2018), once for the weights 2^(s - m - log₂ l). Scores are in units of log 2, since 2^x is
what a GPU computes. A mask reaches the kernel as one interval of keys per query (`Mask.intervals`); one that is no interval
becomes -inf in the bias, as in `core.fused_attention`. Queries and keys are read where they lie, in any layout. The largest
weights of a row are found by bisection: weights in [0, 1] are ordered as their bits, so that at most 14 comparisons (17 in
float16, 30 in float32) with the whole row find the smallest weight to keep. The kernels must equal the written-out equation in
core.py (tests/attention/test_gpu.py) and a stable sort (test_weights_kernel.py). Triton comes with torch for GPUs; without it, a
map is computed in chunks (lazy_maps.py).
"""

import math
from dataclasses import dataclass
from functools import cache, cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.masks import NO_MASK, Mask

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

ALL = slice(None)
SUPPORTED_MASKS = {"causal", "prefix", "lengths", "starts", "window", "documents", "allowed"}
MAX_HEAD_WIDTH = 256
MAX_KEYS = 8192
"""Keys of a row whose largest weights are selected by one program."""
ENTRIES_PER_WARP = 2048
"""Sums over a row stay within a warp up to this length."""
UNUSED_BITS = {torch.float32: 0, torch.bfloat16: 16, torch.float16: 13}
"""The last bits of a number of each precision in float32, which are always 0."""
LARGEST_BLOCK = 32
"""Block means up to this size are computed by one program; larger ones are averages of these."""

BIAS_LAYOUTS = {(False, False): "shared", (False, True): "head", (True, False): "batch", (True, True): "both"}
"""Whether each sentence and each head has a bias of its own."""


def can_run(q: Tensor, k: Tensor, mask: Mask | None) -> bool:
    """Return whether the kernel supports these queries and keys under this mask."""
    return (
        triton is not None
        and q.is_cuda
        and q.size(-1) <= MAX_HEAD_WIDTH
        and q.stride(-1) == k.stride(-1) == 1
        and (mask or NO_MASK).structure <= SUPPORTED_MASKS
        and q.dtype in (torch.float32, torch.bfloat16, torch.float16)
    )


@dataclass(frozen=True)
class KernelInputs:
    """Queries (B, H, T, K) and keys (B, G, S, K) of a map of weights, and what the kernel reads beside them."""

    q: Tensor
    k: Tensor
    mask: Mask = NO_MASK
    bias: Tensor | None = None
    scale: float | None = None

    def fill(self, parts: dict[str, Tensor], kind: str, size: int) -> bool:
        """Compute the tensors that a record keeps of a map (`part_shapes`) into `parts`; return False for a kind that needs the
        weights in chunks."""
        if kind not in ("weights", "entropy", "blocks") or (kind == "blocks" and size & (size - 1)):
            return False
        if kind != "blocks":
            self._launch(kind, 1, parts[kind])
        elif size <= LARGEST_BLOCK:
            self._launch(kind, size, parts["means"])
        else:
            B, H, T, S = (*self.q.shape[:3], self.k.size(2))
            sums = self.q.new_empty(B, H, -(-T // LARGEST_BLOCK), -(-S // LARGEST_BLOCK), dtype=torch.float32)
            self._launch("sums", LARGEST_BLOCK, sums)
            sums = F.avg_pool2d(sums, size // LARGEST_BLOCK, ceil_mode=True, divisor_override=1)
            heights, widths = (torch.full((-(-n // size),), size, device=sums.device) for n in (T, S))
            heights[-1], widths[-1] = T - (len(heights) - 1) * size, S - (len(widths) - 1) * size
            parts["means"].copy_(sums / (heights[:, None] * widths))
        return True

    def weights(self, batch: slice, rows: slice) -> Tensor:
        """Return the weights of some sentences and queries."""
        B, T = len(range(self.q.size(0))[batch]), len(range(self.q.size(2))[rows])
        out = self.q.new_empty(B, self.q.size(1), T, self.k.size(2))
        self._launch("weights", 1, out, batch, rows)
        return out

    @cached_property
    def _mask(self) -> tuple[Tensor, Tensor | None]:
        """The interval of keys [first, end) of each query (B, T, 2), and the bias (B or 1, H or 1, T, S) with the part of the
        mask that is no interval."""
        (B, _, T, _), S, bias = self.q.shape, self.k.size(2), self.bias
        found = self.mask.intervals(T, S, self.q.device)
        if found is None:
            allowed = self.mask.dense(T, S, self.q.device)
            assert allowed is not None, "an empty mask is an interval"
            bias = torch.where(allowed, self.q.new_zeros(()) if bias is None else bias, float("-inf"))
            found = NO_MASK.intervals(T, S, self.q.device)
            assert found is not None
        if bias is not None:
            bias = bias[(None,) * (4 - bias.dim())].expand(-1, -1, T, S).contiguous()
        return found.expand(B, T, 2).contiguous(), bias

    def _launch(self, kind: str, size: int, out: Tensor, batch: slice = ALL, rows: slice = ALL) -> None:
        intervals, bias = self._mask
        q, k, intervals = self.q[batch, :, rows], self.k[batch], intervals[batch, rows].contiguous()
        if bias is not None:
            bias = bias[batch if bias.size(0) > 1 else ALL, :, rows].contiguous()
        layout = "none" if bias is None else BIAS_LAYOUTS[bias.size(0) > 1, bias.size(1) > 1]
        (B, H, T, width), (G, S) = q.shape, k.shape[1:3]
        assert out.is_contiguous() and q.stride(3) == k.stride(3) == 1
        attention_map_kernel[(triton.cdiv(T, TILE.value), H, B)](
            q,
            k,
            out,
            intervals,
            bias,
            (T, S, H // G, width),
            (*q.stride()[:3], *k.stride()[:3]),
            width**-0.5 if self.scale is None else self.scale,
            layout,
            kind,
            size,
            max(16, 1 << (width - 1).bit_length()),
        )


def selects(device: torch.device, keys: int, signed: bool) -> bool:
    """Return whether `largest` finds the largest weights of rows of so many keys."""
    return triton is not None and device.type == "cuda" and keys <= MAX_KEYS and not signed


def largest(weights: Tensor, values: Tensor, keys: Tensor) -> None:
    """Write the largest weights of each row (…, S) and their keys, in the order of keys, into `values` and `keys` (…, N)."""
    assert weights.is_contiguous() and values.is_contiguous() and keys.is_contiguous()
    S, number = weights.size(-1), values.size(-1)
    width, rows = max(32, 1 << (S - 1).bit_length()), weights[..., 0].numel()
    unused = UNUSED_BITS[weights.dtype]
    most, mean = _first_bounds(S, number, weights.dtype, unused)
    largest_weights_kernel[(rows,)](
        weights, values, keys, S, number, most + 1, mean, width, unused, num_warps=max(1, width // ENTRIES_PER_WARP)
    )


@cache
def _first_bounds(S: int, number: int, dtype: torch.dtype, unused: int) -> list[int]:
    """Return the bits of 1/number and of 1/S. Rows sum to 1, up to rounding: at most `number` weights reach 1/number, and about a
    half of diffuse ones the mean."""
    bounds = torch.tensor([min(1.0, 1.02 / number), 1 / S], dtype=dtype).float()
    return (bounds.view(torch.int32) >> unused).tolist()


if triton is not None:
    TILE = tl.constexpr(64)
    LOG2_E = tl.constexpr(math.log2(math.e))

    @triton.jit
    def tile_scores(q, k, k_stride, bias, n, rows, first, end, sizes, scale, BIAS: tl.constexpr, K: tl.constexpr):
        """Return the scores of a tile of queries and the TILE keys from n on, in units of log 2; -inf outside of each query's
        interval."""
        T, S, width = sizes[0], sizes[1], sizes[3]
        keys, dims = n + tl.arange(0, TILE), tl.arange(0, K)
        real = (keys[None, :] < S) & (dims[:, None] < width)
        tile = tl.load(k + keys[None, :].to(tl.int64) * k_stride + dims[:, None], mask=real, other=0.0)
        s = tl.dot(q, tile, input_precision="ieee") * (scale * LOG2_E)  # "ieee" concerns float32 alone
        if BIAS != "none":
            inside = (rows[:, None] < T) & (keys[None, :] < S)
            s += tl.load(bias + rows[:, None].to(tl.int64) * S + keys[None, :], mask=inside, other=0.0).to(tl.float32) * LOG2_E
        if (tl.max(first) > n) | (tl.min(end) < n + TILE):  # otherwise every query sees every key of the tile
            s = tl.where((keys[None, :] >= first[:, None]) & (keys[None, :] < end[:, None]), s, -float("inf"))
        return s

    @triton.jit
    def attention_map_kernel(
        q,  # (B, H, T, K)
        k,  # (B, G, S, K)
        out,  # (B, H, T, S) weights, (B, H, T) entropies, (B, H, ⌈T/SIZE⌉, ⌈S/SIZE⌉) block means or sums
        intervals,  # (B, T, 2)
        bias,  # (B or 1, H or 1, T, S)
        sizes,  # T, S, heads that share one head of keys, width of a head
        strides,  # of q, then of k: sentences, heads, positions
        scale,
        BIAS: tl.constexpr,
        KIND: tl.constexpr,
        SIZE: tl.constexpr,
        K: tl.constexpr,  # a power of two
    ):
        T, S = sizes[0], sizes[1]
        h, b, H = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64), tl.num_programs(1)
        head = b * H + h
        rows, dims = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, K)
        real = rows < T
        last = tl.minimum(rows, T - 1)  # the rest of the last tile repeats the last interval, with weights of 0
        first, end = tl.load(intervals + 2 * (b * T + last)), tl.load(intervals + 2 * (b * T + last) + 1)
        q += b * strides[0] + h * strides[1]
        k += b * strides[3] + (h // sizes[2]) * strides[4]
        inside = real[:, None] & (dims[None, :] < sizes[3])
        queries = tl.load(q + rows[:, None].to(tl.int64) * strides[2] + dims[None, :], mask=inside, other=0.0)
        if BIAS == "head":
            bias += h * T * S
        elif BIAS == "batch":
            bias += b * T * S
        elif BIAS == "both":
            bias += head * T * S

        m, total = tl.full((TILE,), -float("inf"), tl.float32), tl.zeros((TILE,), tl.float32)
        for n in range(tl.min(first) // TILE * TILE, tl.max(end), TILE):
            s = tile_scores(queries, k, strides[5], bias, n, rows, first, end, sizes, scale, BIAS, K)
            larger = tl.maximum(m, tl.max(s, 1))
            base = tl.where(larger == -float("inf"), 0.0, larger)  # no key seen so far
            total = total * tl.exp2(m - base) + tl.sum(tl.exp2(s - base[:, None]), 1)
            m = larger
        # 2^(s - log₂ Σ 2^s); a query that may look nowhere gives zeros
        log_total = tl.where(real & (total > 0), m + tl.log2(tl.where(total > 0, total, 1.0)), float("inf"))

        entropy = tl.zeros((TILE,), tl.float32)
        for n in range(0, S, TILE):
            s = tile_scores(queries, k, strides[5], bias, n, rows, first, end, sizes, scale, BIAS, K)
            p = tl.exp2(s - log_total[:, None])
            if KIND == "weights":
                keys = n + tl.arange(0, TILE)
                place = out + head * T * S + rows[:, None].to(tl.int64) * S + keys[None, :]
                tl.store(place, p.to(out.dtype.element_ty), mask=real[:, None] & (keys[None, :] < S))
            elif KIND == "entropy":
                entropy += tl.sum(tl.where(p > 0, p * (log_total[:, None] - s), 0.0), 1)
            else:
                blocks = tl.sum(tl.sum(tl.reshape(p, (TILE // SIZE, SIZE, TILE // SIZE, SIZE)), 3), 1)
                down = tl.program_id(0) * (TILE // SIZE) + tl.arange(0, TILE // SIZE)
                across = n // SIZE + tl.arange(0, TILE // SIZE)
                if KIND == "blocks":  # those at the edges are smaller
                    height, width = tl.minimum(SIZE, T - down * SIZE), tl.minimum(SIZE, S - across * SIZE)
                    blocks = blocks / tl.maximum(height[:, None] * width[None, :], 1)
                high, wide = tl.cdiv(T, SIZE), tl.cdiv(S, SIZE)
                place = out + head * high * wide + down[:, None].to(tl.int64) * wide + across[None, :]
                tl.store(place, blocks.to(out.dtype.element_ty), mask=(down[:, None] < high) & (across[None, :] < wide))
        if KIND == "entropy":
            tl.store(out + head * T + rows, entropy / LOG2_E, mask=real)

    @triton.jit
    def largest_weights_kernel(
        weights,  # (rows, S), in [0, 1]
        values,  # (rows, number)
        keys,  # (rows, number)
        S,
        number,
        most,  # bits that fewer than `number` weights reach
        mean,  # bits of 1/S
        WIDTH: tl.constexpr,  # a power of two from S on
        UNUSED: tl.constexpr,  # the last bits in float32, which are 0
    ):
        row, key = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
        weight = tl.load(weights + row * S + key, mask=key < S, other=0.0)
        # NaN is 0, and so are the keys from S on: they come last of all that are equal, and so are never kept
        bits = tl.maximum(weight.to(tl.float32), 0.0).to(tl.int32, bitcast=True) >> UNUSED
        low, high = 0 * most, most  # `number` weights or more reach `low`, fewer reach `high`
        reach_low = WIDTH  # the number of weights that reach `low`
        middle = tl.minimum(mean, high - 1)
        while high - low > 1:
            reached = WIDTH + tl.sum((bits - middle) >> 31, 0)  # the sign bit takes fewer instructions than a comparison
            reach_low = tl.where(reached >= number, reached, reach_low)
            low = tl.where(reached >= number, middle, low)
            high = tl.where(reached > number, high, tl.where(reached == number, middle + 1, middle))
            middle = (low + high) // 2
        if reach_low > number:  # of equal weights, the first ones are kept
            equal = (bits == low).to(tl.int32)
            last = tl.sum(equal, 0) - (reach_low - number)
            bits = tl.where((bits == low) & (tl.cumsum(equal, 0) > last), -1, bits)
        before = tl.cumsum(1 + ((bits - low) >> 31), 0) - 1
        # 16 bits, instead of pointers, move from the threads that read a weight to those that write it
        place = tl.where(bits >= low, before, -1).to(tl.int16).to(tl.int32)
        kept = place.to(tl.uint32, bitcast=True) < number  # 0 or more, and inside of the row whatever the weights are
        tl.store(values + row * number + place, weight, mask=kept)
        tl.store(keys + row * number + place, key.to(keys.dtype.element_ty), mask=kept)
