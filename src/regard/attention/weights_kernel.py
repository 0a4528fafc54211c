"""A Triton kernel that computes attention weights, their block means or their entropies in one pass, without a temporary map.

Each program handles TILE queries of one head and reads the keys twice: once for the largest score m and the sum l of exp(s - m)
(online softmax, Milakov & Gimelshein 2018), once for the weights exp(s - m) / l. A mask reaches the kernel as one interval of
keys per query (`Mask.intervals`); one that is no interval becomes -inf in the bias, as in `core.fused_attention`. The kernel must
equal the written-out equation in core.py (tests/attention/test_gpu.py). Triton comes with torch for GPUs; without it,
lazy_maps.py computes a map in chunks.
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

SUPPORTED_MASKS = {"causal", "prefix", "lengths", "starts", "window", "documents", "allowed"}
MAX_HEAD_WIDTH = 256
LARGEST_BLOCK = 32
"""Block means up to this size are computed by one program; larger ones are averages of these."""

BIAS_LAYOUTS = {(False, False): "shared", (False, True): "head", (True, False): "batch", (True, True): "both"}
"""Whether each sentence and each head has a bias of its own."""


def can_run(q: Tensor, mask: Mask | None) -> bool:
    """Return whether the kernel supports these queries under this mask."""
    return (
        triton is not None
        and q.is_cuda
        and q.size(-1) <= MAX_HEAD_WIDTH
        and (mask or NO_MASK).structure <= SUPPORTED_MASKS
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
    """Compute the tensors that a record keeps of a map (`part_shapes`) into `parts`; return False for a kind the kernel lacks."""
    if kind not in ("weights", "entropy", "blocks") or (kind == "blocks" and size & (size - 1)):
        return False
    q, k, intervals, bias = prepare(q, k, mask or NO_MASK, bias, scale)
    if kind != "blocks":
        launch(kind, 1, parts[kind], q, k, intervals, bias)
    elif size <= LARGEST_BLOCK:
        launch(kind, size, parts["means"], q, k, intervals, bias)
    else:
        B, H, T, S = (*q.shape[:3], k.size(2))
        sums = q.new_empty(B, H, -(-T // LARGEST_BLOCK), -(-S // LARGEST_BLOCK), dtype=torch.float32)
        launch("sums", LARGEST_BLOCK, sums, q, k, intervals, bias)
        sums = F.avg_pool2d(sums, size // LARGEST_BLOCK, ceil_mode=True, divisor_override=1)
        heights, widths = (torch.full((-(-n // size),), size, device=q.device) for n in (T, S))
        heights[-1], widths[-1] = T - (len(heights) - 1) * size, S - (len(widths) - 1) * size
        parts["means"].copy_(sums / (heights[:, None] * widths))
    return True


def prepare(
    q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return what the kernel reads, all contiguous: scaled queries and keys whose width is a power of two, the interval of keys
    [first, end) of each query (B, T, 2), and the bias (B or 1, H or 1, T, S) with the part of the mask that is no interval."""
    (B, _, T, K), S = q.shape, k.size(2)
    found = mask.intervals(T, S, q.device)
    if found is None:
        allowed = mask.dense(T, S, q.device)
        assert allowed is not None, "an empty mask is an interval"
        bias = torch.where(allowed, q.new_zeros(()) if bias is None else bias, float("-inf"))
        found = NO_MASK.intervals(T, S, q.device)
        assert found is not None
    if bias is not None:
        bias = bias[(None,) * (4 - bias.dim())].expand(-1, -1, T, S).contiguous()
    padding = max(16, 1 << (K - 1).bit_length()) - K
    q, k = (F.pad(x, (0, padding)) if padding else x for x in (q * (K**-0.5 if scale is None else scale), k))
    return q.contiguous(), k.contiguous(), found.expand(B, T, 2).contiguous(), bias


