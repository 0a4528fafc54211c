"""The attention of one text as figures take it: all layers and heads of one kind, in tiles where there are thousands of tokens.

A tile is the mean over its queries of the summed weight on its keys, so that rows stay distributions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from regard.scoring.alignment import sharpest_layer
from regard.show.figures.labels import label

MAX_TILES = 160
"""Down or across a figure."""
MAX_WEIGHTS = 2_000_000
"""In all maps of a kind together."""
TINY = 1e-12


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights (L, H, T, S) of one kind of attention, with the labels of queries, keys, layers and heads."""

    name: str
    queries: Sequence[str]
    keys: Sequence[str]
    weights: np.ndarray
    layers: Sequence[str]
    heads: Sequence[str]
    note: str = ""
    """What the weights leave out, in words."""
    tile: int = 1
    """Tokens along the side of a tile."""

    def __post_init__(self) -> None:
        shape = (len(self.layers), len(self.heads), len(self.queries), len(self.keys))
        assert self.weights.shape == shape and self.weights.size, f"expected weights {shape}, got {self.weights.shape}"

    @property
    def sharpest_layer(self) -> int:
        """The layer whose mean over heads has the lowest entropy."""
        return sharpest_layer(self.weights)


def tile_attention(
    name: str,
    layers: Iterable[np.ndarray],
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    names: Sequence[str] | None = None,
    heads: Sequence[str] | None = None,
    note: str = "",
    tiled: int = 1,
) -> AttentionMaps:
    """Collect weights (H, T, S) layer by layer, in tiles where there are too many tokens; NaN (unknown) becomes 0.

    `tiled` is the tile size that the weights have already."""
    collected: list[np.ndarray] = []
    size = 1
    count = None if names is None else len(names)
    for weights in layers:
        if not collected:
            size = tile_size(-(-len(queries) // tiled), -(-len(keys) // tiled), (count or 12) * len(weights))
        collected.append(tile_weights(np.nan_to_num(weights), size))
    stacked = np.clip(np.stack(collected), 0, 1)  # (L, H, T, S)
    size *= tiled
    notes = [note] * bool(note) + [f"tiles of {size} × {size} tokens"] * (size > 1)
    return AttentionMaps(
        name,
        tile_labels(queries, size),
        tile_labels(keys, size),
        stacked,
        names or [str(layer + 1) for layer in range(len(stacked))],
        heads or [str(head + 1) for head in range(stacked.shape[1])],
        "; ".join(notes),
        size,
    )


def tile_size(queries: int, keys: int, number: int) -> int:
    """Return the smallest tile with which a figure, and a page of so many maps, stays within its limits."""

    def fits(size: int) -> bool:
        down, across = -(-queries // size), -(-keys // size)
        few = number * down * across <= MAX_WEIGHTS or max(down, across) <= 32
        return max(down, across) <= MAX_TILES and (size == 1 or few)

    return next(size for size in range(1, queries + keys + 1) if fits(size))


def tile_weights(weights: np.ndarray, size: int) -> np.ndarray:
    """Return tiles of weights: the mean over queries of the sum over keys, (H, T, S) -> (H, ⌈T/size⌉, ⌈S/size⌉)."""
    if size == 1:
        return weights.astype(np.float32)
    _, T, S = weights.shape
    rows, cols = np.arange(0, T, size), np.arange(0, S, size)
    summed = np.add.reduceat(np.add.reduceat(weights, cols, axis=2, dtype=np.float32), rows, axis=1)
    return summed / np.diff([*rows, T])[:, None]


def tile_labels(tokens: Sequence[str], size: int) -> list[str]:
    """Return the labels of tiles: the first token and its number, counted from 1."""
    if size == 1:
        return [label(token, 24) for token in tokens]
    return [f"{start + 1} {label(tokens[start], 12)}…" for start in range(0, len(tokens), size)]
