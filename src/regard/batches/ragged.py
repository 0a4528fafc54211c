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
        """Where the entries of the chosen rows lie in `flat`, as rows of their own."""
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return Ragged(np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths), offsets)

    def take(self, rows: np.ndarray) -> "Ragged":
        where = self.positions(rows)
        return Ragged(self.flat[where.flat], where.offsets)

    def through(self, table: "Ragged") -> "Ragged":
        """Every entry replaced by the row of the table that it is the number of."""
        found = table.take(self.flat)
        return Ragged(found.flat, found.offsets[self.offsets])

    def truncate(self, most: int) -> "Ragged":
        """The first `most` entries of every row."""
        lengths = self.lengths
        if lengths.max(initial=0) <= most:
            return self
        kept = np.minimum(lengths, most)
        within = np.arange(len(self.flat)) - np.repeat(self.offsets[:-1], lengths) < most
        return Ragged(self.flat[within], np.concatenate([[0], np.cumsum(kept)]))

    def behind(self, first: np.ndarray) -> "Ragged":
        """Every row without its first entries, so many of each."""
        lengths = self.lengths
        kept = np.arange(len(self.flat)) - np.repeat(self.offsets[:-1], lengths) >= np.repeat(first, lengths)
        return Ragged(self.flat[kept], np.concatenate([[0], np.cumsum(lengths - first)]))

    def split(self, most: int) -> "Ragged":
        """Rows of more than `most` entries as several."""
        numbers = np.maximum(1, -(-self.lengths // most))
        within = np.arange(numbers.sum()) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        return Ragged(self.flat, np.append(np.repeat(self.offsets[:-1], numbers) + most * within, self.offsets[-1:]))

    def between(self, before: Sequence[int], after: Sequence[int]) -> "Ragged":
        """Every row with the given entries before and after it."""
        around = [np.tile(np.array(mark, self.flat.dtype), (len(self), 1)).reshape(-1) for mark in (before, after)]
        sides = [Ragged(flat, np.arange(len(self) + 1) * len(mark)) for flat, mark in zip(around, (before, after))]
        return Ragged.beside(Ragged.beside(sides[0], self), sides[1])

    @staticmethod
    def beside(one: "Ragged", other: "Ragged") -> "Ragged":
        """Row i of one, then row i of the other."""
        offsets = one.offsets + other.offsets
        flat = np.empty(int(offsets[-1]), one.flat.dtype)
        for part, starts in ((one, offsets[:-1]), (other, offsets[:-1] + one.lengths)):
            flat[np.arange(len(part.flat)) + np.repeat(starts - part.offsets[:-1], part.lengths)] = part.flat
        return Ragged(flat, offsets)

    def padded(self, *, pad: int, before: Iterable[int] = (), after: Iterable[int] = ()) -> np.ndarray:
        """A rectangle (rows, longest) with the given ids put before and after every row."""
        before, after = list(before), list(after)
        lengths = self.lengths
        rectangle = np.full((len(self), len(before) + int(lengths.max(initial=0)) + len(after)), pad, np.int64)
        rectangle[:, : len(before)] = before
        row = np.repeat(np.arange(len(self)), lengths)
        rectangle[row, len(before) + np.arange(len(self.flat)) - np.repeat(self.offsets[:-1], lengths)] = self.flat
        for i, token in enumerate(after):
            rectangle[np.arange(len(self)), len(before) + lengths + i] = token
        return rectangle
