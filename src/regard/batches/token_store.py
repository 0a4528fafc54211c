"""The token store: texts as ids on disk, memory-mapped, built once and found again by the hash of their content."""

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from regard import rng
from regard.batches.cache_folder import cached_folder
from regard.batches.ragged import Ragged
from regard.tokens.segmentation import BpeSegmenter, make_splitter, split_words
from regard.tokens.tokenizer import Tokenizer

LAYOUT = 2
TEXTS_PER_CALL = 20_000


@dataclass
class TokenStore:
    """One side of the examples: the ids of every text, and with BPE-dropout the segmentations to choose from."""

    ids: Ragged
    words: Ragged | None = None
    """Sentences as word numbers."""
    choices: np.ndarray | None = None
    """(words + 1,) the variants of word w are choices[w] … choices[w + 1]."""
    variants: Ragged | None = None
    max_length: int = 2**31
    """Longer sentences are cut here; dropped merges can make a sentence longer than it is."""

    def lengths(self, seed: int, epoch: int) -> np.ndarray:
        if self.words is None or self.variants is None:
            return np.minimum(self.ids.lengths, self.max_length)
        chosen = self.choose(np.arange(len(self.words.flat)), seed, epoch)
        sums = np.concatenate([[0], np.cumsum(self.variants.lengths[chosen])])
        return np.minimum(np.diff(sums[self.words.offsets]), self.max_length)

    def take(self, rows: np.ndarray, seed: int, epoch: int) -> Ragged:
        """The ids of some sentences, as this epoch segments them."""
        if self.words is None or self.variants is None:
            return self.ids.take(rows).truncate(self.max_length)
        where = self.words.positions(rows)
        return Ragged(self.choose(where.flat, seed, epoch), where.offsets).through(self.variants).truncate(self.max_length)

    def split(self, most: int) -> "TokenStore":
        """The long sentences cut into several."""
        assert self.words is None, "where merges are dropped, every epoch would cut elsewhere"
        return TokenStore(self.ids.split(most))

    def deterministic(self) -> "TokenStore":
        """The same sentences, always segmented alike."""
        return TokenStore(self.ids, max_length=self.max_length)

    def choose(self, positions: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        assert self.words is not None and self.choices is not None
        word = self.words.flat[positions]
        first, count = self.choices[word], self.choices[word + 1] - self.choices[word]
        return first + (rng.hash64(seed, epoch, positions) % count.astype(np.uint64)).astype(np.int64)


def open_token_store(lines: Sequence[str], tokenizer: Tokenizer, *, bpe_dropout: float = 0.0, seed: int = 0) -> TokenStore:
    """The ids of these texts, built if they are not in the cache yet."""

    def build(folder: Path) -> dict[str, int]:
        side = build_token_store(lines, tokenizer, bpe_dropout=bpe_dropout, seed=seed)
        save(side, folder)
        return {"layout": LAYOUT, "rows": len(side.ids)}

    return load(cached_folder(digest(lines, tokenizer, bpe_dropout, seed), build))


def digest(lines: Sequence[str], tokenizer: Tokenizer, bpe_dropout: float, seed: int) -> str:
    found = hashlib.sha256(f"{LAYOUT} {bpe_dropout} {seed if bpe_dropout else 0}\n".encode())
    found.update(tokenizer.to_json().encode() + b"\0")
    for start in range(0, len(lines), TEXTS_PER_CALL):
        found.update("\n".join([*lines[start : start + TEXTS_PER_CALL], ""]).encode())
    return found.hexdigest()[:32]


def build_token_store(lines: Sequence[str], tokenizer: Tokenizer, *, bpe_dropout: float = 0.0, seed: int = 0) -> TokenStore:
    parts, numbers = parted(lines, tokenizer)
    side = TokenStore(numbers.through(encode_parts(parts, tokenizer)))
    return with_dropout(side, parts, numbers, tokenizer, bpe_dropout, seed) if bpe_dropout else side


def parted(lines: Sequence[str], tokenizer: Tokenizer) -> tuple[list[str], Ragged]:
    """The parts that texts consist of, each once, and the texts as their numbers."""
    number: dict[str, int] = defaultdict(count().__next__)
    cut, flat, ends = make_splitter(tokenizer), array("i"), [0]
    for line in lines:
        flat.extend(map(number.__getitem__, cut(line)))
        ends.append(len(flat))
    return list(number), Ragged(np.frombuffer(flat, np.int32), np.array(ends))


def encode_parts(parts: Sequence[str], tokenizer: Tokenizer) -> Ragged:
    rows: list[list[int]] = []
    for start in range(0, len(parts), TEXTS_PER_CALL):
        rows += tokenizer.encode(parts[start : start + TEXTS_PER_CALL])
    return Ragged.from_rows(rows)


def with_dropout(
    side: TokenStore, parts: Sequence[str], numbers: Ragged, tokenizer: Tokenizer, dropout: float, seed: int
) -> TokenStore:
    segmenter, number = BpeSegmenter.from_tokenizer(tokenizer), defaultdict[str, int](count().__next__)
    words = numbers.through(Ragged.from_rows([[number[word] for word in words] for words in split_words(tokenizer, parts)]))
    counts = np.bincount(words.flat, minlength=len(number)).tolist()
    variants = [segmenter.variants(word, count, seed, dropout) for word, count in zip(number, counts)]
    choices = np.concatenate([[0], np.cumsum([len(found) for found in variants])]).astype(np.int64)
    return TokenStore(side.ids, words, choices, Ragged.from_rows([row for found in variants for row in found]))


def save(side: TokenStore, folder: Path) -> None:
    for part, ragged in (("ids", side.ids), ("words", side.words), ("variants", side.variants)):
        if ragged is not None:
            np.save(folder / f"{part}.npy", ragged.flat)
            np.save(folder / f"{part}.offsets.npy", ragged.offsets)
    if side.choices is not None:
        np.save(folder / "choices.npy", side.choices)


def load(folder: Path) -> TokenStore:
    def array(name: str) -> np.ndarray | None:
        path = folder / f"{name}.npy"
        return np.load(path, mmap_mode="r") if path.exists() else None

    def ragged(name: str) -> Ragged | None:
        flat, offsets = array(name), array(f"{name}.offsets")
        return None if flat is None or offsets is None else Ragged(flat, offsets)

    ids = ragged("ids")
    assert ids is not None
    return TokenStore(ids, ragged("words"), array("choices"), ragged("variants"))
