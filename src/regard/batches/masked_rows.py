"""Masked language modelling (Devlin et al. 2019, sec. 3.1): which tokens are masked, and how, is a pure function of (seed,
epoch)."""

from dataclasses import dataclass

import numpy as np
import torch

from regard import rng
from regard.batches.batch import IGNORE_INDEX, Batch
from regard.batches.language_rows import UnpaddedRows
from regard.batches.ragged import Ragged
from regard.batches.rows import TextRows, encoder_pair_inputs
from regard.recipe import Masking
from regard.tokens.special_tokens import PAD

CHOICE_STREAM, CORRUPTION_STREAM, RANDOM_TOKEN_STREAM, NEXT_TEXT_STREAM, OTHER_TEXT_STREAM = range(5)


@dataclass
class MaskedRows(TextRows, UnpaddedRows):
    """Texts with masked tokens, which an encoder predicts."""

    masking: Masking
    mask_id: int
    vocabulary_size: int
    word_starts: np.ndarray | None = None
    """For whole-word masking: where the word of each token of the text starts."""

    def mask(self, rows: np.ndarray, seed: int, epoch: int, max_length: int) -> tuple[Ragged, Ragged]:
        """Return the corrupted ids and the labels. A token is chosen with probability `fraction`; then it is masked, replaced by
        a random token, or kept."""
        positions = self.text.ids.positions(rows).truncate(max_length)
        at, ids = positions.flat, self.text.ids.flat[positions.flat].astype(np.int64)
        word = at if self.word_starts is None else self.word_starts[at]
        chosen = rng.hash_uniform(seed, epoch, word, CHOICE_STREAM) < self.masking.fraction
        uniform = rng.hash_uniform(seed, epoch, at, CORRUPTION_STREAM)
        first = self.mask_id + 1  # ordinary tokens follow the special ones
        number = np.uint64(max(1, self.vocabulary_size - first))
        random = first + (rng.hash64(seed, epoch, at, RANDOM_TOKEN_STREAM) % number).astype(np.int64)
        masking = self.masking
        kept_or_masked = np.where(uniform < masking.random_fraction + masking.unchanged_fraction, ids, self.mask_id)
        corrupted = np.where(uniform < masking.random_fraction, random, kept_or_masked)
        inputs, labels = np.where(chosen, corrupted, ids), np.where(chosen, ids, IGNORE_INDEX)
        return Ragged(inputs, positions.offsets), Ragged(labels, positions.offsets)

    def ragged(self, rows: np.ndarray, seed: int, epoch: int) -> tuple[Ragged, Ragged]:
        inputs, labels = self.mask(rows, seed, epoch, self.text.max_length)
        prefix, suffix = self.special_tokens.prefix, self.special_tokens.suffix
        return inputs.surround(prefix, suffix), labels.surround([IGNORE_INDEX] * len(prefix), [IGNORE_INDEX] * len(suffix))

    def to_batch(self, inputs: Ragged, labels: Ragged, rows: np.ndarray) -> Batch:
        tensors = {"source": torch.from_numpy(inputs.to_padded(pad=PAD)), "lengths": torch.from_numpy(inputs.lengths)}
        return Batch(tensors, torch.from_numpy(labels.to_padded(pad=IGNORE_INDEX)), rows)


@dataclass
class MaskedPairRows(MaskedRows):
    """Pairs of masked texts for next-sentence prediction: in half of the rows the second text follows the first, in the others it
    is a random one."""

    firsts: np.ndarray = None  # type: ignore[assignment]
    """The texts that have a successor."""

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def num_added(self) -> int:
        return self.special_tokens.num_added_to_pair

    def pairs(self, rows: np.ndarray, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the first and the second text of some rows, and whether the second follows the first."""
        first = self.firsts[rows]
        follows = rng.hash_uniform(seed, epoch, first, NEXT_TEXT_STREAM) < 0.5
        other = self.firsts[(rng.hash64(seed, epoch, first, OTHER_TEXT_STREAM) % np.uint64(len(self))).astype(np.int64)]
        follows = follows | (other == first)
        return first, np.where(follows, first, other) + 1, follows

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        first, second, _ = self.pairs(np.arange(len(self)), seed, epoch)
        lengths = np.minimum(self.text.ids.lengths, self.text.max_length // 2)
        return [lengths[first] + lengths[second] + self.num_added]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        *texts, follows = self.pairs(rows, seed, epoch)
        (first, first_labels), (second, second_labels) = (
            self.mask(text, seed, epoch, self.text.max_length // 2) for text in texts
        )
        labels = encoder_pair_inputs(first_labels, second_labels, self.special_tokens, special_id=IGNORE_INDEX, pad=IGNORE_INDEX)[
            "source"
        ]
        inputs = encoder_pair_inputs(first, second, self.special_tokens)
        return Batch({**inputs, "follows": torch.from_numpy(follows.astype(np.int64))}, labels, rows)


def word_starts(ids: Ragged, words: list[list[int]]) -> np.ndarray:
    """Return where the word of each token starts, among all tokens; `words` has the word number of each token of each text."""
    starts = []
    for offset, row in zip(ids.offsets[:-1].tolist(), words):
        start = offset
        for i, word in enumerate(row):
            start = offset + i if i == 0 or row[i - 1] != word else start
            starts.append(start)
    return np.array(starts, np.int64)


def lines_with_successor(documents: np.ndarray) -> np.ndarray:
    """Return the lines that another line of the same document follows."""
    return np.flatnonzero(documents[1:] == documents[:-1])
