"""Examples as ids, one kind for each shape of task; each knows how long its rows are and makes batches of them."""

from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch

from regard.batches.batch import NOTHING, Batch
from regard.batches.ragged import Ragged
from regard.batches.side import Side
from regard.tokens.special import BOS, EOS, PAD


class Rows(Protocol):
    def __len__(self) -> int: ...

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        """The positions that each row takes on each of its sides, marks included."""
        ...

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch: ...

    def plain(self) -> Self:
        """The same examples, always segmented alike."""
        ...

    def capped(self, most: int) -> Self:
        """The same examples, cut to so many positions."""
        ...


@dataclass
class Translations:
    """Read a sentence, then its translation so far; say the next word."""

    source: Side
    target: Side

    def __len__(self) -> int:
        return len(self.source.ids)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [side.lengths(seed, epoch) + 1 for side in (self.source, self.target)]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        target = self.target.take(rows, seed, epoch)
        inputs = {**read(self.source.take(rows, seed, epoch)), "target": torch.from_numpy(target.padded(pad=PAD, before=[BOS]))}
        return Batch(inputs, torch.from_numpy(target.padded(pad=NOTHING, after=[EOS])), rows)

    def plain(self) -> "Translations":
        return Translations(self.source.plain(), self.target.plain())

    def capped(self, most: int) -> "Translations":
        return Translations(replace(self.source, most=most - 1), replace(self.target, most=most - 1))


@dataclass
class Single:
    """Rows of one text."""

    text: Side

    def __len__(self) -> int:
        return len(self.text.ids)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [self.text.lengths(seed, epoch) + 1]

    def plain(self) -> Self:
        return replace(self, text=self.text.plain())

    def capped(self, most: int) -> Self:
        return replace(self, text=replace(self.text, most=most - 1))


@dataclass
class Sentences(Single):
    """Read a text so far; say the next word."""

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        text = self.text.take(rows, seed, epoch)
        return Batch({"target": torch.from_numpy(text.padded(pad=PAD, before=[BOS]))},
                     torch.from_numpy(text.padded(pad=NOTHING, after=[EOS])), rows)


@dataclass
class BothWays(Single):
    """Read a text; at every word, say the next one (from what is before) and the one before (from what is after)."""

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        text = self.text.take(rows, seed, epoch)
        said = torch.from_numpy(text.padded(pad=NOTHING, after=[EOS]))            # (B, S)
        nothing = said.new_full((len(said), 1), NOTHING)
        after, before = torch.cat([said[:, 1:], nothing], dim=1), torch.cat([nothing, said[:, :-1]], dim=1)
        labels = torch.stack([after, torch.where(said == NOTHING, NOTHING, before)], dim=-1)    # (B, S, 2)
        return Batch(read(text), labels, rows)


@dataclass
class Classes(Single):
    """Read a text; say its class."""

    classes: np.ndarray                                                           # (N,)

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        return Batch(read(self.text.take(rows, seed, epoch)), torch.from_numpy(self.classes[rows]), rows)


@dataclass
class Tags(Single):
    """Read a text; say the tag of every word, at its first sub-word."""

    tags: Ragged
    """One a token, `NOTHING` where no word begins."""

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        tags = self.tags.take(rows).truncated(self.text.most)
        return Batch(read(self.text.take(rows, seed, epoch)), torch.from_numpy(tags.padded(pad=NOTHING, after=[NOTHING])), rows)


@dataclass
class Stream:
    """One long text, cut into windows of `window` tokens. Read a window so far; say the next token, which for a window's last is
    the first of the next one. Every epoch but the first begins its cuts elsewhere, as if the text were a ring."""

    ids: np.ndarray
    window: int

    def __len__(self) -> int:
        return -(-(len(self.ids) - 1) // self.window)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        lengths = np.full(len(self), self.window)
        lengths[-1] = len(self.ids) - 1 - self.window * (len(self) - 1)
        return [lengths]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        begin = np.random.default_rng([seed, epoch]).integers(len(self.ids)) if epoch else 0
        lengths = self.lengths(seed, epoch)[0][rows]
        at = np.arange(lengths.max())
        tokens = self.ids[(begin + rows[:, None] * self.window + np.arange(lengths.max() + 1)) % len(self.ids)].astype(np.int64)
        inside = at < lengths[:, None]                                            # (B, T)
        return Batch({"target": torch.from_numpy(np.where(inside, tokens[:, :-1], PAD))},
                     torch.from_numpy(np.where(inside, tokens[:, 1:], NOTHING)), rows)

    def plain(self) -> "Stream":
        return self

    def capped(self, most: int) -> "Stream":
        return self


def read(text: Ragged) -> dict[str, torch.Tensor]:
    """Texts as an encoder reads them: their ids and the end mark, and how many they are."""
    return {"source": torch.from_numpy(text.padded(pad=PAD, after=[EOS])), "lengths": torch.from_numpy(text.lengths + 1)}
