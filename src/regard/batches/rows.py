"""Examples as ids, one kind for each shape of task; each knows how long its rows are and makes batches of them."""

from dataclasses import dataclass, field, replace
from typing import Protocol, Self, cast

import numpy as np
import torch

from regard.batches.batch import NOTHING, Batch
from regard.batches.epoch import once_an_epoch
from regard.batches.ragged import Ragged
from regard.batches.token_store import Side
from regard.tokens.special import FILL, OURS, Marks


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
    marks: Marks = OURS

    def __len__(self) -> int:
        return len(self.source.ids)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [self.source.lengths(seed, epoch) + self.marks.around, self.target.lengths(seed, epoch) + 1]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        target = self.target.take(rows, seed, epoch)
        inputs = {**read(self.source.take(rows, seed, epoch), self.marks), "target": begun(target, self.marks)}
        return Batch(inputs, ended(target, self.marks), rows)

    def plain(self) -> "Translations":
        return replace(self, source=self.source.plain(), target=self.target.plain())

    def capped(self, most: int) -> "Translations":
        source = replace(self.source, most=most - self.marks.around)
        return replace(self, source=source, target=replace(self.target, most=most - 1))


@dataclass
class Single:
    """Rows of one text, read with the marks around it."""

    text: Side
    marks: Marks = field(default=OURS, kw_only=True)

    def __len__(self) -> int:
        return len(self.text.ids)

    @property
    def around(self) -> int:
        return self.marks.around

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [self.text.lengths(seed, epoch) + self.around]

    def plain(self) -> Self:
        return replace(self, text=self.text.plain())

    def capped(self, most: int) -> Self:
        return replace(self, text=replace(self.text, most=most - self.around))

    def split(self, most: int) -> Rows:
        """The same texts, the long ones cut into several of at most so many positions."""
        return cast(Rows, replace(self, text=self.text.split(most - self.around)))


class Unpadded(Rows, Protocol):
    """Rows that are made before they are padded, so that they may be cut, or several put into one."""

    def unpadded(self, rows: np.ndarray, seed: int, epoch: int) -> tuple[Ragged, Ragged]:
        """What is read at each position of some rows, and what should be said there."""
        ...

    def padded(self, read: Ragged, said: Ragged, rows: np.ndarray) -> Batch: ...


@dataclass
class Sentences(Single):
    """Read a text so far; say the next word."""

    @property
    def around(self) -> int:
        return 1

    def unpadded(self, rows: np.ndarray, seed: int, epoch: int) -> tuple[Ragged, Ragged]:
        text = self.text.take(rows, seed, epoch)
        return text.between([self.marks.begin], []), text.between([], [self.marks.end])

    def padded(self, read: Ragged, said: Ragged, rows: np.ndarray) -> Batch:
        return Batch({"target": torch.from_numpy(read.padded(pad=FILL))}, torch.from_numpy(said.padded(pad=NOTHING)), rows)

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        return self.padded(*self.unpadded(rows, seed, epoch), rows)

    def split(self, most: int) -> "Pieces":
        return Pieces(self, most)


