"""Rows of a .tsv or .jsonl file, plain, .gz or .xz: the cells of chosen columns."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.corpus.lines import iterate_lines, printable
from regard.errors import UserError

Row = tuple[int, list[str]]
"""The line, counted from 1, and the chosen cells."""


def file_kind(path: Path) -> str:
    """Return the suffix of a file, below .gz or .xz."""
    return Path(path.stem).suffix if path.suffix in (".gz", ".xz") else path.suffix


def table_rows(path: Path, columns: Sequence[int | str], setting: str, *, lists: Sequence[int | str] = ()) -> Iterator[Row]:
    """Yield the chosen cells of each row: of a .jsonl by field name, of anything else as a .tsv by column number or the names in
    its first line. Fields among `lists` may be lists of texts, each of which is then a cell."""
    if file_kind(path) == ".jsonl":
        return jsonl_rows(path, columns, setting, lists)
    return tsv_rows(path, columns, setting)


def tsv_rows(path: Path, columns: Sequence[int | str], setting: str) -> Iterator[Row]:
    rows = ((number, line) for number, line in enumerate(iterate_lines(path), start=1) if line.strip())
    chosen = [column for column in columns if isinstance(column, int)]
    if len(chosen) < len(columns):
        header = next(rows, (1, ""))[1].split("\t")
        chosen = [_column_index(column, header, path, setting) for column in columns]
    for number, line in rows:
        cells = line.split("\t")
        if len(cells) <= max(chosen):
            raise UserError(f"{path}:{number} has {len(cells)} columns; {setting} = {list(columns)} needs {max(chosen) + 1}")
        yield number, [cells[column] for column in chosen]


def _column_index(column: int | str, header: list[str], path: Path, setting: str) -> int:
    if isinstance(column, int):
        return column
    if column not in header:
        raise UserError(f"{path}:1 names no column {column!r} ({setting}); it has {printable(', '.join(header))}")
    return header.index(column)


def jsonl_rows(path: Path, names: Sequence[int | str], setting: str, lists: Sequence[int | str] = ()) -> Iterator[Row]:
    for number, line in enumerate(iterate_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number} is not JSON: {error}") from None
        cells: list[str] = []
        for name in names:
            found = row.get(name) if isinstance(row, dict) else None
            for value in found if isinstance(found, list) and name in lists else [found]:
                if not isinstance(value, str | int) or isinstance(value, bool):
                    raise UserError(f"{path}:{number} lacks a text field {name!r}; name yours in {setting}")
                cells.append(require_unicode(str(value), f"{path}:{number}", name))
        yield number, cells


def is_natural_number(cell: str) -> bool:
    """Return whether a cell is a whole number of at most 18 digits."""
    return cell.isascii() and cell.isdecimal() and len(cell) < 19


def require_unicode(text: str, place: str, name: int | str) -> str:
    """Return the text; refuse lone surrogates, which JSON can hold and UTF-8 cannot."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise UserError(f"{place} has a lone surrogate (half a character) in {name!r}; write the file again as UTF-8")
    return text
