"""Attention maps (B, H, T, S) that are computed in chunks and recorded within a memory budget, whole or reduced.

A chunk goes into one preallocated tensor, or is reduced and dropped at once, so that no second map is ever in memory.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.core import DotProductScore, Score, attention_weights
from regard.attention.kernels import weights_kernel
from regard.attention.masks import NO_MASK, Mask
from regard.attention.modules import Indices
from regard.attention.record import MapShape, RecordedMap, part_shapes
from regard.errors import UserError

REDUCTIONS = ("blocks", "top", "rows", "entropy")
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
WORKSPACE_DIVISOR = 10
"""A record may use a tenth of its own size as workspace."""
MIN_WORKSPACE, MAX_WORKSPACE, MAX_GPU_WORKSPACE = 2**20, 2**26, 2**29
"""Bytes of workspace: less is not worth a kernel launch, unless a budget demands it; more is not faster. A GPU computes 64 MB
faster than the host launches the kernels for it."""
LIVE_COPIES = 3
"""Tensors of a chunk's size that may be alive while it is computed: scores, weights, and one for queries and masks."""
MIN_KEY_BLOCKS = 8
"""Coarser block means say less than entropies."""


@dataclass(frozen=True)
class LazyMap:
    """A matrix (B, H, T, S) that is never computed whole."""

    shape: MapShape
    dtype: torch.dtype
    device: torch.device
    compute: Callable[[slice, Tensor | slice], Tensor]
    """Returns the map of some sentences of the batch and some query rows."""
    width: int = 1
    """Numbers needed to compute one entry: an additive score sums over this many."""
    signed: bool = False
    """Whether its rows are no distributions (gradients), and so have no entropy."""
    live_copies: int = LIVE_COPIES
    """Tensors of a chunk's size that are alive while it is computed."""
    fill: Callable[[dict[str, Tensor], str, int], bool] = lambda parts, kind, size: False
    """Computes a record in one pass where a kernel can (weights_kernel.py); returns whether it did."""

    def select_rows(self, rows: Tensor) -> "LazyMap":
        """Return the map of these query rows."""
        B, H, _, S = self.shape
        compute = self.compute
        return LazyMap(
            (B, H, len(rows), S),
            self.dtype,
            self.device,
            lambda batch, chosen: compute(batch, rows[chosen]),
            self.width,
            self.signed,
        )


