"""The token store: parallel text as ids on disk, memory-mapped, built once and found again by the hash of its content."""

import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard import chance
from regard.batches.ragged import Ragged
from regard.corpus.pairs import Pairs
from regard.tokens.bpe_dropout import Segmenter, split_words
from regard.tokens.tokenizer import Tokenizer

LAYOUT = 1
ENCODE_AT_ONCE = 20_000


@dataclass
class Side:
    """One language of a store: the ids of every sentence, and with BPE-dropout the segmentations to choose from."""

    ids: Ragged
    words: Ragged | None = None
    """Sentences as word numbers."""
    choices: np.ndarray | None = None
    """(words + 1,) the variants of word w are choices[w] … choices[w + 1]."""
    variants: Ragged | None = None
    most: int = 2**31
    """Longer sentences are cut here; dropped merges can make a sentence longer than it is."""

    def lengths(self, seed: int, epoch: int) -> np.ndarray:
        if self.words is None or self.variants is None:
            return np.minimum(self.ids.lengths, self.most)
        chosen = self.choose(np.arange(len(self.words.flat)), seed, epoch)
        sums = np.concatenate([[0], np.cumsum(self.variants.lengths[chosen])])
        return np.minimum(np.diff(sums[self.words.offsets]), self.most)

    def take(self, rows: np.ndarray, seed: int, epoch: int) -> Ragged:
        """The ids of some sentences, as this epoch segments them."""
        if self.words is None or self.variants is None:
            return self.ids.take(rows).truncated(self.most)
        where = self.words.positions(rows)
        pieces = self.variants.take(self.choose(where.flat, seed, epoch))
        return Ragged(pieces.flat, pieces.offsets[where.offsets]).truncated(self.most)

    def plain(self) -> "Side":
        """The same sentences, always segmented alike."""
        return Side(self.ids, most=self.most)

    def choose(self, positions: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        assert self.words is not None and self.choices is not None
        word = self.words.flat[positions]
        first, count = self.choices[word], self.choices[word + 1] - self.choices[word]
        return first + (chance.mix(seed, epoch, positions) % count.astype(np.uint64)).astype(np.int64)


@dataclass
class Store:
    source: Side
    target: Side

    def __len__(self) -> int:
        return len(self.source.ids)

    def sides(self) -> tuple[tuple[str, Side], ...]:
        return ("source", self.source), ("target", self.target)


    def plain(self) -> "Store":
        return Store(self.source.plain(), self.target.plain())


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "regard", "stores")


def open_store(pairs: Pairs, tokenizers: tuple[Tokenizer, Tokenizer], *, bpe_dropout: float = 0.0, seed: int = 0) -> Store:
    """The store of these pairs, built if it is not in the cache yet."""
    folder = cache_folder() / digest(pairs, tokenizers, bpe_dropout, seed)
    if not (folder / "layout.json").exists():
        save(encode(pairs, tokenizers, bpe_dropout=bpe_dropout, seed=seed), folder)
    return load(folder)


def digest(pairs: Pairs, tokenizers: tuple[Tokenizer, Tokenizer], bpe_dropout: float, seed: int) -> str:
    found = hashlib.sha256(f"{LAYOUT} {bpe_dropout} {seed if bpe_dropout else 0}\n".encode())
    for tokenizer in tokenizers:
        found.update(tokenizer.to_json().encode())
    for lines in (pairs.source, pairs.target):
        found.update(b"\0")
        for line in lines:
            found.update(line.encode() + b"\n")
    return found.hexdigest()[:32]


def encode(pairs: Pairs, tokenizers: tuple[Tokenizer, Tokenizer], *, bpe_dropout: float = 0.0, seed: int = 0) -> Store:
    sides = []
    for lines, tokenizer in zip((pairs.source, pairs.target), tokenizers):
        side = Side(encode_lines(lines, tokenizer))
        sides.append(with_dropout(side, lines, tokenizer, bpe_dropout, seed) if bpe_dropout else side)
    return Store(*sides)


def encode_lines(lines: list[str], tokenizer: Tokenizer) -> Ragged:
    rows: list[list[int]] = []
    for start in range(0, len(lines), ENCODE_AT_ONCE):
        rows += tokenizer.encode(lines[start:start + ENCODE_AT_ONCE])
    return Ragged.of(rows)


def with_dropout(side: Side, lines: list[str], tokenizer: Tokenizer, dropout: float, seed: int) -> Side:
    segmenter = Segmenter.of(tokenizer)
    sentences = split_words(tokenizer, lines)
    counts = Counter(word for sentence in sentences for word in sentence)
    number = {word: i for i, word in enumerate(counts)}
    variants = [segmenter.variants(word, count, seed, dropout) for word, count in counts.items()]
    choices = np.concatenate([[0], np.cumsum([len(found) for found in variants])]).astype(np.int64)
    return Side(side.ids, Ragged.of([[number[word] for word in sentence] for sentence in sentences]), choices,
                Ragged.of([row for found in variants for row in found]))


def save(store: Store, folder: Path) -> None:
    """Write aside, then rename: a half-built store is never found."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
    try:
        for name, side in store.sides():
            for part, ragged in (("ids", side.ids), ("words", side.words), ("variants", side.variants)):
                if ragged is not None:
                    np.save(aside / f"{name}.{part}.npy", ragged.flat)
                    np.save(aside / f"{name}.{part}.offsets.npy", ragged.offsets)
            if side.choices is not None:
                np.save(aside / f"{name}.choices.npy", side.choices)
        (aside / "layout.json").write_text(json.dumps({"layout": LAYOUT, "pairs": len(store)}))
        if not folder.exists():
            aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def load(folder: Path) -> Store:
    def array(name: str) -> np.ndarray:
        return np.load(folder / name, mmap_mode="r")

    def ragged(name: str) -> Ragged | None:
        return Ragged(array(f"{name}.npy"), array(f"{name}.offsets.npy")) if (folder / f"{name}.npy").exists() else None

    def side(name: str) -> Side:
        ids = ragged(f"{name}.ids")
        assert ids is not None
        choices = array(f"{name}.choices.npy") if (folder / f"{name}.choices.npy").exists() else None
        return Side(ids, ragged(f"{name}.words"), choices, ragged(f"{name}.variants"))

    return Store(side("source"), side("target"))
