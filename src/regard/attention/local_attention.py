"""Restricted self-attention: every position looks at a neighbourhood of r only (Vaswani et al. 2017, sec. 4), and only that is
computed.

A mask alone saves nothing: the kernels score all n² pairs and then hide most of them. Here the queries go in blocks of c, each
against the c + r - 1 keys that any query of the block may see. The paper counts r pairs a query; blocks score up to 2r of them
(more where r < 32, the shortest block), for the price of a few large products instead of many small ones.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def local_block_size(window: int) -> int:
    """c, the queries that go together; `window` is that of `Mask`, so that r = 2 · window - 1."""
    return max(2 * window, 32)


def local_attention_pairs(n: int, window: int) -> int:
    """Pairs of a query and a key that are scored among n positions: all, unless blocks at least halve them."""
    block = local_block_size(window)
    in_blocks = -(-n // block) * block * (block + 2 * (window - 1))  # the last block is filled up
    return in_blocks if 2 * in_blocks <= n * n else n * n


def local_attention(q: Tensor, k: Tensor, v: Tensor, window: int, *, scale: float | None = None, dropout: float = 0.0) -> Tensor:
    """attend() with `Mask(window=window)`, block by block: (B, H, T, K), (B, G, T, K), (B, G, T, J) -> (B, H, T, J)."""
    B, T, reach, block = q.size(0), q.size(2), window - 1, local_block_size(window)
    blocks = -(-T // block)
    filling = blocks * block - T

    def within_reach(x: Tensor) -> Tensor:
        """What each of the N blocks may see: (B, G, T, K) -> (B·N, G, S, K), S = block + 2 · reach."""
        wide = F.pad(x, (0, 0, reach, reach + filling)).unfold(2, block + 2 * reach, block)  # (B, G, N, K, S)
        return wide.permute(0, 2, 1, 4, 3).flatten(0, 1)

    asked = F.pad(q, (0, 0, 0, filling)).unflatten(2, (blocks, block)).transpose(1, 2).flatten(0, 1)  # (B·N, H, block, K)
    first = block * torch.arange(blocks, device=q.device)[:, None, None]  # (N, 1, 1)
    query = first + torch.arange(block, device=q.device)[:, None]  # (N, block, 1) places of the queries
    key = first + torch.arange(-reach, block + reach, device=q.device)  # (N, 1, S) and of the keys
    real = ((key >= 0) & (key < T)) | (query >= T)  # what fills the last block up sees zeros, not nothing: no NaN in gradients
    seen = ((key - query).abs() < window) & real  # (N, block, S)
    mixed = F.scaled_dot_product_attention(
        asked,
        within_reach(k),
        within_reach(v),
        attn_mask=seen.repeat(B, 1, 1)[:, None],
        dropout_p=dropout,
        scale=scale,
        enable_gqa=k.size(1) != q.size(1),
    )
    return mixed.unflatten(0, (B, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :T]  # (B, H, T, J)