@dataclass
class Pieces:
    """Texts cut into windows of at most `most` positions: each reads on where the one before it ended, and sees nothing of what
    is before that; every word is said once."""

    texts: Unpadded
    most: int

    def __len__(self) -> int:
        return len(self.cut(0, 0)[0])

    @once_an_epoch
    def cut(self, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The text of each window, its first position there, and how many it has."""
        lengths = self.texts.lengths(seed, epoch)[0]
        windows = -(-lengths // self.most)
        text = np.repeat(np.arange(len(lengths)), windows)
        first = self.most * (np.arange(len(text)) - np.repeat(np.cumsum(windows) - windows, windows))
        return text, first, np.minimum(lengths[text] - first, self.most)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [self.cut(seed, epoch)[2]]

    def unpadded(self, rows: np.ndarray, seed: int, epoch: int) -> tuple[Ragged, Ragged]:
        text, first, _ = (part[rows] for part in self.cut(seed, epoch))
        read, said = self.texts.unpadded(text, seed, epoch)
        return read.behind(first).truncated(self.most), said.behind(first).truncated(self.most)

    def padded(self, read: Ragged, said: Ragged, rows: np.ndarray) -> Batch:
        return self.texts.padded(read, said, rows)

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        return self.padded(*self.unpadded(rows, seed, epoch), rows)

    def plain(self) -> "Pieces":
        return replace(self, texts=self.texts.plain())

    def capped(self, most: int) -> "Pieces":
        return replace(self, most=min(self.most, most))


@dataclass
class BothWays(Single):
    """Read a text; at every word, say the next one (from what is before) and the one before (from what is after)."""

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        text = self.text.take(rows, seed, epoch)
        said = torch.from_numpy(text.padded(pad=NOTHING, before=self.marks.before, after=self.marks.after))  # (B, S)
        nothing = said.new_full((len(said), 1), NOTHING)
        after, before = torch.cat([said[:, 1:], nothing], dim=1), torch.cat([nothing, said[:, :-1]], dim=1)
        labels = torch.stack([after, torch.where(said == NOTHING, NOTHING, before)], dim=-1)  # (B, S, 2)
        return Batch(read(text, self.marks), labels, rows)


@dataclass
class Classes(Single):
    """Read a text; say its class."""

    classes: np.ndarray  # (N,)

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        return Batch(read(self.text.take(rows, seed, epoch), self.marks), torch.from_numpy(self.classes[rows]), rows)


@dataclass
class ClassPairs:
    """Read two texts; say their class. Each may take half of the room."""

    first: Side
    second: Side
    classes: np.ndarray  # (N,)
    marks: Marks

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def around(self) -> int:
        return self.marks.around_two

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [self.first.lengths(seed, epoch) + self.second.lengths(seed, epoch) + self.around]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        both = read_two(self.first.take(rows, seed, epoch), self.second.take(rows, seed, epoch), self.marks)
        return Batch(both, torch.from_numpy(self.classes[rows]), rows)

    def plain(self) -> "ClassPairs":
        return replace(self, first=self.first.plain(), second=self.second.plain())

    def capped(self, most: int) -> "ClassPairs":
        half = (most - self.around) // 2
        return replace(self, first=replace(self.first, most=half), second=replace(self.second, most=half))


@dataclass
class Tags(Single):
    """Read a text; say the tag of every word, at its first sub-word."""

    tags: Ragged
    """One a token, `NOTHING` where no word begins."""

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        tags = self.tags.take(rows).truncated(self.text.most)
        silent = [[NOTHING] * len(mark) for mark in (self.marks.before, self.marks.after)]
        labels = torch.from_numpy(tags.padded(pad=NOTHING, before=silent[0], after=silent[1]))
        return Batch(read(self.text.take(rows, seed, epoch), self.marks), labels, rows)


@dataclass
class Stream:
    """One long text, cut into windows of `window` tokens. Read a window so far; say the next token, which for a window's last is
    the first of the next one. Every epoch but the first begins its cuts elsewhere, as if the text were a ring. A window begins
    with the `overlap` last tokens of the one before, for which nothing is asked."""

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
        begin = np.random.default_rng([seed, epoch]).integers(len(self.ids)) if epoch else 0
        lengths = self.lengths(seed, epoch)[0][rows]
        at = np.arange(lengths.max())
        tokens = self.ids[(begin + rows[:, None] * self.stride + np.arange(lengths.max() + 1)) % len(self.ids)].astype(np.int64)
        inside = at < lengths[:, None]  # (B, T)
        asked = inside & ((at >= self.overlap) | (rows[:, None] == 0))
        return Batch(
            {"target": torch.from_numpy(np.where(inside, tokens[:, :-1], FILL))},
            torch.from_numpy(np.where(asked, tokens[:, 1:], NOTHING)),
            rows,
        )

    def plain(self) -> "Stream":
        return self

    def capped(self, most: int) -> "Stream":
        return self


def read(text: Ragged, marks: Marks = OURS) -> dict[str, torch.Tensor]:
    """Texts as an encoder reads them: their ids with the marks around them, and how many they are."""
    return {
        "source": torch.from_numpy(text.padded(pad=FILL, before=marks.before, after=marks.after)),
        "lengths": torch.from_numpy(text.lengths + marks.around),
    }


def read_two(
    first: Ragged, second: Ragged, marks: Marks, *, mark: int | None = None, fill: int = FILL
) -> dict[str, torch.Tensor]:
    """Two texts in one row with the marks before, between and after them, and the segment of every token; `mark` stands in for
    all marks."""
    before, middle, after = (
        [mark] * len(given) if mark is not None else list(given) for given in (marks.before, marks.middle, marks.after)
    )
    sides = first.between(before, middle), second.between([], after)
    both = Ragged.beside(*sides)
    segments = Ragged.beside(
        *(Ragged(np.full_like(side.flat, number), side.offsets) for number, side in zip((0, marks.segment), sides))
    )
    return {
        "source": torch.from_numpy(both.padded(pad=fill)),
        "lengths": torch.from_numpy(both.lengths),
        "segments": torch.from_numpy(segments.padded(pad=0)),
    }


def begun(text: Ragged, marks: Marks) -> torch.Tensor:
    """What a decoder reads: the begin mark, and the text."""
    return torch.from_numpy(text.padded(pad=FILL, before=[marks.begin]))


def ended(text: Ragged, marks: Marks) -> torch.Tensor:
    """What it should say: the text, and the end mark."""
    return torch.from_numpy(text.padded(pad=NOTHING, after=[marks.end]))
