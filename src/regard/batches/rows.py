"""Examples as ids, one kind for each shape of task; each knows how long its rows are and makes batches of them."""

from dataclasses import dataclass, field, replace
from typing import Protocol, Self, cast

import numpy as np
import torch

from regard.batches.batch import IGNORE_INDEX, Batch
from regard.batches.epoch import cache_per_epoch
from regard.batches.ragged import Ragged
from regard.batches.token_store import TokenStore
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, PAD, SpecialTokens


class Rows(Protocol):
    def __len__(self) -> int: ...

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        """The positions that each row takes on each of its sides, marks included."""
        ...

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch: ...

    def deterministic(self) -> Self:
        """The same examples, always segmented alike."""
        ...

    def truncate(self, most: int) -> Self:
        """The same examples, cut to so many positions."""
        ...


@dataclass
class TranslationRows:
    """Read a sentence, then its translation so far; say the next word."""

    source: TokenStore
    target: TokenStore
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS

    def __len__(self) -> int:
        return len(self.source.ids)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [self.source.lengths(seed, epoch) + self.special_tokens.num_added, self.target.lengths(seed, epoch) + 1]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        target = self.target.take(rows, seed, epoch)
        inputs = {
            **encoder_inputs(self.source.take(rows, seed, epoch), self.special_tokens),
            "target": decoder_inputs(target, self.special_tokens),
        }
        return Batch(inputs, decoder_labels(target, self.special_tokens), rows)

    def deterministic(self) -> "TranslationRows":
        return replace(self, source=self.source.deterministic(), target=self.target.deterministic())

    def truncate(self, most: int) -> "TranslationRows":
        source = replace(self.source, max_length=most - self.special_tokens.num_added)
        return replace(self, source=source, target=replace(self.target, max_length=most - 1))


@dataclass
class TextRows:
    """Rows of one text, read with the marks around it."""

    text: TokenStore
    special_tokens: SpecialTokens = field(default=DEFAULT_SPECIAL_TOKENS, kw_only=True)

    def __len__(self) -> int:
        return len(self.text.ids)

    @property
    def around(self) -> int:
        return self.special_tokens.num_added

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [self.text.lengths(seed, epoch) + self.around]

    def deterministic(self) -> Self:
        return replace(self, text=self.text.deterministic())

    def truncate(self, most: int) -> Self:
        return replace(self, text=replace(self.text, max_length=most - self.around))

    def split(self, most: int) -> Rows:
        """The same texts, the long ones cut into several of at most so many positions."""
        return cast(Rows, replace(self, text=self.text.split(most - self.around)))


class UnpaddedRows(Rows, Protocol):
    """Rows that are made before they are padded, so that they may be cut, or several put into one."""

    def unpadded(self, rows: np.ndarray, seed: int, epoch: int) -> tuple[Ragged, Ragged]:
        """What is read at each position of some rows, and what should be said there."""
        ...

    def padded(self, read: Ragged, said: Ragged, rows: np.ndarray) -> Batch: ...


@dataclass
class LanguageModelRows(TextRows):
    """Read a text so far; say the next word."""

    @property
    def around(self) -> int:
        return 1

    def unpadded(self, rows: np.ndarray, seed: int, epoch: int) -> tuple[Ragged, Ragged]:
        text = self.text.take(rows, seed, epoch)
        return text.between([self.special_tokens.bos], []), text.between([], [self.special_tokens.eos])

    def padded(self, read: Ragged, said: Ragged, rows: np.ndarray) -> Batch:
        return Batch({"target": torch.from_numpy(read.padded(pad=PAD))}, torch.from_numpy(said.padded(pad=IGNORE_INDEX)), rows)

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        return self.padded(*self.unpadded(rows, seed, epoch), rows)

    def split(self, most: int) -> "ChunkedRows":
        return ChunkedRows(self, most)


