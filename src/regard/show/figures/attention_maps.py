"""The attention of one text, all layers and heads of one kind, as the pictures take it: of thousands of tokens, tiles of them.

A tile is what its queries, on the average, give to all of its keys together: the rows are distributions as they were.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from regard.show.figures.labels import label

MAX_TILES = 160
"""Down or across a picture."""
MAX_WEIGHTS = 2_000_000
"""In all maps of a kind together."""


@dataclass(frozen=True)
class AttentionMaps:
    """What asked, what was looked at, and how much: weights (L, H, T, S)."""

    name: str
    queries: Sequence[str]
    keys: Sequence[str]
    weights: np.ndarray
    layers: Sequence[str]
    heads: Sequence[str]
    note: str = ""
    """What is not in the weights, in words."""
    tile: int = 1
    """Tokens along the side of one."""

    def __post_init__(self) -> None:
        shape = (len(self.layers), len(self.heads), len(self.queries), len(self.keys))
        assert self.weights.shape == shape and self.weights.size, f"expected weights {shape}, got {self.weights.shape}"

    @property
    def darkest(self) -> float:
        """The weight that is drawn darkest: 1, or of tiles the largest that there is."""
        return 1.0 if self.tile == 1 else float(np.clip(self.weights.max(), 1e-6, 1))


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
    """Weights (H, T, S) of each layer, one after another, in tiles where there are too many, or in larger ones where they are
    `tiled` already; what is unknown (NaN) is drawn as nothing."""
    taken: list[np.ndarray] = []
    size = 1
    count = None if names is None else len(names)
    for weights in layers:
        if not taken:
            size = tile_size(-(-len(queries) // tiled), -(-len(keys) // tiled), (count or 12) * len(weights))
        taken.append(tile_weights(np.nan_to_num(weights), size))
    stacked = np.clip(np.stack(taken), 0, 1)  # (L, H, T, S)
    size *= tiled
    said = [note] if note else []
    said += [f"tiles of {size} × {size} tokens"] if size > 1 else []
    return AttentionMaps(
        name,
        tile_labels(queries, size),
        tile_labels(keys, size),
        stacked,
        names or [str(number + 1) for number in range(len(stacked))],
        heads or [str(number + 1) for number in range(stacked.shape[1])],
        "; ".join(said),
        size,
    )


def tile_size(queries: int, keys: int, number: int) -> int:
    """The smallest that a picture, and a page with so many maps, has room for."""

    def fits(size: int) -> bool:
        down, across = -(-queries // size), -(-keys // size)
        few = number * down * across <= MAX_WEIGHTS or max(down, across) <= 32
        return max(down, across) <= MAX_TILES and (size == 1 or few)

    return next(size for size in range(1, queries + keys + 1) if fits(size))


def tile_weights(weights: np.ndarray, size: int) -> np.ndarray:
    """(H, T, S) -> (H, ⌈T/size⌉, ⌈S/size⌉): the mean over queries of the sum over keys."""
    if size == 1:
        return weights.astype(np.float32)
    _, T, S = weights.shape
    rows, cols = np.arange(0, T, size), np.arange(0, S, size)
    summed = np.add.reduceat(np.add.reduceat(weights, cols, axis=2, dtype=np.float32), rows, axis=1)
    return summed / np.diff([*rows, T])[:, None]


def tile_labels(tokens: Sequence[str], size: int) -> list[str]:
    """A tile is called by its first token and where that stands, counted from 1."""
    if size == 1:
        return [label(token, 24) for token in tokens]
    return [f"{start + 1} {label(tokens[start], 12)}…" for start in range(0, len(tokens), size)]
