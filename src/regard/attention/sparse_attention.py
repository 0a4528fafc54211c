"""Packed documents (Raffel et al. 2020, sec. 2.1; Krell et al. 2021): several in one row, none looking at another, and scores
computed only within them.

A mask alone saves nothing, for the kernels score all pairs of a row and then hide most. Here every document becomes a row of its
own, as long as the longest of them, is attended to in a fused kernel, and goes back to its place. `starts` are the offsets that
kernels for rows of different lengths ask for, where one is at hand.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PackedDocuments:
    """D documents in the positions of a batch, read row after row."""

    which: Tensor  # (B, T) the document of each position
    place: Tensor  # (B, T) and its place in it
    starts: Tensor  # (D + 1,) if they stood one after another
    longest: int

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that are scored."""
        return (len(self.starts) - 1) * self.longest**2


def locate_documents(numbers: Tensor) -> PackedDocuments:
    """The documents of a batch, given the number of each position's, which means something within its row only: (B, T)."""
    own = numbers - numbers.min()
    rows = torch.arange(len(numbers), device=numbers.device)[:, None]
    _, which, lengths = torch.unique(own + rows * (own.max() + 1), return_inverse=True, return_counts=True)
    starts = F.pad(lengths.cumsum(0), (1, 0))  # (D + 1,)
    order = which.flatten().argsort(stable=True)  # (B·T,) document by document
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device) - starts[which.flatten()[order]]
    return PackedDocuments(which, place.view_as(which), starts, int(lengths.max()))


def attend_documents(
    q: Tensor, k: Tensor, v: Tensor, documents: PackedDocuments, *, causal: bool, scale: float | None = None, dropout: float = 0.0
) -> Tensor:
    """attend() with `Mask(documents=…)`, document by document: (B, H, T, K), (B, G, T, K), (B, G, T, J) -> (B, H, T, J)."""
    number = len(documents.starts) - 1

    def apart(x: Tensor) -> Tensor:
        """(B, H, T, K) -> (D, H, L, K), L the longest document."""
        alone = x.new_zeros(number, documents.longest, x.size(1), x.size(3))
        alone[documents.which, documents.place] = x.transpose(1, 2)
        return alone.transpose(1, 2)

    real = None  # causal queries never see what fills a row up behind them
    if not causal:
        real = torch.arange(documents.longest, device=q.device) < documents.starts.diff()[:, None]  # (D, L)
        real = real[:, None, None].expand(-1, 1, documents.longest, -1)
    mixed = F.scaled_dot_product_attention(
        apart(q),
        apart(k),
        apart(v),
        attn_mask=real,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=k.size(1) != q.size(1),
    )
    return mixed.transpose(1, 2)[documents.which, documents.place].transpose(1, 2)