@dataclass
class ChunkedRows:
    """Texts cut into windows of at most `most` positions: each reads on where the one before it ended, and sees nothing of what
    is before that; every word is said once."""

    texts: UnpaddedRows
    max_length: int

    def __len__(self) -> int:
        return len(self.cut(0, 0)[0])

    @cache_per_epoch
    def cut(self, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The text of each window, its first position there, and how many it has."""
        lengths = self.texts.lengths(seed, epoch)[0]
        windows = -(-lengths // self.max_length)
        text = np.repeat(np.arange(len(lengths)), windows)
        first = self.max_length * (np.arange(len(text)) - np.repeat(np.cumsum(windows) - windows, windows))
        return text, first, np.minimum(lengths[text] - first, self.max_length)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [self.cut(seed, epoch)[2]]

    def unpadded(self, rows: np.ndarray, seed: int, epoch: int) -> tuple[Ragged, Ragged]:
        text, first, _ = (part[rows] for part in self.cut(seed, epoch))
        read, said = self.texts.unpadded(text, seed, epoch)
        return read.behind(first).truncate(self.max_length), said.behind(first).truncate(self.max_length)

    def padded(self, read: Ragged, said: Ragged, rows: np.ndarray) -> Batch:
        return self.texts.padded(read, said, rows)

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        return self.padded(*self.unpadded(rows, seed, epoch), rows)

    def deterministic(self) -> "ChunkedRows":
        return replace(self, texts=self.texts.deterministic())

    def truncate(self, most: int) -> "ChunkedRows":
        return replace(self, max_length=min(self.max_length, most))


@dataclass
class BidirectionalRows(TextRows):
    """Read a text; at every word, say the next one (from what is before) and the one before (from what is after)."""

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        text = self.text.take(rows, seed, epoch)
        said = torch.from_numpy(
            text.padded(pad=IGNORE_INDEX, before=self.special_tokens.prefix, after=self.special_tokens.suffix)
        )  # (B, S)
        nothing = said.new_full((len(said), 1), IGNORE_INDEX)
        after, before = torch.cat([said[:, 1:], nothing], dim=1), torch.cat([nothing, said[:, :-1]], dim=1)
        labels = torch.stack([after, torch.where(said == IGNORE_INDEX, IGNORE_INDEX, before)], dim=-1)  # (B, S, 2)
        return Batch(encoder_inputs(text, self.special_tokens), labels, rows)


@dataclass
class ClassificationRows(TextRows):
    """Read a text; say its class."""

    classes: np.ndarray  # (N,)

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        return Batch(
            encoder_inputs(self.text.take(rows, seed, epoch), self.special_tokens), torch.from_numpy(self.classes[rows]), rows
        )


@dataclass
class PairClassificationRows:
    """Read two texts; say their class. Each may take half of the room."""

    first: TokenStore
    second: TokenStore
    classes: np.ndarray  # (N,)
    special_tokens: SpecialTokens

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def around(self) -> int:
        return self.special_tokens.num_added_to_pair

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [self.first.lengths(seed, epoch) + self.second.lengths(seed, epoch) + self.around]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        both = encoder_pair_inputs(self.first.take(rows, seed, epoch), self.second.take(rows, seed, epoch), self.special_tokens)
        return Batch(both, torch.from_numpy(self.classes[rows]), rows)

    def deterministic(self) -> "PairClassificationRows":
        return replace(self, first=self.first.deterministic(), second=self.second.deterministic())

    def truncate(self, most: int) -> "PairClassificationRows":
        half = (most - self.around) // 2
        return replace(self, first=replace(self.first, max_length=half), second=replace(self.second, max_length=half))


@dataclass
class TaggingRows(TextRows):
    """Read a text; say the tag of every word, at its first sub-word."""

    tags: Ragged
    """One a token, `IGNORE_INDEX` where no word begins."""

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        tags = self.tags.take(rows).truncate(self.text.max_length)
        silent = [[IGNORE_INDEX] * len(mark) for mark in (self.special_tokens.prefix, self.special_tokens.suffix)]
        labels = torch.from_numpy(tags.padded(pad=IGNORE_INDEX, before=silent[0], after=silent[1]))
        return Batch(encoder_inputs(self.text.take(rows, seed, epoch), self.special_tokens), labels, rows)


@dataclass
class StreamRows:
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
            {"target": torch.from_numpy(np.where(inside, tokens[:, :-1], PAD))},
            torch.from_numpy(np.where(asked, tokens[:, 1:], IGNORE_INDEX)),
            rows,
        )

    def deterministic(self) -> "StreamRows":
        return self

    def truncate(self, most: int) -> "StreamRows":
        return self


def encoder_inputs(text: Ragged, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS) -> dict[str, torch.Tensor]:
    """Texts as an encoder reads them: their ids with the marks around them, and how many they are."""
    return {
        "source": torch.from_numpy(text.padded(pad=PAD, before=special_tokens.prefix, after=special_tokens.suffix)),
        "lengths": torch.from_numpy(text.lengths + special_tokens.num_added),
    }


def encoder_pair_inputs(
    first: Ragged, second: Ragged, special_tokens: SpecialTokens, *, mark: int | None = None, fill: int = PAD
) -> dict[str, torch.Tensor]:
    """Two texts in one row with the marks before, between and after them, and the segment of every token; `mark` stands in for
    all marks."""
    before, middle, after = (
        [mark] * len(given) if mark is not None else list(given)
        for given in (special_tokens.prefix, special_tokens.separator, special_tokens.suffix)
    )
    sides = first.between(before, middle), second.between([], after)
    both = Ragged.beside(*sides)
    segments = Ragged.beside(
        *(
            Ragged(np.full_like(side.flat, number), side.offsets)
            for number, side in zip((0, special_tokens.second_segment), sides)
        )
    )
    return {
        "source": torch.from_numpy(both.padded(pad=fill)),
        "lengths": torch.from_numpy(both.lengths),
        "segments": torch.from_numpy(segments.padded(pad=0)),
    }


def decoder_inputs(text: Ragged, special_tokens: SpecialTokens) -> torch.Tensor:
    """What a decoder reads: the begin mark, and the text."""
    return torch.from_numpy(text.padded(pad=PAD, before=[special_tokens.bos]))


def decoder_labels(text: Ragged, special_tokens: SpecialTokens) -> torch.Tensor:
    """What it should say: the text, and the end mark."""
    return torch.from_numpy(text.padded(pad=IGNORE_INDEX, after=[special_tokens.eos]))