def launch(kind: str, size: int, out: Tensor, q: Tensor, k: Tensor, intervals: Tensor, bias: Tensor | None) -> None:
    (B, H, T, K), (G, S) = q.shape, k.shape[1:3]
    layout = "none" if bias is None else BIAS_LAYOUTS[bias.size(0) > 1, bias.size(1) > 1]
    assert out.is_contiguous()
    attention_map_kernel[(triton.cdiv(T, TILE.value), H, B)](q, k, out, intervals, bias, T, S, H // G, layout, kind, size, K)


if triton is not None:
    TILE = tl.constexpr(64)

    @triton.jit
    def tile_scores(q, k, bias, n, rows, first, end, T, S, BIAS: tl.constexpr, K: tl.constexpr):
        """Return the scores of a tile of queries and the TILE keys from n on; -inf outside of each query's interval."""
        keys, dims = n + tl.arange(0, TILE), tl.arange(0, K)
        tile = tl.load(k + keys[None, :].to(tl.int64) * K + dims[:, None], mask=keys[None, :] < S, other=0.0)
        s = tl.dot(q, tile, input_precision="ieee")  # which concerns float32 alone
        if BIAS != "none":
            inside = (rows[:, None] < T) & (keys[None, :] < S)
            s += tl.load(bias + rows[:, None].to(tl.int64) * S + keys[None, :], mask=inside, other=0.0).to(tl.float32)
        return tl.where((keys[None, :] >= first[:, None]) & (keys[None, :] < end[:, None]), s, -float("inf"))

    @triton.jit
    def attention_map_kernel(
        q,  # (B, H, T, K), scaled
        k,  # (B, G, S, K)
        out,  # (B, H, T, S) weights, (B, H, T) entropies, (B, H, ⌈T/SIZE⌉, ⌈S/SIZE⌉) block means or sums
        intervals,  # (B, T, 2)
        bias,  # (B or 1, H or 1, T, S)
        T,
        S,
        queries_per_key,  # heads that share one head of keys
        BIAS: tl.constexpr,
        KIND: tl.constexpr,
        SIZE: tl.constexpr,
        K: tl.constexpr,
    ):
        h, b, H = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64), tl.num_programs(1)
        head = b * H + h
        rows, dims = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, K)
        real = rows < T
        first = tl.load(intervals + 2 * (b * T + rows), mask=real, other=2147483647)
        end = tl.load(intervals + 2 * (b * T + rows) + 1, mask=real, other=0)
        queries = tl.load(q + head * T * K + rows[:, None].to(tl.int64) * K + dims[None, :], mask=real[:, None], other=0.0)
        k += (b * (H // queries_per_key) + h // queries_per_key) * S * K
        if BIAS == "head":
            bias += h * T * S
        elif BIAS == "batch":
            bias += b * T * S
        elif BIAS == "both":
            bias += head * T * S

        m, total = tl.full((TILE,), -float("inf"), tl.float32), tl.zeros((TILE,), tl.float32)
        for n in range(tl.min(first) // TILE * TILE, tl.max(end), TILE):
            s = tile_scores(queries, k, bias, n, rows, first, end, T, S, BIAS, K)
            larger = tl.maximum(m, tl.max(s, 1))
            base = tl.where(larger == -float("inf"), 0.0, larger)  # no key seen so far
            total = total * tl.exp(m - base) + tl.sum(tl.exp(s - base[:, None]), 1)
            m = larger
        m = tl.where(m == -float("inf"), 0.0, m)
        normalizer = tl.where(total > 0, 1.0 / total, 0.0)  # a query that may look nowhere gives zeros
        log_normalizer = m + tl.log(tl.where(total > 0, total, 1.0))

        entropy = tl.zeros((TILE,), tl.float32)
        for n in range(0, S, TILE):
            s = tile_scores(queries, k, bias, n, rows, first, end, T, S, BIAS, K)
            p = tl.exp(s - m[:, None]) * normalizer[:, None]
            if KIND == "weights":
                keys = n + tl.arange(0, TILE)
                place = out + head * T * S + rows[:, None].to(tl.int64) * S + keys[None, :]
                tl.store(place, p.to(out.dtype.element_ty), mask=real[:, None] & (keys[None, :] < S))
            elif KIND == "entropy":
                entropy += tl.sum(tl.where(p > 0, p * (log_normalizer[:, None] - s), 0.0), 1)
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
            tl.store(out + head * T + rows, entropy, mask=real)
