"""Rows: tokenized examples, one class for each task. A class knows the lengths of its rows and builds batches of them.

Also the limit on lengths: `training_rows` and `evaluation_rows` refuse, drop, truncate or split examples that are longer than
`model.max_length`, as `data.too_long` says.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import Any, Self, TypeVar

import numpy as np
import torch

from regard.batches.batch import IGNORE_INDEX, Batch
from regard.batches.ragged import Ragged
from regard.batches.token_store import TokenStore
from regard.corpus.examples import Examples
from regard.errors import UserError
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, PAD, SpecialTokens

ExamplesType = TypeVar("ExamplesType", bound=Examples)
Owner = TypeVar("Owner")
Result = TypeVar("Result")
CACHED_EPOCHS = 3


@dataclass
class Rows:
    """What `Batches` needs. Every random choice is a pure function of (seed, epoch, row)."""

    def __len__(self) -> int:
        raise NotImplementedError

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        """Return the length of each row on each of its sides (source and target), special tokens included."""
        raise NotImplementedError

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        raise NotImplementedError

    def deterministic(self) -> Self:
        """Return the same examples without BPE-dropout (of the fields that are token stores or other rows) and augmentation."""
        values: dict[str, Any] = {part.name: getattr(self, part.name) for part in fields(self)}
        plain = {name: value.deterministic() for name, value in values.items() if isinstance(value, TokenStore | Rows)}
        return replace(self, **plain, **({"augment": None} if "augment" in values else {}))

    def truncate(self, max_length: int) -> Self:
        """Return the same examples, truncated to so many positions; rows of a fixed length stay as they are."""
        return self


def cache_per_epoch(method: Callable[[Owner, int, int], Result]) -> Callable[[Owner, int, int], Result]:
    """Decorate a method of (seed, epoch) to remember the results of the last epochs: the next is planned while batches of this
    one and of the one before are built. Threads may compute a result at once: it is the same."""
    key = f"last {method.__name__}"

    @wraps(method)
    def cached(self: Owner, seed: int, epoch: int) -> Result:
        results: dict[tuple[int, int], Result] = self.__dict__.get(key, {})
        if (seed, epoch) not in results:
            results = {**dict(list(results.items())[1 - CACHED_EPOCHS :]), (seed, epoch): method(self, seed, epoch)}
            self.__dict__[key] = results
        return results[seed, epoch]

    return cached


@dataclass
class TranslationRows(Rows):
    """Sentence pairs: an encoder reads the source, a decoder predicts the next target token."""

    source: TokenStore
    target: TokenStore
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS

    def __len__(self) -> int:
        return len(self.source.ids)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [
            self.source.lengths(seed, epoch) + self.special_tokens.num_added,
            self.target.lengths(seed, epoch) + len(self.special_tokens.output_start),
        ]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        source, target = self.source.take(rows, seed, epoch), self.target.take(rows, seed, epoch)
        inputs = {**encoder_inputs(source, self.special_tokens), "target": decoder_inputs(target, self.special_tokens)}
        return Batch(inputs, decoder_labels(target, self.special_tokens), rows)

    def truncate(self, max_length: int) -> "TranslationRows":
        source = replace(self.source, max_length=max_length - self.special_tokens.num_added)
        target = replace(self.target, max_length=max_length - len(self.special_tokens.output_start))
        return replace(self, source=source, target=target)


@dataclass
class TextRows(Rows):
    """Rows of one text between special tokens."""

    text: TokenStore
    special_tokens: SpecialTokens = field(default=DEFAULT_SPECIAL_TOKENS, kw_only=True)

    def __len__(self) -> int:
        return len(self.text.ids)

    @property
    def num_added(self) -> int:
        """The number of special tokens added to a row."""
        return self.special_tokens.num_added

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [self.text.lengths(seed, epoch) + self.num_added]

    def truncate(self, max_length: int) -> Self:
        return replace(self, text=replace(self.text, max_length=max_length - self.num_added))

    def split(self, max_length: int) -> Rows:
        """Return the same texts, long ones split into several of at most so many positions."""
        return replace(self, text=self.text.split(max_length - self.num_added))


@dataclass
class BidirectionalRows(TextRows):
    """At every token, predict the next one from what is before and the previous one from what is after (ELMo)."""

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        text, special_tokens = self.text.take(rows, seed, epoch), self.special_tokens
        ids = torch.from_numpy(
            text.to_padded(pad=IGNORE_INDEX, prefix=special_tokens.prefix, suffix=special_tokens.suffix)
        )  # (B, S)
        ignored = ids.new_full((len(ids), 1), IGNORE_INDEX)
        following, previous = torch.cat([ids[:, 1:], ignored], dim=1), torch.cat([ignored, ids[:, :-1]], dim=1)
        labels = torch.stack([following, torch.where(ids == IGNORE_INDEX, IGNORE_INDEX, previous)], dim=-1)  # (B, S, 2)
        return Batch(encoder_inputs(text, special_tokens), labels, rows)


@dataclass
class ClassificationRows(TextRows):
    """Texts and their classes."""

    classes: np.ndarray  # (N,)

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        inputs = encoder_inputs(self.text.take(rows, seed, epoch), self.special_tokens)
        return Batch(inputs, torch.from_numpy(self.classes[rows]), rows)


@dataclass
class PairClassificationRows(Rows):
    """Pairs of texts and their classes. Each text may take half of the positions."""

    first: TokenStore
    second: TokenStore
    classes: np.ndarray  # (N,)
    special_tokens: SpecialTokens

    def __len__(self) -> int:
        return len(self.classes)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        texts = self.first.lengths(seed, epoch) + self.second.lengths(seed, epoch)
        return [texts + self.special_tokens.num_added_to_pair]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        first, second = self.first.take(rows, seed, epoch), self.second.take(rows, seed, epoch)
        inputs = encoder_pair_inputs(first, second, self.special_tokens)
        return Batch(inputs, torch.from_numpy(self.classes[rows]), rows)

    def truncate(self, max_length: int) -> "PairClassificationRows":
        half = (max_length - self.special_tokens.num_added_to_pair) // 2
        return replace(self, first=replace(self.first, max_length=half), second=replace(self.second, max_length=half))


@dataclass
class TaggingRows(TextRows):
    """Texts and the tag of every word, at its first sub-word."""

    tags: Ragged
    """One entry per token, `IGNORE_INDEX` where no word begins."""

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        tags = self.tags.take(rows).truncate(self.text.max_length)
        prefix, suffix = ([IGNORE_INDEX] * len(ids) for ids in (self.special_tokens.prefix, self.special_tokens.suffix))
        labels = torch.from_numpy(tags.to_padded(pad=IGNORE_INDEX, prefix=prefix, suffix=suffix))
        return Batch(encoder_inputs(self.text.take(rows, seed, epoch), self.special_tokens), labels, rows)


def encoder_inputs(text: Ragged, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS) -> dict[str, torch.Tensor]:
    """Return an encoder's inputs: the ids between special tokens, padded, and the lengths."""
    return {
        "source": torch.from_numpy(text.to_padded(pad=PAD, prefix=special_tokens.prefix, suffix=special_tokens.suffix)),
        "lengths": torch.from_numpy(text.lengths + special_tokens.num_added),
    }


