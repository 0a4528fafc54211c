"""The token store: texts as ids on disk, memory-mapped, built once and cached by the hash of their content."""

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from regard import rng
from regard.batches.ragged import Ragged
from regard.files import cached_folder
from regard.tokens.segmentation import BpeSegmenter, make_splitter, split_words
from regard.tokens.tokenizer import Tokenizer

LAYOUT = 2
TEXTS_PER_CALL = 20_000


@dataclass
class TokenStore:
    """The ids of every text on one side of the examples and, for BPE-dropout, the segmentations to choose from."""

    ids: Ragged
    words: Ragged | None = None
    """Texts as word numbers."""
    variant_offsets: np.ndarray | None = None
    """(words + 1,) the variants of word w are variant_offsets[w] … variant_offsets[w + 1]."""
    variants: Ragged | None = None
    max_length: int = 2**31
    """Texts are truncated to so many ids; BPE-dropout can make a text longer than it is without."""

    def lengths(self, seed: int, epoch: int) -> np.ndarray:
        """Return the length of every text, as this epoch segments it."""
        if self.words is None or self.variants is None:
            return self.ids.lengths.clip(max=self.max_length)
        chosen = self._choose_variants(np.arange(len(self.words.flat)), seed, epoch)
        sums = np.concatenate([[0], np.cumsum(self.variants.lengths[chosen])])
        lengths: np.ndarray = np.diff(sums[self.words.offsets])
        return lengths.clip(max=self.max_length)

    def take(self, rows: np.ndarray, seed: int, epoch: int) -> Ragged:
        """Return the ids of some texts, as this epoch segments them."""
        if self.words is None or self.variants is None:
            return self.ids.take(rows).truncate(self.max_length)
        positions = self.words.positions(rows)
        variants = Ragged(self._choose_variants(positions.flat, seed, epoch), positions.offsets)
        return variants.lookup(self.variants).truncate(self.max_length)

    def split(self, max_length: int) -> "TokenStore":
        """Return the same texts, long ones split into several."""
        assert self.words is None, "with BPE-dropout every epoch would split elsewhere"
        return TokenStore(self.ids.split(max_length))

    def deterministic(self) -> "TokenStore":
        """Return the same texts without BPE-dropout."""
        return TokenStore(self.ids, max_length=self.max_length)

    def _choose_variants(self, positions: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """Return the variant of the words at some positions of `words.flat`."""
        assert self.words is not None and self.variant_offsets is not None
        word = self.words.flat[positions]
        first, number = self.variant_offsets[word], self.variant_offsets[word + 1] - self.variant_offsets[word]
        chosen: np.ndarray = first + (rng.hash64(seed, epoch, positions) % number.astype(np.uint64)).astype(np.int64)
        return chosen


def open_token_store(lines: Sequence[str], tokenizer: Tokenizer, *, bpe_dropout: float = 0.0, seed: int = 0) -> TokenStore:
    """Return the ids of these texts, memory-mapped from the cache; build them if they are not there yet."""

    def build(folder: Path) -> dict[str, int]:
        store = build_token_store(lines, tokenizer, bpe_dropout=bpe_dropout, seed=seed)
        _save(store, folder)
        return {"layout": LAYOUT, "rows": len(store.ids)}

    return _load(cached_folder(_digest(lines, tokenizer, bpe_dropout, seed), build))


def _digest(lines: Sequence[str], tokenizer: Tokenizer, bpe_dropout: float, seed: int) -> str:
    digest = hashlib.sha256(f"{LAYOUT} {bpe_dropout} {seed if bpe_dropout else 0}\n".encode())
    digest.update(tokenizer.to_json().encode() + b"\0")
    for start in range(0, len(lines), TEXTS_PER_CALL):
        digest.update("\n".join([*lines[start : start + TEXTS_PER_CALL], ""]).encode())
    return digest.hexdigest()[:32]


def build_token_store(lines: Sequence[str], tokenizer: Tokenizer, *, bpe_dropout: float = 0.0, seed: int = 0) -> TokenStore:
    """Tokenize texts in memory; each distinct chunk of text is tokenized once."""
    chunks, numbers = _split_into_chunks(lines, tokenizer)
    store = TokenStore(numbers.lookup(_encode_chunks(chunks, tokenizer)))
    return _with_bpe_dropout(store, chunks, numbers, tokenizer, bpe_dropout, seed) if bpe_dropout else store


def _split_into_chunks(lines: Sequence[str], tokenizer: Tokenizer) -> tuple[list[str], Ragged]:
    """Return the distinct chunks of all texts, and the texts as chunk numbers."""
    number: dict[str, int] = defaultdict(count().__next__)
    split, flat, ends = make_splitter(tokenizer), array("i"), [0]
    for line in lines:
        flat.extend(map(number.__getitem__, split(line)))
        ends.append(len(flat))
    return list(number), Ragged(np.frombuffer(flat, np.int32), np.array(ends))


def _encode_chunks(chunks: Sequence[str], tokenizer: Tokenizer) -> Ragged:
    rows: list[list[int]] = []
    for start in range(0, len(chunks), TEXTS_PER_CALL):
        rows += tokenizer.encode(chunks[start : start + TEXTS_PER_CALL])
    return Ragged.from_rows(rows)


def _with_bpe_dropout(
    store: TokenStore, chunks: Sequence[str], numbers: Ragged, tokenizer: Tokenizer, dropout: float, seed: int
) -> TokenStore:
    """Add the variants of every word that BPE-dropout chooses from (Provilkov et al. 2020)."""
    segmenter, number = BpeSegmenter.from_tokenizer(tokenizer), defaultdict[str, int](count().__next__)
    chunk_words = Ragged.from_rows([[number[word] for word in words] for words in split_words(tokenizer, chunks)])
    words = numbers.lookup(chunk_words)
    counts = np.bincount(words.flat, minlength=len(number)).tolist()
    variants = [segmenter.variants(word, count, seed, dropout) for word, count in zip(number, counts)]
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in variants])]).astype(np.int64)
    return TokenStore(store.ids, words, offsets, Ragged.from_rows([row for rows in variants for row in rows]))


def _save(store: TokenStore, folder: Path) -> None:
    for name, ragged in (("ids", store.ids), ("words", store.words), ("variants", store.variants)):
        if ragged is not None:
            np.save(folder / f"{name}.npy", ragged.flat)
            np.save(folder / f"{name}.offsets.npy", ragged.offsets)
    if store.variant_offsets is not None:
        np.save(folder / "choices.npy", store.variant_offsets)


def _load(folder: Path) -> TokenStore:
    def array(name: str) -> np.ndarray | None:
        path = folder / f"{name}.npy"
        return np.load(path, mmap_mode="r") if path.exists() else None

    def ragged(name: str) -> Ragged | None:
        flat, offsets = array(name), array(f"{name}.offsets")
        return None if flat is None or offsets is None else Ragged(flat, offsets)

    ids = ragged("ids")
    assert ids is not None
    return TokenStore(ids, ragged("words"), array("choices"), ragged("variants"))
