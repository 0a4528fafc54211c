"""Sentences that are longer than the model allows: refused, dropped or cut, as `data.too_long` says, before the first step."""

import numpy as np

from regard.batches.store import Store, encode, open_store
from regard.corpus.pairs import Pairs
from regard.errors import Mistake
from regard.tokens.tokenizer import Tokenizer


def training_store(pairs: Pairs, tokenizers: tuple[Tokenizer, Tokenizer], *, max_length: int, too_long: str, bpe_dropout: float,
                   seed: int) -> tuple[Store, int]:
    """The store of the training pairs that fit, and how many were dropped or cut."""
    store = open_store(pairs, tokenizers, bpe_dropout=bpe_dropout, seed=seed)
    long = overlong(store, max_length)
    if len(long) and too_long == "error":
        raise too_long_mistake(pairs, store, int(long[0]), max_length)
    if len(long) == len(pairs):
        raise Mistake(f"{pairs.name}: every pair is longer than model.max_length = {max_length} tokens; raise it")
    if len(long) and too_long == "drop":
        kept = np.setdiff1d(np.arange(len(pairs)), long)
        store = open_store(pairs.choose(kept.tolist()), tokenizers, bpe_dropout=bpe_dropout, seed=seed)
    return capped(store, max_length), len(long)


def evaluation_store(pairs: Pairs, tokenizers: tuple[Tokenizer, Tokenizer], *, max_length: int, too_long: str) -> Store:
    """The store of pairs to be scored: none may be dropped, so what is too long is refused or cut."""
    store = encode(pairs, tokenizers)
    long = overlong(store, max_length)
    if len(long) and too_long == "error":
        raise too_long_mistake(pairs, store, int(long[0]), max_length)
    return capped(store, max_length)


def overlong(store: Store, max_length: int) -> np.ndarray:
    return np.flatnonzero(longer_side(store) > max_length)


def longer_side(store: Store) -> np.ndarray:
    """Tokens of the longer side of each pair, the end mark included."""
    return np.maximum(store.source.ids.lengths, store.target.ids.lengths) + 1


def capped(store: Store, max_length: int) -> Store:
    store.source.most = store.target.most = max_length - 1
    return store


def too_long_mistake(pairs: Pairs, store: Store, index: int, max_length: int) -> Mistake:
    return Mistake(f"{pairs.where(index)} is {longer_side(store)[index]} tokens long, more than model.max_length = {max_length}; "
                   "raise it, or set data.too_long = 'drop' or 'truncate'")
