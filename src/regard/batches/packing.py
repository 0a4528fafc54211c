"""Several texts in one row: which go together is a pure function of (seed, epoch).

Nothing looks from one text of a row to another (`Mask.documents`), and positions begin anew in each, so that a packed text is
read as it would be alone.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from regard.batches.batch import Batch
from regard.batches.epoch import cache_per_epoch
from regard.batches.ragged import Ragged
from regard.batches.rows import UnpaddedRows

PACK = 11


@dataclass
class PackedRows:
    """Rows of at most `room` positions, each filled with whole texts."""

    texts: UnpaddedRows
    room: int

    def __len__(self) -> int:
        return len(self.plan(0, 0))

    @cache_per_epoch
    def plan(self, seed: int, epoch: int) -> Ragged:
        """The texts of each row."""
        lengths = self.texts.lengths(seed, epoch)[0]
        order = np.random.default_rng([seed, PACK, epoch]).permutation(len(lengths))
        return best_fit_rows(lengths, self.room, order)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        plan = self.plan(seed, epoch)
        return [np.add.reduceat(self.texts.lengths(seed, epoch)[0][plan.flat], plan.offsets[:-1])]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        chosen = self.plan(seed, epoch).take(rows)
        read, said = self.texts.unpadded(chosen.flat, seed, epoch)
        numbers = 1 + np.arange(len(chosen.flat)) - np.repeat(chosen.offsets[:-1], chosen.lengths)  # 1, 2, 3 … in each row
        joined = read.offsets[chosen.offsets]
        batch = self.texts.padded(Ragged(read.flat, joined), Ragged(said.flat, joined), rows)
        documents = Ragged(np.repeat(numbers, read.lengths), joined).padded(pad=0)
        return replace(batch, inputs={**batch.inputs, "documents": torch.from_numpy(documents)})

    def deterministic(self) -> "PackedRows":
        return PackedRows(self.texts.deterministic(), self.room)

    def truncate(self, most: int) -> "PackedRows":
        return PackedRows(self.texts.truncate(most), min(self.room, most))


def best_fit_rows(lengths: np.ndarray, room: int, order: np.ndarray) -> Ragged:
    """Texts in rows of `room` positions: each, in this order, goes where it leaves the least, or else into a new row."""
    rows: list[list[int]] = []
    with_left: list[list[int]] = [[] for _ in range(room + 1)]
    """The rows that have so many positions left."""
    some = 0  # bit n is set where a row has n left
    for text, length in zip(order.tolist(), lengths[order].tolist()):
        assert length <= room, "a text that fits no row was to be cut before"
        enough = some >> length
        if enough:
            left = length + (enough & -enough).bit_length() - 1  # the lowest bit
            row = with_left[left].pop()
            some ^= 0 if with_left[left] else 1 << left
        else:
            left, row = room, len(rows)
            rows.append([])
        rows[row].append(text)
        left -= length
        with_left[left].append(row)
        some |= 1 << left
    return Ragged.from_rows(rows, np.int64)
