"""Keys and values of the tokens already read, in memory allocated ahead."""

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
        """Store what is new; return everything so far."""
        end = self.length + keys.size(2)
        if self.keys is None or self.values is None:
            self.capacity = max(self.capacity, end)
            self.keys, self.values = self.allocate(keys), self.allocate(values)
        elif end > self.capacity:
            more = max(end, 2 * self.capacity) - self.capacity
            self.keys, self.values = F.pad(self.keys, (0, 0, 0, more)), F.pad(self.values, (0, 0, 0, more))
            self.capacity += more
        self.keys.narrow(2, self.length, keys.size(2)).copy_(keys)
        self.values.narrow(2, self.length, keys.size(2)).copy_(values)
        self.length = end
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)

    def allocate(self, like: Tensor) -> Tensor:
        return like.new_zeros(like.size(0), like.size(1), self.capacity, like.size(3))

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row rows[i] was; rows may be repeated or left out."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.reordered(self.keys, rows), self.reordered(self.values, rows)

    def reordered(self, x: Tensor, rows: Tensor) -> Tensor:
        """On the CPU only what is filled is copied, and where there are as many rows as before, in its place."""
        if x.is_cuda:
            return x.index_select(0, rows)
        moved = x.narrow(2, 0, self.length).index_select(0, rows)
        into = x if len(rows) == len(x) else x.new_zeros(len(rows), *x.shape[1:])
        into.narrow(2, 0, self.length).copy_(moved)
        return into

    @staticmethod
    def join(caches: "list[KVCache]", spare: int = 0) -> "KVCache":
        """One cache of all rows, each moved so that all end at the same position; the first `spare` are left out, as no row has
        anything there."""
        length = max(cache.length for cache in caches) - spare
        joined = KVCache(length + max(cache.capacity - cache.length for cache in caches))
        joined.length = length
        if joined.length:
            joined.keys = torch.cat([shift(cache.keys, cache.length, joined) for cache in caches])
            joined.values = torch.cat([shift(cache.values, cache.length, joined) for cache in caches])
        return joined


def shift(filled: Tensor | None, length: int, into: KVCache) -> Tensor:
    assert filled is not None, "a cache that was started has keys and values"
    return F.pad(filled[:, :, :length], (0, 0, into.length - length, into.capacity - into.length))
