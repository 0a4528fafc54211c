"""Which columns of a table hold the text, its label, its translation: by their names, else by what is in them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from regard.corpus.lines import printable
from regard.corpus.table import RECORD_KINDS, cell_text, delimited_cells, file_kind, records
from regard.errors import UserError
from regard.tasks.starters.starter import StarterOptions

# Names that data sets give their columns (GLUE, IMDB, the hub), in lower case, the most telling first.
TEXT_NAMES = (
    "text",
    "sentence",
    "review",
    "content",
    "document",
    "comment_text",
    "comment",
    "tweet",
    "message",
    "body",
    "article",
    "utterance",
    "question",
    "description",
    "review_body",
    "reviewtext",
    "story",
    "abstract",
    "title",
)
PAIR_NAMES = [
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("#1 string", "#2 string"),
    ("question", "sentence"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("sentence_a", "sentence_b"),
]
LABEL_NAMES = (
    "class index",
    *(
        [
            "label",
            "gold_label",
            "labels",
            "quality",
            "is_duplicate",
            "sentiment",
            "class",
            "category",
            "polarity",
            "topic",
            "intent",
            "emotion",
            "stars",
            "rating",
            "toxic",
            "target",
            "score",
            "y",
        ]
    ),
)
NUMBER_NAMES = ("score", "similarity", "similarity_score", "relatedness_score", "rating", "stars", "value", "label", "target")
SOURCE_TARGET_NAMES = [
    ("source", "target"),
    ("src", "tgt"),
    ("src", "trg"),
    ("document", "summary"),
    ("article", "highlights"),
    ("question", "answer"),
    ("input", "output"),
]
LANGUAGE_CODE = re.compile(r"(translation\.)?[a-z]{2,3}([_-][A-Za-z]{2,4})?")
KNOWN_NAMES = {*TEXT_NAMES, *LABEL_NAMES, *NUMBER_NAMES, *(name for pair in PAIR_NAMES + SOURCE_TARGET_NAMES for name in pair)}
MAX_ROWS = 200_000
"""Rows that are looked at."""
MAX_VALUES = 1000
"""Distinct values that are counted."""
MAX_HEADER_WORDS = 4
MAX_LABEL_WORDS = 4
MANY_NUMBERS = 20
"""More different numbers than this are rather numbers than names of labels."""


@dataclass
class Column:
    """What one column of a table holds."""

    name: int | str
    """As a recipe names it: its name, or its number from 0 where the table has no header."""
    number: int
    values: set[str] = field(default_factory=set)
    rows: int = 0
    words: int = 0
    numbers: int = 0
    empty: int = 0

    def add(self, cell: str) -> None:
        self.rows += 1
        self.words += len(cell.split())
        self.empty += not cell.strip()
        self.numbers += is_number(cell)
        if len(self.values) <= MAX_VALUES:
            self.values.add(cell.strip())

    @property
    def mean_words(self) -> float:
        return self.words / max(1, self.rows)

    @property
    def is_numeric(self) -> bool:
        return 0 < self.rows == self.numbers

    @property
    def is_index(self) -> bool:
        """Whether its values are all different whole numbers, as row numbers are."""
        return self.is_numeric and len(self.values) >= min(self.rows, MAX_VALUES) and all(v.isdecimal() for v in self.values)

    def __str__(self) -> str:
        return f"column {self.number}" if isinstance(self.name, int) else f"column {self.number} {printable(self.name)!r}"


@dataclass
class Table:
    """The columns of a table."""

    path: Path
    columns: list[Column]

    def __len__(self) -> int:
        return len(self.columns)

    def named(self, name: str) -> Column | None:
        """Return the column of this name, in upper or lower case."""
        return next((column for column in self.columns if str(column.name).lower() == name), None)

    def first_named(self, names: Sequence[str]) -> Column | None:
        return next((column for name in names if (column := self.named(name)) is not None), None)

    def given(self, name: str, option: str) -> Column:
        """Return the column that a user names, or numbers from 0."""
        exact = [column for column in self.columns if str(column.name) == name]
        found = exact[0] if exact else self.named(name.lower())
        if found is None and name.isdecimal() and int(name) < len(self.columns):
            found = self.columns[int(name)]
        if found is None:
            known = printable(", ".join(str(column.name) for column in self.columns))
            raise UserError(f"{option} {name}: {self.path} has no such column; it has {known}")
        return found

    def longest(self, besides: Sequence[Column | None] = ()) -> Column:
        """Return the column with the longest texts besides some."""
        left = [column for column in self.columns if column not in besides]
        if not left:
            raise UserError(
                f"{self.path} has {len(self.columns)} column(s): a text and its label are two; separate them by a tab"
            )
        return max(left, key=lambda column: column.mean_words)


def read_table(path: Path) -> Table:
    """Look at a table: the names of its columns, if it has any, and what they hold."""
    rows = islice(_cells(path), MAX_ROWS)
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path} is empty")
    names, is_record = first
    columns = [Column(number, number) for number in range(len(names))]
    sample = [cells for cells, _ in rows]
    for cells in sample:
        for column, cell in zip(columns, cells):
            column.add(cell)
    if is_record or _is_header(path, names, columns):
        for column, name in zip(columns, names):
            column.name = name
    else:
        for column, cell in zip(columns, names):
            column.add(cell)
    return Table(path, columns)


def _cells(path: Path) -> Iterator[tuple[list[str], bool]]:
    """Yield the cells of each row, the names first where every table of the kind has some; and whether it has."""
    if file_kind(path) not in RECORD_KINDS:
        yield from ((cells, False) for _, cells in delimited_cells(path))
        return
    names: list[str] = []
    for number, record in records(path):
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number} is not a JSON object")
        flat = _flatten(record)
        if not names:
            names = list(flat)
            yield names, True
        yield [flat.get(name, "") for name in names], True


def _flatten(record: dict[str, object]) -> dict[str, str]:
    """Return the texts of a record by name; those of a field inside a field are named outer.inner."""
    found: dict[str, str] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": text for inner, text in _flatten(value).items()}
        elif (text := cell_text(value)) is not None:
            found[name] = text
    return found


def _is_header(path: Path, cells: Sequence[str], columns: Sequence[Column]) -> bool:
    """Return whether the first line of a .tsv or .csv names the columns: one of the names is usual, or a column of numbers begins
    with a word; in a .csv, also names that never occur below."""
    names = [cell.strip() for cell in cells]
    if len(set(names)) < len(names) or not all(names) or any(len(name.split()) > MAX_HEADER_WORDS for name in names):
        return False
    if any(column.is_numeric and not is_number(name) for name, column in zip(names, columns)):
        return True
    unseen = all(name not in column.values for name, column in zip(names, columns))
    known = any(name.lower() in KNOWN_NAMES for name in names) or all(LANGUAGE_CODE.fullmatch(name) for name in names)
    return unseen and (known or (file_kind(path) == ".csv" and all(name.isidentifier() for name in names)))


def is_number(cell: str) -> bool:
    """Return whether a cell is a finite number."""
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


@dataclass(frozen=True)
class TextColumns:
    """The columns of a text, of a second text and of a label."""

    text: Column
    text_pair: Column | None = None
    label: Column | None = None


def find_text(table: Table, options: StarterOptions) -> Column:
    """Return the column of the text."""
    if options.text is not None:
        return table.given(options.text, "--text")
    return table.first_named(TEXT_NAMES) or table.longest()


def find_labelled(table: Table, options: StarterOptions, *, numbers: bool) -> TextColumns:
    """Return the columns of text, second text and label, or the number in its place."""
    pair = _named_pair(table, PAIR_NAMES) if options.text is None else None
    second = table.given(options.text_pair, "--text-pair") if options.text_pair is not None else None
    label = table.given(options.label, "--label") if options.label is not None else None
    if options.text is not None or pair is None:
        text = table.given(options.text, "--text") if options.text is not None else None
        label = label or _find_label(table, [text, second], numbers)
        text = (
            text or table.first_named([n for n in TEXT_NAMES if n != str(label.name).lower()]) or table.longest([label, second])
        )
        return TextColumns(text, second, label)
    return TextColumns(pair[0], second or pair[1], label or _find_label(table, pair, numbers))


def _find_label(table: Table, texts: Sequence[Column | None], numbers: bool) -> Column:
    """Return the column of the label: by name, else the one with the fewest values; of numbers, the last column of numbers."""
    named = table.first_named(NUMBER_NAMES if numbers else LABEL_NAMES)
    if named is not None and named not in texts:
        return named
    others = [column for column in table.columns if column not in texts and not column.empty]
    if numbers:
        found = [column for column in others if column.is_numeric and not column.is_index]
        if not found:
            raise UserError(f"{table.path} has no column of numbers; name it with --label, or use: regard new classify")
        return found[-1]
    found = [column for column in others if column.mean_words <= MAX_LABEL_WORDS and 2 <= len(column.values) <= MAX_VALUES]
    longest = max(table.columns, key=lambda column: column.mean_words)
    found = [column for column in found if column is not longest or len(found) == 1]
    if not found:
        raise UserError(f"{table.path}: no column looks like a label (few different values); name it with --label")
    return min(found, key=lambda column: len(column.values))


def _named_pair(table: Table, names: Sequence[tuple[str, str]]) -> tuple[Column, Column] | None:
    for one, other in names:
        first, second = table.named(one), table.named(other)
        if first is not None and second is not None:
            return first, second
    return None


def find_pair(table: Table, options: StarterOptions) -> tuple[Column, Column]:
    """Return the columns of source and target."""
    if options.columns is not None:
        names = [name.strip() for name in options.columns.split(",")]
        if len(names) != 2:
            raise UserError(f"--columns {options.columns}: give the source and the target, separated by a comma")
        return table.given(names[0], "--columns"), table.given(names[1], "--columns")
    if (named := _named_pair(table, SOURCE_TARGET_NAMES)) is not None:
        return named
    codes = [column for column in table.columns if LANGUAGE_CODE.fullmatch(str(column.name))]
    texts = codes if len(codes) == 2 else [column for column in table.columns if not column.is_numeric]
    if len(texts) < 2:
        raise UserError(f"{table.path} has {len(texts)} column(s) of text; a source and its target are two")
    if len(texts) > 2:
        longest = sorted(texts, key=lambda column: -column.mean_words)[:2]
        texts = sorted(longest, key=lambda column: column.number)
    return texts[0], texts[1]
