"""Rows of tables: .tsv, .csv and .jsonl, each plain, .gz or .xz, and .parquet, .arrow and .feather (with pyarrow)."""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from regard.corpus.lines import MAX_LINE_BYTES, iterate_lines, missing_file, printable
from regard.errors import UserError

Row = tuple[int, list[str]]
"""The line or row, counted from 1, and the chosen cells."""
Record = dict[str, Any]
"""A row whose cells have names."""
ARROW_KINDS = (".parquet", ".arrow", ".feather")
RECORD_KINDS = (".jsonl", *ARROW_KINDS)
"""Tables whose columns always have names."""
TABLE_KINDS = (".tsv", ".csv", *RECORD_KINDS)
DELIMITERS = ",;\t"
ROWS_AT_ONCE = 1024


def file_kind(path: Path) -> str:
    """Return the suffix of a file, below .gz or .xz."""
    return Path(path.stem).suffix if path.suffix in (".gz", ".xz") else path.suffix


def table_rows(path: Path, columns: Sequence[int | str], setting: str, *, lists: Sequence[int | str] = ()) -> Iterator[Row]:
    """Yield the chosen cells of each row: of a .tsv or .csv by column number or the names in its first line, of other tables by
    name. A name such as "translation.en" also finds a field inside a field. Fields among `lists` may be lists of texts, each of
    which is then a cell."""
    if file_kind(path) in RECORD_KINDS:
        for number, record in records(path):
            yield number, _record_cells(record, columns, lists, f"{path}:{number}", setting)
    else:
        yield from _delimited_rows(path, columns, setting)


def _delimited_rows(path: Path, columns: Sequence[int | str], setting: str) -> Iterator[Row]:
    rows = delimited_cells(path)
    chosen = [column for column in columns if isinstance(column, int)]
    if len(chosen) < len(columns):
        header = next(rows, (1, [""]))[1]
        chosen = [_column_index(column, header, path, setting) for column in columns]
    for number, cells in rows:
        if len(cells) <= max(chosen):
            raise UserError(f"{path}:{number} has {len(cells)} columns; {setting} = {list(columns)} needs {max(chosen) + 1}")
        yield number, [cells[column] for column in chosen]


def delimited_cells(path: Path) -> Iterator[Row]:
    """Yield all cells of each line of a .csv, or of anything else as a .tsv; empty lines are skipped."""
    if file_kind(path) == ".csv":
        yield from _csv_cells(path)
        return
    for number, line in enumerate(iterate_lines(path), start=1):
        if line.strip():
            yield number, line.split("\t")


def _csv_cells(path: Path) -> Iterator[Row]:
    """Yield the cells of a .csv (RFC 4180): a quoted cell may hold delimiters and line breaks."""
    lines = (f"{line}\n" for line in iterate_lines(path))
    first = next(lines, "")
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(chain([first], lines), delimiter=max(DELIMITERS, key=first.count), strict=True)
    start = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{start} is not CSV: {error}; check its quotation marks") from None


def _column_index(column: int | str, header: list[str], path: Path, setting: str) -> int:
    if isinstance(column, int):
        return column
    if column not in header:
        raise UserError(f"{path}:1 names no column {column!r} ({setting}); it has {printable(', '.join(header))}")
    return header.index(column)


def records(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a table whose columns have names, each with its line or number from 1."""
    return _arrow_records(path) if file_kind(path) in ARROW_KINDS else _jsonl_records(path)


def _jsonl_records(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(iterate_lines(path), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number} is not JSON: {error}") from None


def _arrow_records(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield the rows of a Parquet, Arrow or Feather file, a batch in memory at a time."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{path}: reading {path.suffix} needs pyarrow; install it with: pip install 'regard[data]'") from None
    try:
        if path.suffix == ".parquet":
            with pyarrow.parquet.ParquetFile(path) as file:
                batches = file.iter_batches(batch_size=ROWS_AT_ONCE)
                yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
        else:
            with pa.memory_map(str(path)) as file:
                yield from enumerate((row for batch in _ipc_batches(pa, file) for row in batch.to_pylist()), start=1)
    except FileNotFoundError:
        raise missing_file(path) from None
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not a whole {path.suffix} file ({reason}); write or fetch it again") from None


def _ipc_batches(pa: Any, file: Any) -> Iterator[Any]:
    """Yield the record batches of an Arrow file, or of the stream format, in which Hugging Face's datasets are stored."""
    try:
        reader = pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        yield from pa.ipc.open_stream(file)
        return
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


def _record_cells(record: object, names: Sequence[int | str], lists: Sequence[int | str], place: str, setting: str) -> list[str]:
    cells: list[str] = []
    for name in names:
        found = field_value(record, name)
        for value in found if isinstance(found, list) and name in lists else [found]:
            if (text := cell_text(value)) is None:
                raise UserError(f"{place} lacks a text field {name!r}; name yours in {setting}")
            cells.append(require_unicode(text, place, name))
    return cells


def field_value(record: object, name: int | str) -> object:
    """Return a field of a record by name, or a field inside a field: "translation.en"; None without it."""
    if not isinstance(record, dict):
        return None
    if name in record or not isinstance(name, str):
        return record.get(name)
    outer, dot, inner = name.partition(".")
    return field_value(record.get(outer), inner) if dot else None


def cell_text(value: object) -> str | None:
    """Return a value as the text of a cell: strings, finite numbers and booleans have one."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, str | int | float) else None


def is_natural_number(cell: str) -> bool:
    """Return whether a cell is a whole number of at most 18 digits."""
    return cell.isascii() and cell.isdecimal() and len(cell) < 19


def require_unicode(text: str, place: str, name: int | str) -> str:
    """Return the text; refuse lone surrogates, which JSON can hold and UTF-8 cannot."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise UserError(f"{place} has a lone surrogate (half a character) in {name!r}; write the file again as UTF-8")
    return text
