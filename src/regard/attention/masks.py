"""Masks: which keys each query may attend to, as small value objects that know their structure. True = may look.

Queries are the last T of the S positions, so that the same mask serves a whole sequence and one new token after a cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.attention.sparse_attention import PackedDocuments, locate_documents

Rows = Tensor | slice | None
"""Some of the queries; None is all of them. A slice as a default would end a compiled graph (torch 2.11)."""
INTERVALS = {"causal", "prefix", "lengths", "starts", "window", "documents"}
"""The conditions under which a query sees one interval of keys (documents only if each lies in one piece)."""


@dataclass(frozen=True)
class GridPattern:
    """DALL·E's sparse attention (Ramesh et al. 2021, app. B.1, fig. 11) over `text` positions followed by an image grid, row by
    row. Every position sees the text; a grid position sees these earlier grid positions:

        row       as many positions back as a row has, and so the one above
        column    the same column
        conv      a neighbourhood of `kernel` × `kernel`, wrapped around at the edges as rows are; at most as wide as a row
    """

    text: int
    columns: int
    kind: str
    kernel: int = 11

    def dense(self, query: Tensor, key: Tensor) -> Tensor:
        """Return whether each query position (T, 1) may look at each key position (S,): (T, S)."""
        back = query - key
        match self.kind:
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
    """(B, S) the document of each position; nothing looks across documents (sequence packing)."""
    window: int | None = None
    """Keys at this distance or further are hidden."""
    prefix: Tensor | None = None
    """(B,) keys before this are visible to all queries, even earlier ones (prefix language model)."""
    grid: GridPattern | None = None
    """Text followed by an image grid, of which each position sees a part."""
    allowed: Tensor | None = None
    """Dense booleans that broadcast to (B, H, T, S)."""
    structure: ClassVar[frozenset[str]]
    """The names of the conditions that are set."""
    _packed: ClassVar[PackedDocuments | None]
    padded: "ClassVar[PaddedRows | None]"
    """The rows of a padded batch, where these are the documents."""
    _length_list: ClassVar[list[int] | None]
    _length_copy: "ClassVar[tuple[Tensor, torch.cuda.Event] | None]"
    _last_dense: ClassVar[dict[tuple[int, int, torch.device | None], Tensor | None]]
    _last_intervals: ClassVar[dict[tuple[int, int, torch.device | None], Tensor | None]]

    def __post_init__(self) -> None:
        """Prepare what is computed once for all layers. No cached properties: their locks end a compiled graph."""
        structure = frozenset(f.name for f in fields(self) if getattr(self, f.name) is not f.default)
        object.__setattr__(self, "structure", structure)
        for name in ("_packed", "padded", "_length_list", "_length_copy"):
            object.__setattr__(self, name, None)
        for name in ("_last_dense", "_last_intervals"):
            object.__setattr__(self, name, {})

    def __and__(self, other: "Mask") -> "Mask":
        """Return the mask under which both conditions hold. A field that one side has is kept; what both have is combined."""
        return Mask(**{f.name: _combine(f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self)})

    def read_lengths(self) -> list[int]:
        """Return the lengths as a list, which is kept. If they are on a GPU, wait for the kernels that were launched before
        `start_reading_lengths`; if that was not called, for all."""
        if self._length_list is None:
            assert self.lengths is not None
            on_host = self.lengths
            if self._length_copy is not None:
                on_host, copied = self._length_copy
                copied.synchronize()
            object.__setattr__(self, "_length_list", on_host.tolist())
        assert self._length_list is not None
        return self._length_list

    def start_reading_lengths(self) -> None:
        """Start to copy lengths on a GPU to the host, after the kernels that were launched so far, without waiting."""
        if self.lengths is not None and self.lengths.is_cuda:
            on_host, copied = self.lengths.to("cpu", non_blocking=True), torch.cuda.Event()  # in pinned memory
            copied.record(torch.cuda.current_stream(self.lengths.device))
            object.__setattr__(self, "_length_copy", (on_host, copied))

    @property
    def packed_documents(self) -> PackedDocuments | None:
        """Where the documents lie, found once for all layers."""
        if self._packed is None and self.documents is not None:
            object.__setattr__(self, "_packed", locate_documents(self.documents))
        return self._packed

    @staticmethod
    def packed(documents: PackedDocuments, padded: "PaddedRows | None" = None) -> "Mask":
        """Return the mask under which nothing looks across these documents; `padded`: they are rows without their padding."""
        mask = Mask(documents=documents.index)
        object.__setattr__(mask, "_packed", documents)
        object.__setattr__(mask, "padded", padded)
        return mask

    def select_batch(self, rows: Tensor | slice) -> "Mask":
        """Return the same mask for some rows of the batch."""

        def pick(name: str) -> Tensor | None:
            value = getattr(self, name)
            shared = name == "allowed" and value is not None and (value.dim() < 4 or value.size(0) == 1)
            return value if value is None or shared else value[rows]

        names = ("lengths", "starts", "documents", "prefix", "allowed")
        return replace(self, **{name: pick(name) for name in names})  # type: ignore[arg-type]

    def select_heads(self, heads: Sequence[int]) -> "Mask":
        """Return the same mask for some of the heads."""
        per_head = self.allowed is not None and self.allowed.dim() > 2 and self.allowed.size(-3) > 1
        return replace(self, allowed=self.allowed[..., list(heads), :, :]) if per_head and self.allowed is not None else self

    def dense(self, queries: int, keys: int, device: torch.device | None = None, rows: Rows = None) -> Tensor | None:
        """Return booleans that broadcast to (B, H, T, S), or None where every key is visible. `rows`: of these queries only."""
        cacheable = device is None or device.type == "cpu" or torch.is_inference_mode_enabled()
        if rows is not None or not cacheable or type(queries) is not int or type(keys) is not int:  # symbolic, when traced
            return self._build_dense(queries, keys, device, rows)
        wanted = (queries, keys, device)
        if wanted not in self._last_dense:
            self._last_dense.clear()
            self._last_dense[wanted] = self._build_dense(queries, keys, device, rows)
        return self._last_dense[wanted]

    def _build_dense(self, queries: int, keys: int, device: torch.device | None, rows: Rows) -> Tensor | None:
        key = torch.arange(keys, device=device)  # (S,)
        query = torch.arange(keys - queries, keys, device=device)
        query = (query if rows is None else query[rows])[:, None]  # (T, 1)
        conditions = []
        if self.causal:
            earlier = key <= query  # (T, S)
            conditions.append(earlier if self.prefix is None else earlier | (key < _per_sentence(self.prefix)))
        if self.lengths is not None:
            conditions.append(key < _per_sentence(self.lengths))  # (B, 1, 1, S)
        if self.starts is not None:
            conditions.append(key >= _per_sentence(self.starts))
        if self.window is not None:
            conditions.append((key < query + self.window) & (key > query - self.window))
        if self.documents is not None:
            own = self.documents[:, -queries:]
            own = own if rows is None else own[:, rows]
            conditions.append((own[:, :, None] == self.documents[:, None, :])[:, None])  # (B, 1, T, S)
        if self.grid is not None:
            conditions.append(self.grid.dense(query, key))
        if self.allowed is not None:
            conditions.append(select_rows(self.allowed, rows))
        if not conditions:
            return None
        combined = conditions[0]
        for condition in conditions[1:]:
            combined = combined & condition
        return combined[(None,) * (4 - combined.dim())]

    def intervals(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor | None:
        """Return the first key that each query sees and the end of those it sees, (B or 1, T, 2) in int32; None where some query
        sees more than one interval. Computed once for all layers; checking documents synchronises with the device."""
        if type(queries) is not int or type(keys) is not int:  # symbolic, when traced
            return self._build_intervals(queries, keys, device)
        key = (queries, keys, device)
        if key not in self._last_intervals:
            self._last_intervals.clear()
            self._last_intervals[key] = self._build_intervals(queries, keys, device)
        return self._last_intervals[key]

    def _build_intervals(self, queries: int, keys: int, device: torch.device | None) -> Tensor | None:
        if not self.structure <= INTERVALS or (self.documents is not None and self._document_bounds is None):
            return None
        query = torch.arange(keys - queries, keys, device=device)[None]  # (1, T)
        first, end = torch.zeros_like(query), torch.full_like(query, keys)
        if self.causal:
            end = query + 1 if self.prefix is None else torch.maximum(query + 1, self.prefix[:, None])
        if self.lengths is not None:
            end = torch.minimum(end, self.lengths[:, None])
        if self.starts is not None:
            first = torch.maximum(first, self.starts[:, None])
        if self.window is not None:
            first, end = torch.maximum(first, query - self.window + 1), torch.minimum(end, query + self.window)
        if self._document_bounds is not None:
            starts, ends = (bound[:, -queries:] for bound in self._document_bounds)
            first, end = torch.maximum(first, starts), torch.minimum(end, ends)
        return torch.stack(torch.broadcast_tensors(first.clamp(min=0), end.clamp(max=keys)), dim=-1).int()

    @cached_property
    def _document_bounds(self) -> tuple[Tensor, Tensor] | None:
        """The first position of each position's document and its end, (B, S) each; None where one lies in several pieces."""
        if self.documents is None or bool(_changes(self.documents).sum() != _changes(self.documents.sort(1).values).sum()):
            return None
        at = torch.arange(self.documents.size(1), device=self.documents.device).expand_as(self.documents)
        begins = torch.cat([torch.ones_like(at[:, :1], dtype=torch.bool), _changes(self.documents)], dim=1)  # (B, S)
        first = torch.where(begins, at, 0).cummax(1).values
        ends = torch.cat([begins[:, 1:], begins[:, :1]], dim=1)  # the last position of each document
        end = torch.where(ends, at + 1, at.size(1)).flip(1).cummin(1).values.flip(1)
        return first, end


