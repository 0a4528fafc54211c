"""Which attention is drawn: a view, a kind of attention, a layer, a head, a token."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from regard.attention.modules import STACK_NAMES
from regard.errors import UserError
from regard.show.figures.attention_maps import AttentionMaps
from regard.show.token_choice import choose_token, has_token

VIEW_OPTIONS = {
    "matrix": ("kind", "layer", "head"),
    "heads": ("kind", "layer", "head", "token"),
    "head-matrices": ("kind", "layer"),
    "model": ("kind",),
    "token": ("kind", "layer", "head", "token"),
    "entropy": ("kind",),
    "neurons": ("kind", "layer", "head", "token"),
    "steps": ("kind", "layer", "head", "token"),
    "beam": (),
    "lens": ("token",),
    "flow": ("kind", "layer", "head", "token"),
    "search": ("kind", "layer", "head", "token"),
}
"""What can be selected in each view; anything else is refused."""
VIEWS = tuple(VIEW_OPTIONS)
SCALES = ("shown", "absolute")
EVERY_HEAD = {view: view for view in ("heads", "head-matrices", "model", "token", "entropy")} | {"matrix": "head-matrices"}
"""The view that `--heads` draws, of those that can draw every head."""
VIEWS_THAT_RUN = ("neurons", "steps", "beam", "lens", "flow", "search")
"""Views that need the run: a record of weights is not enough."""
ATTENTION_KINDS = {kind: STACK_NAMES[kind] for kind in ("cross", "encoder", "decoder")}


@dataclass(frozen=True)
class ViewSelection:
    """The view to draw; layers and heads by their names, counted from 1. A token is given as `choose_token` reads it."""

    view: str = "matrix"
    kind: str | None = None
    layer: int | None = None
    head: int | None = None
    token: str | int | None = None
    every_head: bool = False
    """Of a token over the layers: each head of a layer in a row of its own, not their mean."""
    scale: str = "shown"
    """The scale of weights ends at the largest that is shown, or with "absolute" at 1."""

    @classmethod
    def of(
        cls,
        view: str = "matrix",
        kind: str | None = None,
        layer: int | None = None,
        head: int | str | None = None,
        token: str | int | None = None,
        *,
        every_head: bool = False,
        scale: str = "shown",
    ) -> "ViewSelection":
        """Return the selection of what a user gave. A head may be named as the output of any command names it: "3" of the layer,
        "2.3", or "cross-attention, layer 2, head 3"."""
        if kind is not None and kind not in ATTENTION_KINDS:
            raise UserError(f"--kind {kind}: no such attention; use one of {', '.join(ATTENTION_KINDS)}")
        named = HeadName(None, None, None) if head is None else parse_head_name(str(head))
        for option, given, inside in (("--kind", kind, named.kind), ("--layer", layer, named.layer)):
            if given is not None and inside is not None and inside not in (given, ATTENTION_KINDS.get(str(given))):
                raise UserError(f"--head {head}: its name says {inside}, but {option} is {given}; leave out {option}")
        short = {name: kind for kind, name in ATTENTION_KINDS.items()}.get(str(named.kind), named.kind)
        selection = cls(view, kind or short, layer or named.layer, named.head, token, every_head, scale)
        for option in ("kind", "layer", "head", "token"):
            value = getattr(selection, option)
            if value is not None and option not in VIEW_OPTIONS[view]:
                able = ", ".join(name for name, options in VIEW_OPTIONS.items() if option in options)
                raise UserError(f"--{option} {value}: it does not apply to --view {view}; leave it out, or use one of {able}")
        return selection

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise UserError(f"--view {self.view}: no such view; use one of {', '.join(VIEWS)}")
        if self.scale not in SCALES:
            raise UserError(f"--scale {self.scale}: no such scale; use {' or '.join(SCALES)}")
        if self.view == "token" and self.token is None:
            raise UserError("--view token: which one? add --token WORD, or its number counted from 1")
        if self.view in ("matrix", "heads") and self.head is not None and self.layer is None:
            raise UserError(f"--head {self.head}: of which layer? add --layer 1, 2 …")


class HeadName(NamedTuple):
    """A head as a user names it, counted from 1; None where the name leaves it open."""

    kind: str | None
    layer: int | None
    head: int | None


def parse_head_name(name: str) -> HeadName:
    """Return the parts of "3", "2.3", "cross 2.3" or "cross-attention, layer 2, head 3"."""
    found = re.fullmatch(r"(?:(\D.*?),? )??(?:layer (\d+), head (\d+)|(?:(\d+)\.)?(\d+))", name.strip())
    if found is None:
        raise UserError(
            f"--head {name}: no such name; use 3 (of --layer), 2.3 (layer.head) or 'cross-attention, layer 2, head 3'"
        )
    kind, layer, head = found[1], found[2] or found[4], found[3] or found[5]
    return HeadName(kind, None if layer is None else int(layer), int(head))


class SelectedMaps(NamedTuple):
    """Attention maps with the selected indices, counted from 0; None where nothing is selected."""

    maps: AttentionMaps
    layer: int | None = None
    head: int | None = None
    token: int | None = None
    token_note: str = ""
    """Which token was taken, where its name fits several."""
    every_head: bool = False
    absolute: bool = False

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
        maps, title = self.maps, f"{self.maps.name} of {self.maps.queries[self.token]}"
        weights = maps.weights[:, :, self.token]  # (L, H, S)
        if self.layer is not None and self.head is None:
            rows = [f"head {name}" for name in maps.heads]
            return weights[self.layer], rows, f"{title}, layer {maps.layers[self.layer]}"
        if self.layer is not None and self.head is not None:
            name = f"layer {maps.layers[self.layer]}, head {maps.heads[self.head]}"
            return weights[self.layer, self.head][None], [name], f"{title}, {name}"
        if self.every_head:
            rows = [f"layer {layer}, head {head}" for layer in maps.layers for head in maps.heads]
            return weights.reshape(len(rows), -1), rows, title
        over_layers = weights.mean(1) if self.head is None else weights[:, self.head]
        return over_layers, [f"layer {name}" for name in maps.layers], f"{title}, {self.head_name}"


def pluralize(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def select(groups: Sequence[AttentionMaps], selection: ViewSelection) -> tuple[int, SelectedMaps]:
    """Return the index of the selected kind of attention, and its maps with the selected layer, head and token. Without a kind
    it is the first that has the token."""
    group = select_group(groups, selection.kind)
    if selection.kind is None and selection.token is not None:
        having = (i for i, maps in enumerate(groups) if has_token(maps.queries, selection.token, maps.tile))
        group = next(having, group)
    return group, resolve_indices(groups[group], selection)


def select_group(groups: Sequence[AttentionMaps], kind: str | None) -> int:
    names = [maps.name for maps in groups]
    if kind is None:
        return 0
    name = ATTENTION_KINDS.get(kind, kind)
    if name not in names:
        raise UserError(f"--kind {kind}: this model has {', '.join(names)}")
    return names.index(name)


def resolve_indices(maps: AttentionMaps, selection: ViewSelection) -> SelectedMaps:
    """Return the maps with the indices of the selected layer, head and token."""
    indices = dict[str, int | None]()
    for option, names, value in (("layer", maps.layers, selection.layer), ("head", maps.heads, selection.head)):
        if value is not None and str(value) not in names:
            raise UserError(f"--{option} {value}: {maps.name} has {option}s {', '.join(names)}")
        indices[option] = None if value is None else list(names).index(str(value))
    token, note = (None, "") if selection.token is None else choose_token(maps.queries, selection.token, maps.tile)
    absolute = selection.scale == "absolute"
    return SelectedMaps(maps, indices["layer"], indices["head"], token, note, selection.every_head, absolute)
