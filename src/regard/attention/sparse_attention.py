"""Attention that scores only the pairs a mask allows: packed documents and local windows.

A mask alone saves nothing, because the kernels score all n² pairs and then hide most of them. Both functions here regroup the
sequence into independent pieces, attend within each in a fused kernel, and put the results back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PackedDocuments:
    """The N documents of a packed batch (Raffel et al. 2020, sec. 2.1; Krell et al. 2021), numbered over all of its rows."""

    index: Tensor  # (B, T) the document of each position
    positions: Tensor  # (B, T) its position in the document
    offsets: Tensor  # (N + 1,) cumulative lengths, the cu_seqlens of varlen kernels
    max_length: int
    in_order: bool = True
    """Whether they follow each other in the order of their numbers, each in one piece."""

    @cached_property
    def int_offsets(self) -> Tensor:
        """The offsets as kernels read them."""
        return self.offsets.int()

    @property
    def pairs(self) -> int:
        """The number of query-key pairs that `attend_documents` scores."""
        return (len(self.offsets) - 1) * self.max_length**2

    def unpack(self, x: Tensor, length: int) -> Tensor:
        """Return each document in a row of its own, followed by zeros: (B, H, T, K) -> (N, H, length, K)."""
        rows = x.new_zeros(len(self.offsets) - 1, length, x.size(1), x.size(3))
        rows[self.index, self.positions] = x.transpose(1, 2)
        return rows.transpose(1, 2)

    def pack(self, rows: Tensor) -> Tensor:
        """Undo `unpack`: (N, H, length, K) -> (B, H, T, K)."""
        return rows.transpose(1, 2)[self.index, self.positions].transpose(1, 2)


def locate_documents(numbers: Tensor) -> PackedDocuments:
    """Find the documents of a batch from the number of each position's document (B, T), which is unique within its row only."""
    within_row = numbers - numbers.min()
    rows = torch.arange(len(numbers), device=numbers.device)[:, None]
    _, index, lengths = torch.unique(within_row + rows * (within_row.max() + 1), return_inverse=True, return_counts=True)
    begins = F.pad(index.flatten().diff() != 0, (1, 0), value=True)  # (B·T,) whether a piece begins here
    in_order = int(begins.sum()) == len(lengths)
    if in_order:  # number them as they come
        index = (begins.cumsum(0) - 1).view_as(index)
        lengths = index.flatten().bincount(minlength=len(lengths))
    offsets = F.pad(lengths.cumsum(0), (1, 0))  # (N + 1,)
    order = index.flatten().argsort(stable=True)  # (B·T,) document by document
    positions = torch.empty_like(order)
    positions[order] = torch.arange(len(order), device=order.device) - offsets[index.flatten()[order]]
    return PackedDocuments(index, positions.view_as(index), offsets, int(lengths.max()), in_order)


def pack_rows(lengths: Sequence[int], device: torch.device) -> PackedDocuments:
    """Return rows of these lengths as the documents of one packed row (1, N), without padding."""
    counts = torch.tensor(lengths, device=device)
    offsets = F.pad(counts.cumsum(0), (1, 0))
    index = torch.repeat_interleave(torch.arange(len(counts), device=device), counts, output_size=sum(lengths))
    positions = torch.arange(len(index), device=device) - offsets[index]
    return PackedDocuments(index[None], positions[None], offsets, max(lengths))


