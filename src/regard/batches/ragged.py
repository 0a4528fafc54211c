"""Rows of different lengths in one flat array."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np


@dataclass
class Ragged:
    """Row i is `flat[offsets[i]:offsets[i + 1]]`; both arrays may be memory-mapped."""

    flat: np.ndarray
    offsets: np.ndarray

    @staticmethod
    def from_rows(rows: Sequence[Sequence[int]], dtype: type = np.int32) -> "Ragged":
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return Ragged(np.fromiter(chain.from_iterable(rows), dtype, count=int(offsets[-1])), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def __getitem__(self, row: int) -> np.ndarray:
        return self.flat[self.offsets[row] : self.offsets[row + 1]]

    def positions(self, rows: np.ndarray) -> "Ragged":
        """Return the indices into `flat` of the entries of some rows."""
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return Ragged(np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths), offsets)

    def take(self, rows: np.ndarray) -> "Ragged":
        """Return some rows."""
        positions = self.positions(rows)
        return Ragged(self.flat[positions.flat], positions.offsets)

    def lookup(self, table: "Ragged") -> "Ragged":
        """Replace every entry by the row of the table with that number."""
        entries = table.take(self.flat)
        return Ragged(entries.flat, entries.offsets[self.offsets])

    def truncate(self, max_length: int) -> "Ragged":
        """Keep the first `max_length` entries of every row."""
        lengths = self.lengths
        if lengths.max(initial=0) <= max_length:
            return self
        kept = np.arange(len(self.flat)) - np.repeat(self.offsets[:-1], lengths) < max_length
        return Ragged(self.flat[kept], np.concatenate([[0], np.cumsum(np.minimum(lengths, max_length))]))

    def drop_first(self, counts: np.ndarray) -> "Ragged":
        """Drop the first `counts[i]` entries of row i."""
        lengths = self.lengths
        kept = np.arange(len(self.flat)) - np.repeat(self.offsets[:-1], lengths) >= np.repeat(counts, lengths)
        return Ragged(self.flat[kept], np.concatenate([[0], np.cumsum(lengths - counts)]))

    def split(self, max_length: int) -> "Ragged":
        """Split rows of more than `max_length` entries into several."""
        numbers = np.maximum(1, -(-self.lengths // max_length))
        within = np.arange(numbers.sum()) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        return Ragged(self.flat, np.append(np.repeat(self.offsets[:-1], numbers) + max_length * within, self.offsets[-1:]))

    def surround(self, prefix: Sequence[int], suffix: Sequence[int]) -> "Ragged":
        """Put the same entries before and after every row."""
        sides = [
            Ragged(np.tile(np.array(ids, self.flat.dtype), len(self)), np.arange(len(self) + 1) * len(ids))
            for ids in (prefix, suffix)
        ]
        return Ragged.concat_rows(Ragged.concat_rows(sides[0], self), sides[1])

    @staticmethod
    def concat_rows(first: "Ragged", second: "Ragged") -> "Ragged":
        """Return row i of the first followed by row i of the second."""
        offsets = first.offsets + second.offsets
        flat = np.empty(int(offsets[-1]), first.flat.dtype)
        for part, starts in ((first, offsets[:-1]), (second, offsets[:-1] + first.lengths)):
            flat[np.arange(len(part.flat)) + np.repeat(starts - part.offsets[:-1], part.lengths)] = part.flat
        return Ragged(flat, offsets)

    def to_padded(self, *, pad: int, prefix: Iterable[int] = (), suffix: Iterable[int] = ()) -> np.ndarray:
        """Return an int64 array (rows, longest), padded at the end, with the same ids before and after every row."""
        prefix, suffix = list(prefix), list(suffix)
        lengths = self.lengths
        padded = np.full((len(self), len(prefix) + int(lengths.max(initial=0)) + len(suffix)), pad, np.int64)
        padded[:, : len(prefix)] = prefix
        row = np.repeat(np.arange(len(self)), lengths)
        padded[row, len(prefix) + np.arange(len(self.flat)) - np.repeat(self.offsets[:-1], lengths)] = self.flat
        for i, token in enumerate(suffix):
            padded[np.arange(len(self)), len(prefix) + lengths + i] = token
        return padded
