"""Hold out validation and test examples of the training data: single texts, whole documents, or the end of a running text."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from regard.corpus.examples import Examples, TextLines
from regard.errors import UserError

ExamplesT = TypeVar("ExamplesT", bound=Examples)
MIN_BLOCK = 8
"""Lines that are held out together where a document is too long to be held out as a whole."""


def hold_out(examples: ExamplesT, number: int, number_test: int | None = None) -> tuple[ExamplesT, ExamplesT, ExamplesT]:
    """Split examples into training, validation and test sets without a shared text or image: the smallest hashes are held out.

    The test set is as large as the validation set by default, and so in the other functions here."""
    keys = examples.keys()
    hashes = {key: hashlib.sha256(key.encode()).digest() for key in keys}
    number_test = number if number_test is None else number_test
    _require_enough(examples, len(hashes), "distinct examples", number, number_test)
    ranked = sorted(hashes, key=lambda key: hashes[key])
    aside = dict.fromkeys(ranked[:number], "valid") | dict.fromkeys(ranked[number : number + number_test], "test")
    return _split(examples, (aside.get(key, "train") for key in keys))


def hold_out_documents(lines: TextLines, number: int, number_test: int | None = None) -> tuple[TextLines, TextLines, TextLines]:
    """Hold out whole documents with at least this many lines, so that the held-out lines still follow one another; blocks of
    lines where whole documents would be more than half of the data."""
    sizes = {"valid": number, "test": number if number_test is None else number_test}
    _require_enough(lines, len(lines), "lines", *sizes.values())
    documents: dict[int, list[int]] = {}
    for index, document in enumerate(lines.documents()):
        documents.setdefault(document, []).append(index)
    block = max(MIN_BLOCK, number // MIN_BLOCK)
    blocks = [rows[start : start + block] for rows in documents.values() for start in range(0, len(rows), block)]
    for units in (list(documents.values()), blocks):
        aside = _choose_units(lines, units, sizes)
        if 2 * len(aside) <= len(lines):
            break
    return _split(lines, (aside.get(index, "train") for index in range(len(lines))))


def _choose_units(lines: TextLines, units: Sequence[Sequence[int]], sizes: Mapping[str, int]) -> dict[int, str]:
    """Return the set of each held-out line: whole units of the smallest hashes, at least as many lines as `sizes` says."""
    by_hash: dict[bytes, list[int]] = {}  # units of equal text stay together
    for unit in units:
        text = "\n".join(lines.text[index] for index in unit)
        by_hash.setdefault(hashlib.sha256(text.encode()).digest(), []).extend(unit)
    aside: dict[int, str] = {}
    ranked = iter(sorted(by_hash))
    for name, number in sizes.items():
        taken = 0
        while taken < number and (unit_hash := next(ranked, None)) is not None:
            aside |= dict.fromkeys(by_hash[unit_hash], name)
            taken += len(by_hash[unit_hash])
    return aside


def hold_out_end(lines: TextLines, number: int, number_test: int | None = None) -> tuple[TextLines, TextLines, TextLines]:
    """Hold out the last lines of a running text: the validation set, and after it the test set."""
    number_test = number if number_test is None else number_test
    _require_enough(lines, len(lines), "lines", number, number_test)
    first = len(lines) - number - number_test
    return _split(lines, ("train" if i < first else "valid" if i < first + number else "test" for i in range(len(lines))))


def _require_enough(examples: Examples, found: int, what: str, number: int, number_test: int) -> None:
    if found >= 2 * (number + number_test):
        return
    cure = f"set at most {found // 4}" if found >= 4 else "give more data, or data.valid"
    held = "twice as many" if number == number_test else f"{number + number_test} with data.held_out_test = {number_test}"
    raise UserError(
        f"{examples.name} has {found:,} {what}; data.held_out = {number} holds out {held}, which may be at most half: {cure}"
    )


def _split(examples: ExamplesT, names: Iterable[str]) -> tuple[ExamplesT, ExamplesT, ExamplesT]:
    indices: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    for index, name in enumerate(names):
        indices[name].append(index)
    return examples.select(indices["train"]), examples.select(indices["valid"]), examples.select(indices["test"])
