"""Texts with words hidden (Devlin et al. 2019, sec. 3.1): which, and behind what, is a pure function of (seed, epoch)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from regard import rng
from regard.batches.batch import IGNORE_INDEX, Batch
from regard.batches.ragged import Ragged
from regard.batches.rows import TextRows, encoder_pair_inputs
from regard.tokens.special_tokens import PAD

if TYPE_CHECKING:
    from regard.recipe import Masking

CHOOSE, HIDE, SAY, FOLLOW, OTHER = range(5)


@dataclass
class MaskedTexts:
    """Some texts as they are read, and the words that are asked for, `IGNORE_INDEX` elsewhere."""

    read: Ragged
    asked: Ragged


@dataclass
class MaskedRows(TextRows):
    """Read a text with words hidden; say them."""

    masking: "Masking"
    mask: int
    vocabulary: int
    heads: np.ndarray | None = None
    """For whole words: where the word of each token of the text begins."""

    def hide(self, rows: np.ndarray, seed: int, epoch: int, most: int) -> MaskedTexts:
        """A word is chosen with the probability `share`; then it is masked, another word, or as it is."""
        where = self.text.ids.positions(rows).truncate(most)
        at, ids = where.flat, self.text.ids.flat[where.flat].astype(np.int64)
        chosen = rng.hash_uniform(seed, epoch, at if self.heads is None else self.heads[at], CHOOSE) < self.masking.fraction
        how = rng.hash_uniform(seed, epoch, at, HIDE)
        first = self.mask + 1  # words come after the marks
        other = first + (rng.hash64(seed, epoch, at, SAY) % np.uint64(max(1, self.vocabulary - first))).astype(np.int64)
        masking = self.masking
        changed = np.where(
            how < masking.random_fraction,
            other,
            np.where(how < masking.random_fraction + masking.unchanged_fraction, ids, self.mask),
        )
        seen, asked = np.where(chosen, changed, ids), np.where(chosen, ids, IGNORE_INDEX)
        return MaskedTexts(Ragged(seen, where.offsets), Ragged(asked, where.offsets))

    def unpadded(self, rows: np.ndarray, seed: int, epoch: int) -> tuple[Ragged, Ragged]:
        hidden, marks = self.hide(rows, seed, epoch, self.text.max_length), self.special_tokens
        silent = [IGNORE_INDEX] * len(marks.prefix), [IGNORE_INDEX] * len(marks.suffix)
        return hidden.read.between(marks.prefix, marks.suffix), hidden.asked.between(*silent)

    def padded(self, read: Ragged, said: Ragged, rows: np.ndarray) -> Batch:
        inputs = {"source": torch.from_numpy(read.padded(pad=PAD)), "lengths": torch.from_numpy(read.lengths)}
        return Batch(inputs, torch.from_numpy(said.padded(pad=IGNORE_INDEX)), rows)

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        return self.padded(*self.unpadded(rows, seed, epoch), rows)


@dataclass
class MaskedPairRows(MaskedRows):
    """Two texts, of which in half of the cases the second follows the first, else another one; say the hidden words, and whether
    it does."""

    firsts: np.ndarray = None  # type: ignore[assignment]
    """The texts that another one follows."""

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def around(self) -> int:
        return self.special_tokens.num_added_to_pair

    def both(self, rows: np.ndarray, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first and the second text of some rows, and whether the second follows."""
        first = self.firsts[rows]
        follows = rng.hash_uniform(seed, epoch, first, FOLLOW) < 0.5
        other = self.firsts[(rng.hash64(seed, epoch, first, OTHER) % np.uint64(len(self))).astype(np.int64)]
        follows = follows | (other == first)
        return first, np.where(follows, first, other) + 1, follows

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        first, second, _ = self.both(np.arange(len(self)), seed, epoch)
        each = np.minimum(self.text.ids.lengths, self.text.max_length // 2)
        return [each[first] + each[second] + self.around]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        first, second, follows = self.both(rows, seed, epoch)
        one, other = (self.hide(chosen, seed, epoch, self.text.max_length // 2) for chosen in (first, second))
        labels = encoder_pair_inputs(one.asked, other.asked, self.special_tokens, mark=IGNORE_INDEX, fill=IGNORE_INDEX)["source"]
        inputs = {
            **encoder_pair_inputs(one.read, other.read, self.special_tokens),
            "follows": torch.from_numpy(follows.astype(np.int64)),
        }
        return Batch(inputs, labels, rows)


def word_starts(ids: Ragged, words: list[list[int]]) -> np.ndarray:
    """Where the word of each token begins, among all tokens; `words` numbers the words of each text."""
    heads = []
    for start, row in zip(ids.offsets[:-1].tolist(), words):
        head = start
        for i, word in enumerate(row):
            head = start + i if i == 0 or row[i - 1] != word else head
            heads.append(head)
    return np.array(heads, np.int64)


def lines_with_successor(documents: np.ndarray) -> np.ndarray:
    """The lines that another line of the same document follows."""
    return np.flatnonzero(documents[1:] == documents[:-1])
