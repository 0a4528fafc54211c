"""Which attention is drawn: a view, a kind of attention, a layer, a head, a token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from regard.errors import UserError
from regard.show.figures.attention_maps import AttentionMaps

VIEWS = ("matrix", "heads", "head-matrices", "model", "token", "entropy", "neurons", "steps", "beam", "lens", "flow")
VIEWS_THAT_RUN = ("neurons", "steps", "beam", "lens", "flow")
"""Views that need the run: a record of weights is not enough."""
ATTENTION_KINDS = {
    "cross": "cross-attention",
    "encoder": "self-attention of the encoder",
    "decoder": "self-attention of the decoder",
}


@dataclass(frozen=True)
class ViewSelection:
    """The view to draw; layers and heads by their names, counted from 1."""

    view: str = "matrix"
    kind: str | None = None
    layer: int | None = None
    head: int | None = None
    token: str | None = None

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise UserError(f"--view {self.view}: no such view; use one of {', '.join(VIEWS)}")
        if self.kind is not None and self.kind not in ATTENTION_KINDS:
            raise UserError(f"--kind {self.kind}: no such attention; use one of {', '.join(ATTENTION_KINDS)}")
        if self.view == "token" and self.token is None:
            raise UserError("--view token: which one? add --token WORD, or its number counted from 1")
        if self.view in ("matrix", "heads") and self.head is not None and self.layer is None:
            raise UserError(f"--head {self.head}: of which layer? add --layer 1, 2 …")


class SelectedMaps(NamedTuple):
    """Attention maps with the selected indices, counted from 0; None where nothing is selected."""

    maps: AttentionMaps
    layer: int | None = None
    head: int | None = None
    token: int | None = None

    @property
    def shown_layer(self) -> int:
        """The selected layer, or the sharpest."""
        return self.maps.sharpest_layer if self.layer is None else self.layer

    @property
    def layer_name(self) -> str:
        return f"{self.maps.name}, layer {self.maps.layers[self.shown_layer]}"

    @property
    def head_name(self) -> str:
        """The selected head, or that the mean is shown."""
        single = 0 if len(self.maps.heads) == 1 else self.head
        return f"mean of {pluralize(len(self.maps.heads), 'head')}" if single is None else f"head {self.maps.heads[single]}"

    def matrix(self) -> tuple[np.ndarray, list[str], str]:
        """Return the weights (T, S) of the layer's head, or the mean of its heads, the row labels, and a title."""
        weights = self.maps.weights[self.shown_layer]  # (H, T, S)
        rows = list(self.maps.queries)
        return weights.mean(0) if self.head is None else weights[self.head], rows, f"{self.layer_name}, {self.head_name}"

    def token_matrix(self) -> tuple[np.ndarray, list[str], str]:
        """Return the weights of one token over all layers (L, S), or over the heads of the selected layer (H, S)."""
        assert self.token is not None
        maps, title = self.maps, f"attention of {self.maps.queries[self.token]}"
        weights = maps.weights[:, :, self.token]  # (L, H, S)
        if self.layer is not None and self.head is None:
            rows = [f"head {name}" for name in maps.heads]
            return weights[self.layer], rows, f"{title}, layer {maps.layers[self.layer]}"
        over_layers = weights.mean(1) if self.head is None else weights[:, self.head]
        return over_layers, [f"layer {name}" for name in maps.layers], f"{title}, {self.head_name}"


def pluralize(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def select(groups: Sequence[AttentionMaps], selection: ViewSelection) -> tuple[int, SelectedMaps]:
    """Return the index of the selected kind of attention, and its maps with the selected layer, head and token."""
    group = select_group(groups, selection.kind)
    return group, resolve_indices(groups[group], selection)


def select_group(groups: Sequence[AttentionMaps], kind: str | None) -> int:
    names = [maps.name for maps in groups]
    if kind is None:
        return 0
    if ATTENTION_KINDS[kind] not in names:
        raise UserError(f"--kind {kind}: this model has {', '.join(names)}")
    return names.index(ATTENTION_KINDS[kind])


def resolve_indices(maps: AttentionMaps, selection: ViewSelection) -> SelectedMaps:
    """Return the maps with the indices of the selected layer, head and token."""
    indices: list[int | None] = []
    for option, names, value in (("layer", maps.layers, selection.layer), ("head", maps.heads, selection.head)):
        if value is not None and str(value) not in names:
            raise UserError(f"--{option} {value}: {maps.name} has {option}s {', '.join(names)}")
        indices.append(None if value is None else list(names).index(str(value)))
    token = None if selection.token is None else token_index(maps.queries, selection.token, maps.tile)
    return SelectedMaps(maps, indices[0], indices[1], token)


def token_index(words: Sequence[str], token: str, tile: int = 1) -> int:
    """Return the index of a token given as it is written, or by its number from 1; in tiles, the one that it is in."""
    if token in words:
        return list(words).index(token)
    if token.isdigit() and 1 <= int(token) <= len(words) * tile:
        return min((int(token) - 1) // tile, len(words) - 1)
    shown = " ".join(words[:12]) + (" …" if len(words) > 12 else "")
    raise UserError(f"--token {token}: not among {shown}")
