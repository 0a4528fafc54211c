"""A stack of blocks and the positions they share: an encoder or a decoder."""

import copy
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from regard.attention.kv_cache import KVCache
from regard.attention.masks import NO_MASK, GridPattern, Mask
from regard.attention.multihead import Attention, MultiHeadAttention
from regard.attention.positions import PositionEncoding, Rotation
from regard.hardware import runs_inference_kernels, runs_training_kernels
from regard.layers.block import Block, BlockConfig, SourceKV
from regard.layers.norm import Residual, Update, add_and_norm, build_norm
from regard.layers.unpadding import has_hooks, is_hooked, knows_lengths, run_without_padding

Module = TypeVar("Module", bound=nn.Module)


class Stack(nn.Module):
    """Embeddings (B, T, D) -> contextual vectors (B, T, width of the last layer).

    With `embedding_width`, the embeddings have that width, and a layer projects them to D; with `share_layers`, all blocks share
    their weights (ALBERT, Lan et al. 2020, sec. 3.1).
    """

    def __init__(
        self,
        config: BlockConfig,
        layers: int,
        positions: PositionEncoding,
        *,
        source_width: int | None = None,
        widths: Sequence[int] | None = None,
        windows: Sequence[int | None] | None = None,
        grids: Sequence[GridPattern | None] | None = None,
        embedding_dropout: nn.Module | None = None,
        embedding_norm: bool = False,
        embedding_width: int | None = None,
        share_layers: bool = False,
    ):
        super().__init__()
        embedded = embedding_width or config.width
        widths = [config.width, *(widths or [config.width] * layers)]
        self.positions = positions
        self.embedding_norm = build_norm(config.norm, embedded, config.norm_epsilon) if embedding_norm else nn.Identity()
        self.dropout = embedding_dropout or nn.Identity()
        self.projection = nn.Linear(embedded, config.width) if embedding_width else nn.Identity()
        per_layer = zip(widths, windows or [None] * layers, grids or [None] * layers)
        configs = [
            replace(config, width=width, window=window, grid=grid, drop_path=config.drop_path * number / layers)
            for number, (width, window, grid) in enumerate(per_layer, start=1)
        ]
        if share_layers:
            first = Block(configs[-1], source_width=source_width)
            self.blocks = nn.ModuleList([first, *(share_weights(first) for _ in range(layers - 1))])
        else:
            self.blocks = nn.ModuleList(
                Block(one, source_width=source_width, out_width=out) for one, out in zip(configs, widths[1:])
            )
        self.width = widths[-1]
        self.norm = build_norm(config.norm, self.width, config.norm_epsilon) if config.norm_first else nn.Identity()

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
        position_offsets: Tensor | None = None,
    ) -> Tensor:
        """`states` collects the embeddings with their positions and the output of each block, the last one normalised.
        `position_offsets` (B,) are the first positions of the rows, 0 by default."""
        alone = caches is None and sources is None and states is None and position_offsets is None
        if alone and knows_lengths(x, mask):
            return run_without_padding(
                lambda x, mask: self._forward(x, mask),
                x,
                mask,
                may_pack=lambda: self.sees_everything and not has_hooks(self),
            )
        return self._forward(x, mask, caches, sources, states, position_offsets)

    def _forward(
        self,
        x: Tensor,
        mask: Mask,
        caches: Sequence[KVCache] | None = None,
        sources: Sequence[SourceKV] | None = None,
        states: list[Tensor] | None = None,
        position_offsets: Tensor | None = None,
    ) -> Tensor:
        positions, options = self.prepare(x, mask, caches, sources, position_offsets)
        x = self.projection(self.dropout(self.embedding_norm(self.positions.embed(x, positions))))
        has_kernels = runs_inference_kernels(x) or (self.training and runs_training_kernels(x))
        if states is None and has_kernels and not any(map(is_hooked, self._skipped_by_stream())):
            return self._stream(x, mask, options)
        for block, given in zip(self.layers(), options):
            collect_state(states, x)
            x = block(x, mask=mask, **given)
        return collect_state(states, add_and_norm(x, None, self.norm)[1])

    def _stream(self, x: Tensor, mask: Mask, options: list[dict[str, Any]]) -> Tensor:
        """Return the same, with each residual update added by the norm that follows it, in one kernel."""
        update: Update | None = None
        for block, given in zip(self.layers(), options):
            x, update = block.stream(x, update, mask=mask, **given)
        return add_and_norm(x, update, self.norm)[1]

    def _skipped_by_stream(self) -> Iterator[nn.Module]:
        """Yield the modules that `_stream` does not call as modules; it calls all others, so that their hooks run."""
        for block in self.layers():
            yield block
            yield from (part for part in block._modules.values() if isinstance(part, Residual))

    @property
    def sees_everything(self) -> bool:
        """Whether attention depends on the mask alone: no windows, no grids, no bias by position."""
        return all(block.sparsity is None for block in self.layers()) and type(self.positions).bias is PositionEncoding.bias

    def prepare(
        self,
        x: Tensor,
        mask: Mask,
        caches: Sequence[KVCache] | None,
        sources: Sequence[SourceKV] | None,
        position_offsets: Tensor | None,
    ) -> tuple[Tensor | range, list[dict[str, Any]]]:
        """Return the positions of the new tokens, (T,) or (B, T), or a range of them, and the keyword arguments of each block."""
        past, none = caches[0].length if caches else 0, [None] * len(self.blocks)
        local = [block.is_local for block in self.layers()]
        same_for_all = mask.starts is None and mask.documents is None and position_offsets is None
        positions: Tensor | range
        bias: Tensor | None = None
        rotations: dict[bool, Rotation | None] = dict.fromkeys(local)
        if caches and same_for_all and self.positions.is_added:
            positions = range(past, past + x.size(1))  # not of an exported model, whose length is a symbol
        else:
            key_positions = token_positions(past + x.size(1), mask, x.device)  # (S,) or (B, S)
            if position_offsets is not None:
                key_positions = key_positions + position_offsets[:, None]  # (B, S)
            positions = key_positions[..., past:]
            bias = self.positions.bias(positions, key_positions)
            rotations = {kind: self.positions.rotation(positions, local=kind) for kind in set(local)}
        return positions, [
            {"rotation": rotations[kind], "bias": bias, "cache": cache, "source": source}
            for kind, cache, source in zip(local, caches or none, sources or none)
        ]


def collect_state(states: list[Tensor] | None, x: Tensor) -> Tensor:
    if states is not None:
        states.append(x)
    return x


def token_positions(length: int, mask: Mask, device: torch.device) -> Tensor:
    """Return 0, 1, 2 …, counted from the start of each row, or of each document in it."""
    if mask.documents is not None and mask.packed_documents is not None:
        return mask.packed_documents.positions
    positions = torch.arange(length, device=device)
    return positions if mask.starts is None else (positions - mask.starts[:, None]).clamp(min=0)


def share_weights(block: Block) -> Block:
    """Return a block that shares every weight with this one, but has attention modules of its own to watch."""
    twin = _shallow_copy(block)
    for name, child in block.named_children():
        if isinstance(child, MultiHeadAttention):
            own = _shallow_copy(child)
            own.attend = Attention(child.attend.dropout, child.attend.scale, child.attend.score)
            setattr(twin, name, own)
    return twin


def _shallow_copy(module: Module) -> Module:
    """Return a copy that shares parameters and children, but whose children can be replaced, and which has its own hooks."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    twin._forward_hooks, twin._forward_pre_hooks = OrderedDict(), OrderedDict()
    return twin
