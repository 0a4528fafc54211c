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
from regard.layers.norm import Update, add_and_norm, build_norm
from regard.layers.unpadding import has_hooks, knows_lengths, run_without_padding

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
        segment: Tensor | None = None,
    ) -> Tensor:
        """`states` collects the embeddings with their positions and the output of each block, the last one normalised.
        `position_offsets` (B,) are the first positions of the rows, 0 by default. `segment` (D,) is added to all embeddings."""
        alone = caches is None and sources is None and states is None and position_offsets is None
        reads_lengths = alone and knows_lengths(x, mask)
        if reads_lengths:
            mask.start_reading_lengths()  # and launch what does not depend on them
        if self.positions.is_added:
            x = self.positions.embed(x, new_positions(x, mask, caches, position_offsets), segment)
        elif segment is not None:
            x = x + segment
        x = self.projection(self.dropout(add_and_norm(x, None, self.embedding_norm, is_stream=True)[1]))
        if reads_lengths:
            return run_without_padding(self._run_blocks, x, mask, may_pack=self._may_pack)
        return self._run_blocks(x, mask, caches, sources, states, position_offsets)

    def _run_blocks(
        self,
        x: Tensor,
        mask: Mask,
        caches: Sequence[KVCache] | None = None,
        sources: Sequence[SourceKV] | None = None,
        states: list[Tensor] | None = None,
        position_offsets: Tensor | None = None,
    ) -> Tensor:
        """Return the output (B, T, width) for the input of the first block."""
        options = self.prepare(x, mask, caches, sources, position_offsets)
        has_kernels = states is None and (runs_inference_kernels(x) or (self.training and runs_training_kernels(x)))
        update: Update | None = None
        for block, given in zip(self.layers(), options):
            if has_kernels and not block.has_skipped_hooks:
                x, update = block.stream(x, update, mask=mask, **given)  # the next norm adds the update, in one kernel
                continue
            x, update = x if update is None else update.add_to(x), None
            collect_state(states, x)
            x = block(x, mask=mask, **given)
        return collect_state(states, add_and_norm(x, update, self.norm)[1])

    @property
    def sees_everything(self) -> bool:
        """Whether attention depends on the mask alone: no windows, no grids, no bias by position."""
        return all(block.sparsity is None for block in self.layers()) and type(self.positions).bias is PositionEncoding.bias

    def _may_pack(self) -> bool:
        """Return whether rows may run without their padding."""
        return self.sees_everything and not has_hooks(self)

    def prepare(
        self,
        x: Tensor,
        mask: Mask,
        caches: Sequence[KVCache] | None,
        sources: Sequence[SourceKV] | None,
        position_offsets: Tensor | None,
    ) -> list[dict[str, Any]]:
        """Return the keyword arguments of each block."""
        none, local = [None] * len(self.blocks), [block.is_local for block in self.layers()]
        bias: Tensor | None = None
        rotations: dict[bool, Rotation | None] = dict.fromkeys(local)
        if not self.positions.is_added:
            keys = token_positions(x, mask, caches, position_offsets)  # (S,) or (B, S)
            queries = keys[..., caches[0].length if caches else 0 :]
            bias = self.positions.bias(queries, keys)
            rotations = {kind: self.positions.rotation(queries, local=kind) for kind in set(local)}
        return [
            {"rotation": rotations[kind], "bias": bias, "cache": cache, "source": source}
            for kind, cache, source in zip(local, caches or none, sources or none)
        ]


def new_positions(x: Tensor, mask: Mask, caches: Sequence[KVCache] | None, position_offsets: Tensor | None) -> Tensor | range:
    """Return the positions of the new tokens x (B, T, D) behind what is cached: (T,) or (B, T), or a range of them."""
    past = caches[0].length if caches else 0
    same_for_all = mask.starts is None and mask.documents is None and position_offsets is None
    if same_for_all and (caches or not torch.compiler.is_compiling()):  # when traced, the length is a symbol
        return range(past, past + x.size(1))
    return token_positions(x, mask, caches, position_offsets)[..., past:]


def collect_state(states: list[Tensor] | None, x: Tensor) -> Tensor:
    if states is not None:
        states.append(x)
    return x


def token_positions(x: Tensor, mask: Mask, caches: Sequence[KVCache] | None, position_offsets: Tensor | None) -> Tensor:
    """Return the positions of all tokens, cached or new, counted from the start of each row, or of each document in it: (S,) or
    (B, S)."""
    if mask.documents is not None and mask.packed_documents is not None:
        positions = mask.packed_documents.positions
    else:
        positions = torch.arange((caches[0].length if caches else 0) + x.size(1), device=x.device)
        positions = positions if mask.starts is None else (positions - mask.starts[:, None]).clamp(min=0)
    return positions if position_offsets is None else positions + position_offsets[:, None]


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
