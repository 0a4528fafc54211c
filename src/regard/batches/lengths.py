"""Examples that are longer than the model allows: refused, dropped, cut or split, as `data.too_long` says, before the first
step."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from regard.batches.rows import Rows, TextRows
from regard.corpus.examples import Examples
from regard.errors import UserError

Kind = TypeVar("Kind", bound=Examples)


def training_rows(examples: Kind, encode: Callable[[Kind], Rows], *, max_length: int, too_long: str) -> tuple[Rows, int]:
    """The training examples that fit, and how many were dropped, cut or split."""
    rows = encode(examples)
    long = overlong(rows, max_length)
    if len(long) and too_long == "error":
        raise too_long_error(examples, rows, int(long[0]), max_length)
    if too_long == "split" and isinstance(rows, TextRows):
        return rows.split(max_length), len(long)
    if len(long) and too_long == "drop":
        if len(long) == len(rows):
            raise UserError(f"{examples.name}: every example is longer than model.max_length = {max_length} tokens; raise it")
        kept = np.setdiff1d(np.arange(len(examples)), long)
        rows = encode(examples.select(kept.tolist()))
    return rows.truncate(max_length), len(long)


def evaluation_rows(examples: Kind, encode: Callable[[Kind], Rows], *, max_length: int, too_long: str) -> Rows:
    """Examples to be scored: none may be dropped, so what is too long is refused, cut or split."""
    rows = encode(examples)
    if too_long == "split" and isinstance(rows, TextRows):
        return rows.split(max_length)
    long = overlong(rows, max_length)
    if len(long) and too_long == "error":
        raise too_long_error(examples, rows, int(long[0]), max_length)
    return rows.truncate(max_length)


def overlong(rows: Rows, max_length: int) -> np.ndarray:
    return np.flatnonzero(longest_side(rows) > max_length)


def longest_side(rows: Rows) -> np.ndarray:
    """Positions of the longest side of each row, the end mark included."""
    return np.max(rows.deterministic().lengths(0, 0), axis=0)


def too_long_error(examples: Examples, rows: Rows, index: int, max_length: int) -> UserError:
    length = longest_side(rows)[index]
    return UserError(
        f"{examples.where(index)} is {length} tokens long, more than model.max_length = {max_length}; "
        "raise it, or set data.too_long = 'drop' or 'truncate'"
    )
