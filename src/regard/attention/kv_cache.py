"""The KV cache: keys and values of the tokens already read, in preallocated memory."""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.kernels import decode_kernel
from regard.attention.masks import Mask

ALIGNMENT = 16
"""Rows of an index have a multiple of this length: torch moves them faster."""


class RowIndex:
    """Which row of the caches holds each position of each hypothesis: (B, S) in int32, None where that is its own row.

    The caches of all layers share one, so that reordering the hypotheses of a beam search moves one small table.
    """

    def __init__(self, table: Tensor | None = None):
        self.table = table
        self._next: tuple[Tensor, RowIndex] | None = None

    def reorder(self, rows: Tensor, capacity: int) -> "RowIndex":
        """Return the index in which row i is what row rows[i] was, computed once for all caches that share this one."""
        if self._next is None or self._next[0] is not rows:
            width = -(-capacity // ALIGNMENT) * ALIGNMENT
            table = rows.int()[:, None].repeat(1, width) if self.table is None else self.table.index_select(0, rows)
            self._next = rows, RowIndex(table)
        return self._next[1]


class KVCache:
    """One layer's keys (B, G, S, K) and values (B, G, S, J), of which the first `length` positions are filled.

    All rows are filled to the same position; a row that began later leaves its first positions unused (the state's `starts`).
    After a step of the decoding kernel, `reorder` leaves keys and values where they are and changes `index` instead; whatever
    else reads them moves them first.
    """

    def __init__(self, capacity: int = 32, index: RowIndex | None = None):
        self.capacity, self.length, self.index = capacity, 0, index or RowIndex()
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.is_read_by_index = False

    @property
    def rows(self) -> int:
        return 0 if self.keys is None else self.keys.size(0)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values; return all of them so far."""
        self._move_to_own_rows()
        self.is_read_by_index = False
        end = self.length + keys.size(2)
        if self.keys is None or self.values is None:
            self.capacity = max(self.capacity, end)
            self.keys, self.values = (x.new_zeros(*x.shape[:2], self.capacity, x.size(3)) for x in (keys, values))
        elif end > self.capacity:
            more = max(end, 2 * self.capacity) - self.capacity
            self.keys, self.values = F.pad(self.keys, (0, 0, 0, more)), F.pad(self.values, (0, 0, 0, more))
            self.capacity += more
        self.keys.narrow(2, self.length, keys.size(2)).copy_(keys)
        self.values.narrow(2, self.length, keys.size(2)).copy_(values)
        self.length = end
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)

    def append_and_attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Mask, scale: float | None) -> Tensor | None:
        """Store one new key and value per row, and return the result of `attend` to all so far, in one kernel; return None and
        store nothing where the kernel does not run."""
        if self.keys is None or self.values is None or self.length == self.capacity or q.size(2) != 1:
            return None
        if not decode_kernel.can_run(q, self.keys, self.values, mask) or keys.stride(-1) != 1 or values.stride(-1) != 1:
            return None
        new, table = (keys, values), self.index.table
        mixed = decode_kernel.attend_few_queries(q, self.keys, self.values, mask, scale, new, table, self.length)
        self.length, self.is_read_by_index = self.length + 1, True
        return mixed

    def reorder(self, rows: Tensor) -> None:
        """Make row i what row rows[i] was; rows may be repeated or dropped."""
        if self.keys is None or self.values is None:
            return
        if self.is_read_by_index and len(rows) == self.rows:
            self.index = self.index.reorder(rows, self.capacity)
            return
        self._move_to_own_rows()
        self.keys, self.values = self._reorder(self.keys, rows), self._reorder(self.values, rows)

    def _move_to_own_rows(self) -> None:
        """Move the keys and values of each hypothesis to its own row."""
        if self.index.table is None or self.keys is None or self.values is None:
            return
        at = self.index.table[:, : self.length].long(), slice(None), torch.arange(self.length, device=self.keys.device)
        for filled in (self.keys, self.values):
            filled.narrow(2, 0, self.length).copy_(filled[at].transpose(1, 2))  # (B, S, G, K) -> (B, G, S, K)
        self.index = RowIndex()

    def _reorder(self, x: Tensor, rows: Tensor) -> Tensor:
        """On the CPU, copy only the filled positions, and in place where the number of rows stays the same."""
        if x.is_cuda:
            return x.index_select(0, rows)
        moved = x.narrow(2, 0, self.length).index_select(0, rows)
        into = x if len(rows) == len(x) else x.new_zeros(len(rows), *x.shape[1:])
        into.narrow(2, 0, self.length).copy_(moved)
        return into

    @staticmethod
    def join(caches: "list[KVCache]", trim: int = 0) -> "KVCache":
        """Concatenate the rows of several caches, shifted so that all end at the same position; the first `trim` positions, which
        no row uses, are dropped."""
        for cache in caches:
            cache._move_to_own_rows()
        length = max(cache.length for cache in caches) - trim
        joined = KVCache(length + max(cache.capacity - cache.length for cache in caches))
        joined.length = length
        if joined.length:
            joined.keys = torch.cat([_shift(cache.keys, cache.length, joined) for cache in caches])
            joined.values = torch.cat([_shift(cache.values, cache.length, joined) for cache in caches])
        return joined


def _shift(filled: Tensor | None, length: int, into: KVCache) -> Tensor:
    assert filled is not None, "a cache that was started has keys and values"
    return F.pad(filled[:, :, :length], (0, 0, into.length - length, into.capacity - into.length))
