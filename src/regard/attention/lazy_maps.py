"""Maps (B, H, T, S) recorded part by part: into one tensor taken ahead, or reduced and dropped at once; and the budget for it."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.reductions import MapShape, RecordedMap, part_shapes
from regard.errors import UserError

REDUCTIONS = ("blocks", "top", "rows", "entropy")
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
WORKSPACE_DIVISOR = 10
"""A record has a tenth of its own size besides, to be computed in."""
LEAST, MOST = 2**20, 2**26
"""Bytes to compute in: less is not worth a kernel, where no budget says so; more is not faster."""
COPIES = 3
"""Tensors of a part's size that may be alive while it is computed: scores, weights, and one for queries and masks."""
FEWEST_BLOCKS = 8
"""Of keys; coarser means say less than entropies."""


@dataclass(frozen=True)
class LazyMap:
    """A matrix (B, H, T, S) that is never computed whole."""

    shape: MapShape
    dtype: torch.dtype
    device: torch.device
    part: Callable[[slice, Tensor | slice], Tensor]
    """Of some of the batch and some of the rows."""
    width: int = 1
    """Numbers it takes to compute one: an additive score is a sum over as many."""
    signed: bool = False
    """Whether its rows are no distributions, and so have no entropy."""
    fill: Callable[[dict[str, Tensor], str, int], bool] = lambda parts, kind, size: False
    """Computes what is kept in one go, where a kernel can (kernel.py)."""

    def only(self, rows: Tensor) -> "LazyMap":
        B, H, _, S = self.shape
        return LazyMap(
            (B, H, len(rows), S),
            self.dtype,
            self.device,
            lambda batch, chosen: self.part(batch, rows[chosen]),
            self.width,
            self.signed,
        )