def attend_documents(
    q: Tensor, k: Tensor, v: Tensor, documents: PackedDocuments, *, causal: bool, scale: float | None = None, dropout: float = 0.0
) -> Tensor:
    """Return `attend` under `Mask(documents=…)`, with each document in a row of its own, padded to the longest: (B, H, T, K),
    (B, G, T, K), (B, G, T, J) -> (B, H, T, J)."""
    if documents.in_order and _has_varlen_kernel(q, k, v):
        queries, keys, values = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B·T, H, K) each
        offsets, longest = documents.int_offsets, documents.max_length
        mixed: Tensor = torch.ops.aten._flash_attention_forward(
            queries, keys, values, offsets, offsets, longest, longest, dropout, causal, False, scale=scale
        )[0]
        return mixed.unflatten(0, (q.size(0), q.size(2))).transpose(1, 2)
    real = None  # causal queries never see the padding behind them
    if not causal:
        real = torch.arange(documents.max_length, device=q.device) < documents.offsets.diff()[:, None]  # (N, L)
        real = real[:, None, None].expand(-1, 1, documents.max_length, -1)
    mixed = F.scaled_dot_product_attention(
        documents.unpack(q, documents.max_length),
        documents.unpack(k, documents.max_length),
        documents.unpack(v, documents.max_length),
        attn_mask=real,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=k.size(1) != q.size(1),
    )
    return documents.pack(mixed)


def _has_varlen_kernel(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether the kernel of torch for documents of various lengths (Dao 2023) supports these; it computes no padding."""
    same_sizes = q.size(1) == k.size(1) and q.size(3) == v.size(3) <= 256 and q.size(3) % 8 == 0
    return q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) and same_sizes


def local_block_size(window: int) -> int:
    """Return c, the queries of one block of `local_attention`; `window` is that of `Mask`, so that r = 2 · window - 1."""
    return max(2 * window, 32)


def local_attention_pairs(n: int, window: int) -> int:
    """Return the number of query-key pairs scored among n positions: all, unless blocks at least halve them.

    Vaswani et al. 2017 (sec. 4) count r pairs per query; blocks score up to 2r (more where r < 32, the smallest block), in a few
    large products instead of many small ones.
    """
    block = local_block_size(window)
    in_blocks = -(-n // block) * block * (block + 2 * (window - 1))  # the last block is padded
    return in_blocks if 2 * in_blocks <= n * n else n * n


def local_attention(q: Tensor, k: Tensor, v: Tensor, window: int, *, scale: float | None = None, dropout: float = 0.0) -> Tensor:
    """Return `attend` under `Mask(window=window)`, restricted self-attention (Vaswani et al. 2017, sec. 4): (B, H, T, K),
    (B, G, T, K), (B, G, T, J) -> (B, H, T, J).

    Queries go in blocks of c, each against the c + r - 1 keys that any query of the block may see.
    """
    B, T, reach, block = q.size(0), q.size(2), window - 1, local_block_size(window)
    blocks = -(-T // block)
    padding = blocks * block - T

    def neighbourhoods(x: Tensor) -> Tensor:
        """The keys or values that each of the N blocks may see: (B, G, T, K) -> (B·N, G, S, K), S = block + 2 · reach."""
        wide = F.pad(x, (0, 0, reach, reach + padding)).unfold(2, block + 2 * reach, block)  # (B, G, N, K, S)
        return wide.permute(0, 2, 1, 4, 3).flatten(0, 1)

    queries = F.pad(q, (0, 0, 0, padding)).unflatten(2, (blocks, block)).transpose(1, 2).flatten(0, 1)  # (B·N, H, block, K)
    first = block * torch.arange(blocks, device=q.device)[:, None, None]  # (N, 1, 1)
    query = first + torch.arange(block, device=q.device)[:, None]  # (N, block, 1) positions of the queries
    key = first + torch.arange(-reach, block + reach, device=q.device)  # (N, 1, S) and of the keys
    real = ((key >= 0) & (key < T)) | (query >= T)  # padded queries see zeros instead of nothing: no NaN in gradients
    visible = ((key - query).abs() < window) & real  # (N, block, S)
    mixed = F.scaled_dot_product_attention(
        queries,
        neighbourhoods(k),
        neighbourhoods(v),
        attn_mask=visible.repeat(B, 1, 1)[:, None],
        dropout_p=dropout,
        scale=scale,
        enable_gqa=k.size(1) != q.size(1),
    )
    return mixed.unflatten(0, (B, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :T]  # (B, H, T, J)