def weights_map(
    q: Tensor,
    k: Tensor,
    *,
    score: Score | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> LazyMap:
    """Return the attention weights of queries and keys, to be computed in chunks."""
    (B, _, T, _), S = q.shape, k.size(-2)

    def compute(batch: slice, rows: Tensor | slice) -> Tensor:
        return attention_weights(
            q[batch],
            k[batch],
            score=score,
            mask=None if mask is None else mask.select_batch(batch),
            bias=bias if bias is None or bias.dim() < 4 or bias.size(0) == 1 else bias[batch],
            scale=scale,
            rows=rows,
            min_dtype=q.dtype,
        )

    if score is None and weights_kernel.can_run(q, k, mask):
        inputs = weights_kernel.KernelInputs(q, k, mask or NO_MASK, bias, scale)

        def compute_by_kernel(batch: slice, rows: Tensor | slice) -> Tensor:
            return inputs.weights(batch, rows) if isinstance(rows, slice) else compute(batch, rows)

        return LazyMap((B, q.size(1), T, S), q.dtype, q.device, compute_by_kernel, fill=inputs.fill, live_copies=1)
    return LazyMap((B, q.size(1), T, S), q.dtype, q.device, compute, width=1 if score is None else k.size(-1))


def existing_map(weights: Tensor, heads: list[int] | None = None, *, signed: bool = False) -> LazyMap:
    """Return weights (B, H, T, S) that a model computed itself, or their gradients, to be copied in chunks."""
    chosen = weights if heads is None else weights[:, heads]
    B, H, T, S = chosen.shape

    def compute(batch: slice, rows: Tensor | slice) -> Tensor:
        return chosen[batch][:, :, rows]

    return LazyMap((B, H, T, S), weights.dtype, weights.device, compute, signed=signed)


def gradient_map(gradient: Tensor, v: Tensor, heads: list[int] | None = None) -> LazyMap:
    """Return the gradient of the loss by the weights, dL/dW = dO·Vᵀ for the output O = W V, to be computed in chunks."""
    (B, H, T, _), S = gradient.shape, v.size(-2)
    if heads is not None:
        shared = H // v.size(1)
        gradient, v = gradient[:, heads], v[:, [head // shared for head in heads]]
    return LazyMap(
        (B, gradient.size(1), T, S),
        gradient.dtype,
        gradient.device,
        lambda batch, rows: DotProductScore(1.0)(gradient[batch][:, :, rows], v[batch]),
        signed=True,
    )


def select_heads(
    q: Tensor, k: Tensor, heads: list[int] | None, *, mask: Mask | None = None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Mask | None, Tensor | None]:
    """Return queries, keys, mask and bias of some heads."""
    if heads is None:
        return q, k, mask, bias
    shared = q.size(1) // k.size(1)
    per_head = bias is not None and bias.dim() > 2 and bias.size(-3) > 1
    return (
        q[:, heads],
        k[:, [head // shared for head in heads]],
        None if mask is None else mask.select_heads(heads),
        bias[..., heads, :, :] if per_head and bias is not None else bias,
    )


def check_heads(heads: Indices, number: int, name: str) -> list[int] | None:
    """Return the chosen heads as a list; raise UserError where the module has no such head."""
    for head in heads or ():
        if not 0 <= head < number:
            raise UserError(f"heads = {list(heads or ())}: {name} has {number}, counted from 0")
    return None if heads is None else list(heads)


def row_indices(rows: Sequence[int], queries: int, name: str, device: torch.device) -> Tensor:
    """Return the chosen query rows, negative ones counted from the end; raise UserError where there is no such row."""
    for row in rows:
        if not -queries <= row < queries:
            raise UserError(f"rows = {list(rows)}: a call of {name} has {queries} queries, counted from 0")
    return torch.tensor([row % queries for row in rows], device=device)


def record_map(lazy: LazyMap, kind: str = "weights", size: int = 1, workspace: int | None = None) -> RecordedMap:
    """Compute a map in chunks of at most `workspace` bytes (or one row) and keep what `kind` says of it."""
    if kind == "rows":
        rows = torch.arange(0, lazy.shape[2], size, device=lazy.device)
        weights = record_map(lazy.select_rows(rows), workspace=workspace).parts["weights"]
        return RecordedMap(kind, lazy.shape, {"weights": weights, "rows": rows}, size)
    parts = {
        name: torch.empty(shape, dtype=dtype, device=lazy.device)
        for name, (shape, dtype) in stored_tensors(kind, size, lazy.shape, lazy.dtype).items()
    }
    if lazy.fill(parts, kind, size):
        return RecordedMap(kind, lazy.shape, parts, size)
    if workspace is None:
        workspace = max(MIN_WORKSPACE, prod(lazy.shape) * lazy.dtype.itemsize // WORKSPACE_DIVISOR)
    most = MAX_GPU_WORKSPACE if lazy.device.type == "cuda" else MAX_WORKSPACE
    entries = min(most, workspace) // _bytes_per_entry(kind, size, lazy)
    for batch, queries in iterate_chunks(lazy.shape, entries, size if kind == "blocks" else 1):
        chunk = lazy.compute(batch, queries)
        match kind:
            case "weights":
                parts["weights"][batch, :, queries] = chunk
            case "top":
                keep_largest(chunk, parts["values"][batch, :, queries], parts["keys"][batch, :, queries], lazy.signed)
            case "blocks":
                first = queries.start // size
                means = F.avg_pool2d(chunk, (min(size, chunk.size(-2)), min(size, chunk.size(-1))), ceil_mode=True)
                parts["means"][batch, :, first : first + means.size(2)] = means
            case "entropy":
                parts["entropy"][batch, :, queries] = torch.special.entr(chunk.to(torch.float32)).sum(-1)
        del chunk  # before the next one is allocated
    return RecordedMap(kind, lazy.shape, parts, size)


def keep_largest(chunk: Tensor, values: Tensor, keys: Tensor, signed: bool) -> None:
    """Write the largest entries of each row of a chunk (by magnitude, if signed) and their keys into a record."""
    number = values.size(-1)
    if values.is_contiguous() and weights_kernel.selects(chunk.device, chunk.size(-1), signed):
        weights_kernel.largest(chunk, values, keys)
        return
    found = (chunk.abs() if signed else chunk).topk(number).indices
    values.copy_(chunk.gather(-1, found))
    keys.copy_(found)


def _bytes_per_entry(kind: str, size: int, lazy: LazyMap) -> int:
    """Return the bytes needed to compute and reduce one entry of a map."""
    item, S = lazy.dtype.itemsize, max(1, lazy.shape[3])
    selection = 0 if weights_kernel.selects(lazy.device, S, lazy.signed) else lazy.signed * item + -(-size * (8 + 2 * item) // S)
    reduction = {"top": selection, "entropy": 8}.get(kind, 0)
    return lazy.live_copies * lazy.width * item + reduction


def iterate_chunks(shape: MapShape, entries: int, multiple: int = 1) -> Iterator[tuple[slice, slice]]:
    """Yield the sentences and query rows of each chunk of at most `entries` numbers, and at least `multiple` rows."""
    B, H, T, S = shape
    sentences = max(1, entries // max(1, H * T * S))
    rows = T if sentences > 1 else max(1, entries // max(1, H * S) // multiple) * multiple
    for first in range(0, B, sentences):
        for start in range(0, T, max(1, rows)):
            yield slice(first, min(first + sentences, B)), slice(start, min(start + rows, T))


def stored_tensors(kind: str, size: int, shape: MapShape, dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of each tensor that a record keeps of a map."""
    dtypes = {"keys": torch.int16 if shape[3] < 2**15 else torch.int32, "rows": torch.int64, "entropy": torch.float32}
    return {name: (part, dtypes.get(name, dtype)) for name, part in part_shapes(kind, size, shape).items()}


def stored_bytes(kind: str, size: int, shape: MapShape, dtype: torch.dtype) -> int:
    """Return the size of a record in bytes."""
    return sum(prod(part) * number.itemsize for part, number in stored_tensors(kind, size, shape, dtype).values())


class MemoryBudget:
    """The bytes that a recording may take, including the workspace to compute it: a part set aside, and what maps to come have
    not taken yet.

    Every watched map gets an equal part of what is left when it first comes: (bytes left) / (maps still to come); when it comes
    again, (bytes left) / (all maps). A map is kept whole if it fits; else reduced as `keep` says, as little as fits; else its
    entropies; else nothing. Maps of the same shape are reduced alike when they first come.
    """

    def __init__(self, budget: int | str | None, maps: int, keep: str = "blocks"):
        if keep not in REDUCTIONS:
            raise UserError(f"keep = {keep!r}: should be one of {', '.join(REDUCTIONS)}")
        self.keep, self.maps = keep, maps
        self.total = None if budget is None else parse_bytes(budget)
        self.workspace = 0 if self.total is None else self.total // (WORKSPACE_DIVISOR + 1)
        self.reductions: dict[tuple[MapShape, bool], tuple[str, int]] = {}
        self.reset()

    def reset(self) -> None:
        """Start again with the whole budget."""
        self.maps_to_come = self.maps
        self.left = None if self.total is None else self.total * WORKSPACE_DIVISOR // (WORKSPACE_DIVISOR + 1)

    def record(self, lazy: LazyMap, *, first: bool) -> RecordedMap:
        """Record as much of a map as its part of the budget allows; `first`: whether the map has not come before."""
        if self.left is None:
            return record_map(lazy)
        available = self.left // max(1, self.maps_to_come if first else self.maps)
        self.maps_to_come -= first
        chosen = self._choose(lazy, available)
        alike = self.reductions.setdefault((lazy.shape, lazy.signed), chosen) if first else chosen
        chosen = alike if stored_bytes(*alike, lazy.shape, lazy.dtype) <= available else chosen
        self.left -= stored_bytes(*chosen, lazy.shape, lazy.dtype)
        return record_map(lazy, *chosen, workspace=self.workspace + self.left)

    def reserve(self, nbytes: int) -> bool:
        """Take bytes for something besides the maps; return False where they are not left."""
        if self.left is not None and nbytes > self.left:
            return False
        self.left = None if self.left is None else self.left - nbytes
        return True

    def _choose(self, lazy: LazyMap, available: int) -> tuple[str, int]:
        """Return the kind and size of the finest record that fits."""
        *_, T, S = lazy.shape

        def fits(kind: str, size: int) -> bool:
            return stored_bytes(kind, size, lazy.shape, lazy.dtype) <= available

        if fits("weights", 1):
            return "weights", 1
        powers = [2**n for n in range(1, (S // MIN_KEY_BLOCKS).bit_length())]
        sizes: Sequence[int] = {"blocks": powers, "top": range(S, 0, -1), "rows": range(2, T + 1), "entropy": ()}[self.keep]
        finest = bisect_left(sizes, True, key=lambda size: fits(self.keep, size))  # from fine to coarse
        if finest < len(sizes):
            return self.keep, sizes[finest]
        return ("entropy" if fits("entropy", 1) and not lazy.signed else "nothing"), 1


def parse_bytes(budget: int | str) -> int:
    """Return the bytes of 200MB, 1GB, 512KiB, or of a plain number."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?I?B|)\s*", str(budget).upper())
    if isinstance(budget, bool) or found is None or found.group(2) not in UNITS or not float(found.group(1)):
        raise UserError(f"budget = {budget!r}: should be a size such as '200MB' or '1GB'")
    return int(float(found.group(1)) * UNITS[found.group(2)])
