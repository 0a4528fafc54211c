"""Blocks one after another, with the positions they share: an encoder or a decoder."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.attention.kv_cache import KVCache
from regard.attention.masks import NO_MASK, GridPattern, Mask
from regard.attention.positions import PositionEncoding
from regard.layers.block import Block, BlockConfig, SourceKV
from regard.layers.norm import build_norm


class Stack(nn.Module):
    """Embeddings (B, T, D) -> contextual vectors (B, T, D of the last layer)."""

    def __init__(
        self,
        shape: BlockConfig,
        layers: int,
        positions: PositionEncoding,
        *,
        source_width: int | None = None,
        widths: Sequence[int] | None = None,
        windows: Sequence[int | None] | None = None,
        grids: Sequence[GridPattern | None] | None = None,
        embedding_dropout: nn.Module | None = None,
        embedding_norm: bool = False,
    ):
        super().__init__()
        widths = [shape.width, *(widths or [shape.width] * layers)]
        self.positions = positions
        self.embedding_norm = build_norm(shape.norm, shape.width, shape.norm_epsilon) if embedding_norm else nn.Identity()
        self.dropout = embedding_dropout or nn.Identity()
        sights = zip(widths, windows or [None] * layers, grids or [None] * layers)
        shapes = [
            replace(shape, width=width, window=window, grid=grid, drop_path=shape.drop_path * number / layers)
            for number, (width, window, grid) in enumerate(sights, start=1)
        ]
        self.blocks = nn.ModuleList(Block(one, source_width=source_width, out_width=out) for one, out in zip(shapes, widths[1:]))
        self.width = widths[-1]
        self.norm = build_norm(shape.norm, self.width, shape.norm_epsilon) if shape.norm_first else nn.Identity()

    def layers(self) -> Iterator[Block]:
        return cast(Iterator[Block], iter(self.blocks))

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
        """`states` collects the embeddings with their positions and what each block makes of them, the last one normalised.
        `begins` (B,) is the first position of each row, 0 when not given."""
        at, options = self.prepare(x, mask, caches, sources, begins)
        x = self.dropout(self.embedding_norm(self.positions.embed(x, at)))
        for block, given in zip(self.layers(), options):
            collect_state(states, x)
            x = block(x, mask=mask, **given)
        return collect_state(states, self.norm(x))

    def prepare(
        self, x: Tensor, mask: Mask, caches: Sequence[KVCache] | None, sources: Sequence[SourceKV] | None, begins: Tensor | None
    ) -> tuple[Tensor, list[dict[str, Any]]]:
        """The positions of what is read (T,) or (B, T), and what each block is given besides it."""
        past = caches[0].length if caches else 0
        key_at = token_positions(past + x.size(1), mask, x.device)  # (S,) or (B, S)
        key_at = key_at if begins is None else key_at + begins[:, None]  # (B, S)
        at = key_at[..., past:]
        rotation, bias = self.positions.rotation(at), self.positions.bias(at, key_at)
        nothing = [None] * len(self.blocks)
        return at, [
            {"rotation": rotation, "bias": bias, "cache": cache, "source": source}
            for cache, source in zip(caches or nothing, sources or nothing)
        ]


def collect_state(states: list[Tensor] | None, x: Tensor) -> Tensor:
    if states is not None:
        states.append(x)
    return x


def token_positions(length: int, mask: Mask, device: torch.device) -> Tensor:
    """0, 1, 2 …, counted from where each row begins, or in it each document."""
    if mask.documents is not None and mask.packed is not None:
        return mask.packed.place
    at = torch.arange(length, device=device)
    return at if mask.starts is None else (at - mask.starts[:, None]).clamp(min=0)