def encoder_pair_inputs(
    first: Ragged, second: Ragged, special_tokens: SpecialTokens, *, special_id: int | None = None, pad: int = PAD
) -> dict[str, torch.Tensor]:
    """Return an encoder's inputs of two texts in one row, with special tokens before, between and after them, and the segment
    ids.

    `special_id` replaces the id of every special token.
    """
    prefix, separator, second_prefix, suffix = (
        list(ids) if special_id is None else [special_id] * len(ids)
        for ids in (special_tokens.prefix, special_tokens.separator, special_tokens.second_prefix, special_tokens.suffix)
    )
    sides = first.surround(prefix, separator), second.surround(second_prefix, suffix)
    both = Ragged.concat_rows(*sides)
    segments = Ragged.concat_rows(
        *(
            Ragged(np.full_like(side.flat, number), side.offsets)
            for number, side in zip((0, special_tokens.second_segment), sides)
        )
    )
    return {
        "source": torch.from_numpy(both.to_padded(pad=pad)),
        "lengths": torch.from_numpy(both.lengths),
        "segments": torch.from_numpy(segments.to_padded(pad=0)),
    }


def decoder_inputs(text: Ragged, special_tokens: SpecialTokens) -> torch.Tensor:
    """Return a decoder's inputs under teacher forcing: BOS, the tokens that every output begins with, and the text."""
    return torch.from_numpy(text.to_padded(pad=PAD, prefix=list(special_tokens.output_start)))


def decoder_labels(text: Ragged, special_tokens: SpecialTokens) -> torch.Tensor:
    """Return a decoder's labels: the tokens that every output begins with, the text, and EOS."""
    prefix = list(special_tokens.output_prefix)
    return torch.from_numpy(text.to_padded(pad=IGNORE_INDEX, prefix=prefix, suffix=[special_tokens.eos]))


def training_rows(
    examples: ExamplesType, encode: Callable[[ExamplesType], Rows], *, max_length: int, too_long: str
) -> tuple[Rows, int]:
    """Return the training examples that fit, and how many were dropped, truncated or split."""
    rows = encode(examples)
    lengths = np.max(rows.deterministic().lengths(0, 0), axis=0)  # of the longest side, EOS included
    overlong = np.flatnonzero(lengths > max_length)
    if len(overlong) and too_long == "error":
        raise UserError(
            f"{examples.where(int(overlong[0]))} is {lengths[overlong[0]]} tokens long, more than model.max_length = "
            f"{max_length}; raise it, or set data.too_long = 'drop' or 'truncate'"
        )
    if too_long == "split" and isinstance(rows, TextRows):
        return rows.split(max_length), len(overlong)
    if len(overlong) and too_long == "drop":
        if len(overlong) == len(rows):
            raise UserError(f"{examples.name}: every example is longer than model.max_length = {max_length} tokens; raise it")
        kept = np.setdiff1d(np.arange(len(examples)), overlong)
        rows = encode(examples.select(kept.tolist()))
    return rows.truncate(max_length), len(overlong)


def evaluation_rows(examples: ExamplesType, encode: Callable[[ExamplesType], Rows], *, max_length: int, too_long: str) -> Rows:
    """Return the examples to score: none may be dropped, so that long ones are refused, truncated or split."""
    return training_rows(examples, encode, max_length=max_length, too_long="truncate" if too_long == "drop" else too_long)[0]
