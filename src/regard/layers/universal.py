"""One block applied again and again, each token as often as it needs (Dehghani et al. 2019; Graves 2016)."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.attention.kv_cache import KVCache
from regard.attention.masks import NO_MASK, Mask
from regard.attention.multihead import Attention, MultiHeadAttention
from regard.attention.positions import PositionEncoding, sinusoids
from regard.layers.block import Block, BlockConfig, SourceKV
from regard.layers.stack import Stack, collect_state


class UniversalStack(Stack):
    """A stack whose blocks share all their weights; before each step comes a signal of position and time.

    With `halting`, a token's output is the mean of its states under its halting probabilities (Graves 2016, eq. 8), and a token
    that has halted keeps its state for the others to look at. The last forward pass leaves behind `steps` (B, T), how often each
    token was updated, and `ponder` (B, T), steps plus remainder, through which the cost is learned.
    """

    def __init__(
        self,
        shape: BlockConfig,
        steps: int,
        positions: PositionEncoding,
        *,
        source_width: int | None = None,
        widths: None = None,
        embedding_dropout: nn.Module | None = None,
        halting: bool = True,
        threshold: float = 0.99,
    ):
        super().__init__(shape, 1, positions, source_width=source_width, embedding_dropout=embedding_dropout)
        first = next(self.layers())
        self.blocks.extend(share_weights(first) for _ in range(steps - 1))
        self.halt = nn.Linear(shape.width, 1) if halting else None
        self.threshold = threshold
        self.steps: Tensor | None = None
        self.ponder: Tensor | None = None

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask = NO_MASK,
        caches: Sequence[KVCache] | None = None,
        sources: Sequence[SourceKV] | None = None,
        states: list[Tensor] | None = None,
        begins: Tensor | None = None,
    ) -> Tensor:
        at, options = self.prepare(x, mask, caches, sources, begins)
        x = self.dropout(x)
        mixed, spent = torch.zeros_like(x), x.new_zeros(x.shape[:2])  # (B, T, D), (B, T) probability used up
        steps, remainder = torch.zeros_like(spent), torch.zeros_like(spent)
        for time, (block, given) in enumerate(zip(self.layers(), options)):
            collect_state(states, x)
            signal = sinusoids(torch.tensor(time, device=x.device), x.size(-1)).to(x.dtype)
            after = block(self.positions.embed(x, at) + signal, mask=mask, **given)
            if self.halt is None:
                x = after
                continue
            running = spent < self.threshold
            p = self.halt(after).sigmoid()[..., 0]  # (B, T)
            last = running & ((spent + p >= self.threshold) | (time == len(options) - 1))
            weight = torch.where(last, 1 - spent, p) * running
            mixed = mixed + weight[..., None] * after
            remainder = remainder + torch.where(last, weight, 0.0)
            steps = steps + running
            spent = torch.where(last, 1.0, spent + weight)
            x = torch.where(running[..., None], after, x)
        if self.halt is not None:
            self.steps, self.ponder = steps.detach(), steps.detach() + remainder
        return collect_state(states, self.norm(x if self.halt is None else mixed))


def share_weights(block: Block) -> Block:
    """The same block in another place: every weight is shared, only the places where one looks are its own."""
    twin = twin_of(block)
    for name, child in block.named_children():
        if isinstance(child, MultiHeadAttention):
            own = twin_of(child)
            own.attend = Attention(child.attend.dropout, child.attend.scale)
            setattr(twin, name, own)
    return twin


def twin_of(module):
    """A copy that shares parameters and children, but whose children can be exchanged."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