@dataclass(frozen=True, eq=False)
class PaddedRows:
    """A batch of rows with padding: their length and their mask."""

    length: int
    mask: Mask


def _changes(documents: Tensor) -> Tensor:
    return documents[:, 1:] != documents[:, :-1]  # (B, S - 1)


def _per_sentence(values: Tensor) -> Tensor:
    return values[:, None, None, None]  # (B, 1, 1, 1)


def select_rows(x: Tensor, rows: Rows) -> Tensor:
    """Return these query rows of a tensor that broadcasts to (B, H, T, S)."""
    return x if rows is None or x.dim() < 2 or x.size(-2) == 1 else x[..., rows, :]


def _combine(name: str, one: Any, other: Any) -> Any:
    """Return one condition from two of the same name; None is no condition."""
    if one is None or other is None:
        return other if one is None else one
    match name:
        case "causal":
            return one or other
        case "starts":
            return torch.maximum(one, other)
        case "lengths" | "prefix":
            return torch.minimum(one, other)
        case "window":
            return min(one, other)
        case "allowed":
            return one & other
        case "grid" if one == other:
            return one
        case "grid":
            raise ValueError("two different grid patterns cannot be combined")
        case _:
            raise ValueError("two document masks cannot be combined; number the documents once")


NO_MASK = Mask()
CAUSAL = Mask(causal=True)