def record_map(whole: LazyMap, kind: str = "weights", size: int = 1, room: int | None = None) -> RecordedMap:
    """Compute a map part by part, and keep what `kind` says of it; at most `room` bytes at a time, unless one row takes more."""
    if kind == "rows":
        rows = torch.arange(0, whole.shape[2], size, device=whole.device)
        weights = record_map(whole.only(rows), room=room).parts["weights"]
        return RecordedMap(kind, whole.shape, {"weights": weights, "rows": rows}, size)
    parts = {
        name: torch.empty(shape, dtype=dtype, device=whole.device)
        for name, (shape, dtype) in stored_tensors(kind, size, whole.shape, whole.dtype).items()
    }
    if whole.fill(parts, kind, size):
        return RecordedMap(kind, whole.shape, parts, size)
    room = max(LEAST, prod(whole.shape) * whole.dtype.itemsize // WORKSPACE_DIVISOR) if room is None else room
    numbers = min(MOST, room) // cost(kind, size, whole)
    for batch, queries in iterate_chunks(whole.shape, numbers, size if kind == "blocks" else 1):
        part = whole.part(batch, queries)
        match kind:
            case "weights":
                parts["weights"][batch, :, queries] = part
            case "top":
                keys = (part.abs() if whole.signed else part).topk(size).indices
                parts["values"][batch, :, queries] = part.gather(-1, keys)
                parts["keys"][batch, :, queries] = keys
            case "blocks":
                down, across = (min(size, part.size(-2)), min(size, part.size(-1)))
                first = queries.start // size
                means = F.avg_pool2d(part, (down, across), ceil_mode=True)
                parts["means"][batch, :, first : first + means.size(2)] = means
            case "entropy":
                parts["entropy"][batch, :, queries] = torch.special.entr(part.to(torch.float32)).sum(-1)
        del part  # before the next is made
    return RecordedMap(kind, whole.shape, parts, size)


def cost(kind: str, size: int, whole: LazyMap) -> int:
    """Bytes it takes to compute and reduce one number of a map."""
    item, S = whole.dtype.itemsize, max(1, whole.shape[3])
    besides = {"top": whole.signed * item + -(-size * (8 + 2 * item) // S), "entropy": 8}.get(kind, 0)
    return COPIES * whole.width * item + besides


def iterate_chunks(shape: MapShape, numbers: int, multiple: int = 1) -> Iterator[tuple[slice, slice]]:
    """The batch and rows of each part of at most `numbers` numbers; of one row, or `multiple` of them, at least."""
    B, H, T, S = shape
    several = max(1, numbers // max(1, H * T * S))
    rows = T if several > 1 else max(1, numbers // max(1, H * S) // multiple) * multiple
    for first in range(0, B, several):
        for start in range(0, T, max(1, rows)):
            yield slice(first, min(first + several, B)), slice(start, min(start + rows, T))


def stored_tensors(kind: str, size: int, shape: MapShape, dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """The shape and type of what is kept of a map."""
    types = {"keys": torch.int16 if shape[3] < 2**15 else torch.int32, "rows": torch.int64, "entropy": torch.float32}
    return {name: (part, types.get(name, dtype)) for name, part in part_shapes(kind, size, shape).items()}


def stored_bytes(kind: str, size: int, shape: MapShape, dtype: torch.dtype) -> int:
    """Bytes."""
    return sum(prod(part) * number.itemsize for part, number in stored_tensors(kind, size, shape, dtype).values())


class MemoryBudget:
    """How much a record may take, with what it takes to compute it.

    Every map that is watched has an equal share of what is left when it comes: (bytes left) / (maps still to come); one that
    comes again, (bytes left) / (all maps). A map is kept whole if it fits into its share; else reduced as `keep` says, as little
    as fits; else its entropies; else nothing. Maps of the same shape are reduced alike when they first come.
    """

    def __init__(self, budget: int | str | None, maps: int, keep: str = "blocks"):
        if keep not in REDUCTIONS:
            raise UserError(f"keep = {keep!r}: should be one of {', '.join(REDUCTIONS)}")
        self.keep, self.maps = keep, maps
        self.whole = None if budget is None else parse_bytes(budget)
        self.room = None if self.whole is None else self.whole // (WORKSPACE_DIVISOR + 1)
        self.alike: dict[tuple[MapShape, bool], tuple[str, int]] = {}
        self.reset()

    def reset(self) -> None:
        """Nothing is recorded yet."""
        self.waiting, self.left = (
            self.maps,
            None if self.whole is None else self.whole * WORKSPACE_DIVISOR // (WORKSPACE_DIVISOR + 1),
        )

    def record(self, whole: LazyMap, *, first: bool) -> RecordedMap:
        """Keep what a share allows; `first`: whether this map has not come before."""
        if self.left is None:
            return record_map(whole)
        share = self.left // max(1, self.waiting if first else self.maps)
        self.waiting -= first
        chosen = self.choose(whole, share)
        alike = self.alike.setdefault((whole.shape, whole.signed), chosen) if first else chosen
        chosen = alike if stored_bytes(*alike, whole.shape, whole.dtype) <= share else chosen
        kept = record_map(whole, *chosen, room=self.room)
        self.left -= kept.nbytes
        return kept

    def take(self, nbytes: int) -> bool:
        """Whether so many bytes may be kept besides the maps."""
        if self.left is not None and nbytes > self.left:
            return False
        self.left = None if self.left is None else self.left - nbytes
        return True

    def choose(self, whole: LazyMap, share: int) -> tuple[str, int]:
        *_, T, S = whole.shape

        def fits(kind: str, size: int) -> bool:
            return stored_bytes(kind, size, whole.shape, whole.dtype) <= share

        if fits("weights", 1):
            return "weights", 1
        doubled = [2**n for n in range(1, (S // FEWEST_BLOCKS).bit_length())]
        sizes: Sequence[int] = {"blocks": doubled, "top": range(S, 0, -1), "rows": range(2, T + 1), "entropy": ()}[self.keep]
        chosen = next((size for size in sizes if fits(self.keep, size)), None)
        if chosen is not None:
            return self.keep, chosen
        return ("entropy" if fits("entropy", 1) and not whole.signed else "nothing"), 1


def parse_bytes(budget: int | str) -> int:
    """200MB, 1GB, 512KiB, or a number of bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?I?B|)\s*", str(budget).upper())
    if isinstance(budget, bool) or found is None or found.group(2) not in UNITS or not float(found.group(1)):
        raise UserError(f"budget = {budget!r}: should be a size such as '200MB' or '1GB'")
    return int(float(found.group(1)) * UNITS[found.group(2)])
