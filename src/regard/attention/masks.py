"""Which keys each query may look at: a small value object that knows its structure. True = may look.

Queries are the last T of the S positions, so that the same mask serves a whole sequence and one new token after a cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from regard.attention.sparse_attention import PackedDocuments, locate_documents

ALL_ROWS = slice(None)


@dataclass(frozen=True)
class GridPattern:
    """Positions of which the first are text and the rest a grid, row by row: what of the grid its places see of those before
    them (Ramesh et al. 2021, app. B.1, fig. 11); text is seen by all.

        row       as many places back as a row has, and the one above
        column    the same column
        conv      a neighbourhood of `kernel` × `kernel`, wrapped around at the edges as rows are; at most as wide as a row
    """

    text: int
    columns: int
    see: str
    kernel: int = 11

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether each query (T, 1) may look at each key (S,): (T, S)."""
        back = query - key
        match self.see:
            case "row":
                near = back <= self.columns
            case "column":
                near = back % self.columns == 0
            case _:
                reach = min(self.kernel // 2, (self.columns - 1) // 2)
                above = (back + reach).div(self.columns, rounding_mode="floor")
                near = (above <= reach) & ((back - above * self.columns).abs() <= reach)
        return (key < self.text) | (query < self.text) | (near & (back >= 0))


@dataclass(frozen=True, eq=False)
class Mask:
    """All conditions hold together; the empty mask lets every query look everywhere."""

    causal: bool = False
    """No query looks at a later position."""
    lengths: Tensor | None = None
    """(B,) keys from here on are padding."""
    starts: Tensor | None = None
    """(B,) keys before this are padding."""
    documents: Tensor | None = None
    """(B, S) the document each position belongs to; nothing looks across documents (packing)."""
    window: int | None = None
    """Keys at a distance of this or more are out of sight."""
    prefix: Tensor | None = None
    """(B,) keys before this are seen by all queries, even earlier ones (prefix language model)."""
    grid: GridPattern | None = None
    """Text and after it a grid, of which each place sees a part."""
    allowed: Tensor | None = None
    """Dense booleans that broadcast to (B, H, T, S)."""

    def __and__(self, other: "Mask") -> "Mask":
        """Both conditions. Structure that only one side has is kept; what both have is combined."""
        both = {f.name: join(f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return Mask(**both)

    @cached_property
    def structure(self) -> frozenset[str]:
        """The names of the conditions that are set."""
        return frozenset(f.name for f in fields(self) if getattr(self, f.name) is not f.default)

    @cached_property
    def written(self) -> dict[tuple[int, int, torch.device | None], Tensor | None]:
        """What `dense` gave last, kept for other layers and later steps that ask for the same."""
        return {}

    @cached_property
    def packed(self) -> PackedDocuments | None:
        """Where the documents lie, found once for all layers."""
        return None if self.documents is None else locate_documents(self.documents)

    def rows(self, chosen: Tensor | slice) -> "Mask":
        """The same mask for a selection of the batch."""

        def pick(name: str) -> Tensor | None:
            value = getattr(self, name)
            shared = name == "allowed" and value is not None and (value.dim() < 4 or value.size(0) == 1)
            return value if value is None or shared else value[chosen]

        return replace(
            self,
            lengths=pick("lengths"),
            starts=pick("starts"),
            documents=pick("documents"),
            prefix=pick("prefix"),
            allowed=pick("allowed"),
        )

    def heads(self, chosen: Sequence[int]) -> "Mask":
        """The same mask for a selection of the heads."""
        per_head = self.allowed is not None and self.allowed.dim() > 2 and self.allowed.size(-3) > 1
        return replace(self, allowed=self.allowed[..., list(chosen), :, :]) if per_head and self.allowed is not None else self

    def dense(
        self, queries: int, keys: int, device: torch.device | None = None, rows: Tensor | slice = ALL_ROWS
    ) -> Tensor | None:
        """Booleans that broadcast to (B, H, T, S), or None where everything may be seen. `rows`: of these queries alone."""
        keeps = device is None or device.type == "cpu" or torch.is_inference_mode_enabled()
        if rows is not ALL_ROWS or not keeps or type(queries) is not int or type(keys) is not int:  # symbols, while traced
            return self.write(queries, keys, device, rows)
        asked = (queries, keys, device)
        if asked not in self.written:
            self.written.clear()
            self.written[asked] = self.write(queries, keys, device, rows)
        return self.written[asked]

    def write(self, queries: int, keys: int, device: torch.device | None, rows: Tensor | slice) -> Tensor | None:
        key = torch.arange(keys, device=device)  # (S,)
        query = torch.arange(keys - queries, keys, device=device)[rows, None]  # (T, 1)
        conditions = []
        if self.causal:
            seen = key <= query  # (T, S)
            conditions.append(seen if self.prefix is None else seen | (key < column(self.prefix)))
        if self.lengths is not None:
            conditions.append(key < column(self.lengths))  # (B, 1, 1, S)
        if self.starts is not None:
            conditions.append(key >= column(self.starts))
        if self.window is not None:
            conditions.append((key < query + self.window) & (key > query - self.window))
        if self.documents is not None:
            mine = self.documents[:, -queries:][:, rows]
            conditions.append((mine[:, :, None] == self.documents[:, None, :])[:, None])  # (B, 1, T, S)
        if self.grid is not None:
            conditions.append(self.grid.sees(query, key))
        if self.allowed is not None:
            conditions.append(select_rows(self.allowed, rows))
        if not conditions:
            return None
        combined = conditions[0]
        for condition in conditions[1:]:
            combined = combined & condition
        return combined[(None,) * (4 - combined.dim())]


def column(per_row: Tensor) -> Tensor:
    return per_row[:, None, None, None]  # (B, 1, 1, 1)


def select_rows(x: Tensor, rows: Tensor | slice) -> Tensor:
    """These rows of what broadcasts to (B, H, T, S)."""
    return x if x.dim() < 2 or x.size(-2) == 1 else x[..., rows, :]


def join(name, mine, other):
    if mine is None or other is None:
        return other if mine is None else mine
    if name == "causal":
        return mine or other
    if name == "starts":
        return torch.maximum(mine, other)
    if name in ("lengths", "prefix"):
        return torch.minimum(mine, other)
    if name == "window":
        return min(mine, other)
    if name == "allowed":
        return mine & other
    if name == "grid" and mine == other:
        return mine
    raise ValueError(
        "two grids cannot be combined" if name == "grid" else "two document masks cannot be combined; number the documents once"
    )


NO_MASK = Mask()
CAUSAL = Mask(causal=True)
