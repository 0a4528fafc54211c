"""The KV cache: keys and values of the tokens already read, in preallocated memory."""

import torch
import torch.nn.functional as F
from torch import Tensor


class KVCache:
    """One layer's keys (B, G, S, K) and values (B, G, S, J), of which the first `length` positions are filled.

    All rows are filled to the same position; a row that began later leaves its first positions unused (the state's `starts`).
    """

    def __init__(self, capacity: int = 32):
        self.capacity, self.length = capacity, 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def rows(self) -> int:
        return 0 if self.keys is None else self.keys.size(0)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values; return all of them so far."""
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

    def reorder(self, rows: Tensor) -> None:
        """Make row i what row rows[i] was; rows may be repeated or dropped."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self._reorder(self.keys, rows), self._reorder(self.values, rows)

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
