"""Rows of language models: next-token prediction over single texts, chunks of long texts, packed rows, and one long stream.

Packing puts several texts into one row; which go together is a pure function of (seed, epoch). No text attends to another one of
its row (`Mask.documents`), and positions start anew in each, so that a packed text is computed as it would be alone.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from regard.batches.batch import IGNORE_INDEX, Batch
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, TextRows, cache_per_epoch
from regard.tokens.special_tokens import PAD

PACKING_STREAM = 11


@dataclass
class UnpaddedRows(Rows):
    """Rows that are available before padding, to be chunked or packed."""

    def ragged(self, rows: np.ndarray, seed: int, epoch: int) -> tuple[Ragged, Ragged]:
        """Return the input ids and the labels of some rows, with special tokens."""
        raise NotImplementedError

    def to_batch(self, inputs: Ragged, labels: Ragged, rows: np.ndarray) -> Batch:
        raise NotImplementedError

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        return self.to_batch(*self.ragged(rows, seed, epoch), rows)


@dataclass
class LanguageModelRows(TextRows, UnpaddedRows):
    """Texts of which a decoder predicts the next token."""

    @property
    def num_added(self) -> int:
        return 1

    def ragged(self, rows: np.ndarray, seed: int, epoch: int) -> tuple[Ragged, Ragged]:
        text = self.text.take(rows, seed, epoch)
        return text.surround([self.special_tokens.bos], []), text.surround([], [self.special_tokens.eos])

    def to_batch(self, inputs: Ragged, labels: Ragged, rows: np.ndarray) -> Batch:
        target = torch.from_numpy(inputs.to_padded(pad=PAD))
        return Batch({"target": target}, torch.from_numpy(labels.to_padded(pad=IGNORE_INDEX)), rows)

    def split(self, max_length: int) -> "ChunkedRows":
        return ChunkedRows(self, max_length)


@dataclass
class ChunkedRows(UnpaddedRows):
    """Texts cut into chunks of at most `max_length` positions. A chunk starts where the one before it ended and sees nothing of
    it; every token is predicted once."""

    texts: UnpaddedRows
    max_length: int

    def __len__(self) -> int:
        return len(self._chunks(0, 0)[0])

    @cache_per_epoch
    def _chunks(self, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the text, the first position and the length of each chunk."""
        lengths = self.texts.lengths(seed, epoch)[0]
        numbers = -(-lengths // self.max_length)
        text = np.repeat(np.arange(len(lengths)), numbers)
        first = self.max_length * (np.arange(len(text)) - np.repeat(np.cumsum(numbers) - numbers, numbers))
        return text, first, np.minimum(lengths[text] - first, self.max_length)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [self._chunks(seed, epoch)[2]]

    def ragged(self, rows: np.ndarray, seed: int, epoch: int) -> tuple[Ragged, Ragged]:
        text, first, _ = (part[rows] for part in self._chunks(seed, epoch))
        inputs, labels = self.texts.ragged(text, seed, epoch)
        return inputs.drop_first(first).truncate(self.max_length), labels.drop_first(first).truncate(self.max_length)

    def to_batch(self, inputs: Ragged, labels: Ragged, rows: np.ndarray) -> Batch:
        return self.texts.to_batch(inputs, labels, rows)

    def truncate(self, max_length: int) -> "ChunkedRows":
        return replace(self, max_length=min(self.max_length, max_length))


@dataclass
class PackedRows(Rows):
    """Rows of at most `row_length` positions, each packed with whole texts."""

    texts: UnpaddedRows
    row_length: int

    def __len__(self) -> int:
        return len(self.plan(0, 0))

    @cache_per_epoch
    def plan(self, seed: int, epoch: int) -> Ragged:
        """Return the texts of each row."""
        lengths = self.texts.lengths(seed, epoch)[0]
        order = np.random.default_rng([seed, PACKING_STREAM, epoch]).permutation(len(lengths))
        return best_fit_rows(lengths, self.row_length, order)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        plan = self.plan(seed, epoch)
        return [np.add.reduceat(self.texts.lengths(seed, epoch)[0][plan.flat], plan.offsets[:-1])]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        chosen = self.plan(seed, epoch).take(rows)
        inputs, labels = self.texts.ragged(chosen.flat, seed, epoch)
        numbers = 1 + np.arange(len(chosen.flat)) - np.repeat(chosen.offsets[:-1], chosen.lengths)  # 1, 2, 3 … in each row
        offsets = inputs.offsets[chosen.offsets]
        batch = self.texts.to_batch(Ragged(inputs.flat, offsets), Ragged(labels.flat, offsets), rows)
        documents = Ragged(np.repeat(numbers, inputs.lengths), offsets).to_padded(pad=0)
        return replace(batch, inputs={**batch.inputs, "documents": torch.from_numpy(documents)})

    def truncate(self, max_length: int) -> "PackedRows":
        return PackedRows(self.texts.truncate(max_length), min(self.row_length, max_length))


def best_fit_rows(lengths: np.ndarray, row_length: int, order: np.ndarray) -> Ragged:
    """Pack texts, in the given order, into rows: each into the row that it fills best (best fit), or else into a new one."""
    rows: list[list[int]] = []
    rows_by_space: list[list[int]] = [[] for _ in range(row_length + 1)]  # the rows with so many free positions
    spaces = 0  # bit n is set if some row has n free positions
    for text, length in zip(order.tolist(), lengths[order].tolist()):
        assert length <= row_length, "a text longer than a row must be truncated or split before packing"
        sufficient = spaces >> length
        if sufficient:
            space = length + (sufficient & -sufficient).bit_length() - 1  # the lowest bit
            row = rows_by_space[space].pop()
            spaces ^= 0 if rows_by_space[space] else 1 << space
        else:
            space, row = row_length, len(rows)
            rows.append([])
        rows[row].append(text)
        space -= length
        rows_by_space[space].append(row)
        spaces |= 1 << space
    return Ragged.from_rows(rows, np.int64)


@dataclass
class StreamRows(Rows):
    """One long text, cut into windows of `window` tokens, of which a decoder predicts the next token; that of a window's last
    token is the first of the next window. Every epoch but the first starts at another offset, as if the text were a ring. A
    window starts with the last `overlap` tokens of the one before, as context excluded from the loss."""

    ids: np.ndarray
    window: int
    overlap: int = 0

    @property
    def stride(self) -> int:
        return self.window - self.overlap

    def __len__(self) -> int:
        return max(1, -(-(len(self.ids) - 1 - self.overlap) // self.stride))

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        lengths = np.full(len(self), self.window)
        lengths[-1] = len(self.ids) - 1 - self.stride * (len(self) - 1)
        return [lengths]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        start = np.random.default_rng([seed, epoch]).integers(len(self.ids)) if epoch else 0
        lengths = self.lengths(seed, epoch)[0][rows]
        position = np.arange(lengths.max())
        tokens = self.ids[(start + rows[:, None] * self.stride + np.arange(lengths.max() + 1)) % len(self.ids)].astype(np.int64)
        inside = position < lengths[:, None]  # (B, T)
        in_loss = inside & ((position >= self.overlap) | (rows[:, None] == 0))
        return Batch(
            {"target": torch.from_numpy(np.where(inside, tokens[:, :-1], PAD))},
            torch.from_numpy(np.where(in_loss, tokens[:, 1:], IGNORE_INDEX)),
            rows,
        )
