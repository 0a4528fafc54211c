"""One block applied repeatedly, for each token as often as it needs (Dehghani et al. 2019; Graves 2016)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.attention.kv_cache import KVCache
from regard.attention.masks import NO_MASK, Mask
from regard.attention.positions import PositionEncoding, sinusoids
from regard.layers.block import BlockConfig, SourceKV
from regard.layers.stack import Stack, collect_state, new_positions, share_weights


class UniversalStack(Stack):
    """A stack whose blocks share all weights; an encoding of position and time step is added before each step.

    With `halting`, a token's output is the mean of its states under its halting probabilities (Graves 2016, eq. 8); a halted
    token keeps its state, which the others still see. A forward pass sets `steps` (B, T), the number of updates of each token,
    and `ponder` (B, T), steps plus remainder, through which the ponder cost is learned.
    """

    def __init__(
        self,
        config: BlockConfig,
        steps: int,
        positions: PositionEncoding,
        *,
        source_width: int | None = None,
        widths: None = None,
        embedding_dropout: nn.Module | None = None,
        halting: bool = True,
        threshold: float = 0.99,
    ):
        super().__init__(config, 1, positions, source_width=source_width, embedding_dropout=embedding_dropout)
        first = next(self.layers())
        self.blocks.extend(share_weights(first) for _ in range(steps - 1))
        self.halt = nn.Linear(config.width, 1) if halting else None
        self.threshold = threshold
        self.step_encodings: Tensor
        self.register_buffer("step_encodings", sinusoids(torch.arange(steps), config.width).float(), persistent=False)
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
        position_offsets: Tensor | None = None,
        segment: Tensor | None = None,
    ) -> Tensor:
        positions = new_positions(x, mask, caches, position_offsets)
        options = self.prepare(x, mask, caches, sources, position_offsets)
        x = self.dropout(x if segment is None else x + segment)
        mean, used = torch.zeros_like(x), x.new_zeros(x.shape[:2])  # (B, T, D), (B, T) halting probability so far
        steps, remainder = torch.zeros_like(used), torch.zeros_like(used)
        encodings = self.step_encodings.to(x.dtype)
        for step, (block, given) in enumerate(zip(self.layers(), options)):
            collect_state(states, x)
            after = block(self.positions.embed(x, positions) + encodings[step], mask=mask, **given)
            if self.halt is None:
                x = after
                continue
            running = used < self.threshold
            p = self.halt(after).sigmoid()[..., 0]  # (B, T)
            last = running & ((used + p >= self.threshold) | (step == len(options) - 1))
            weight = torch.where(last, 1 - used, p) * running
            mean = mean + weight[..., None] * after
            remainder = remainder + torch.where(last, weight, 0.0)
            steps = steps + running
            used = torch.where(last, 1.0, used + weight)
            x = torch.where(running[..., None], after, x)
        if self.halt is not None:
            self.steps, self.ponder = steps.detach(), steps.detach() + remainder
        return collect_state(states, self.norm(x if self.halt is None else mean))
