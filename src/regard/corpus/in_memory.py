"""Data in memory: rows of lists, dicts, pandas, polars, Arrow and Hugging Face's datasets, and files that hold the same rows."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.corpus.table import Record, cell_text
from regard.errors import UserError
from regard.files import atomic_write

DataSource = str | Path | Iterable[object]
"""A file, several files, the name of a data set on the hub, or rows in memory."""
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+){0,2}")
SPLITS = {"train": ("train",), "valid": ("validation", "valid", "dev", "val"), "test": ("test",)}
"""The splits of a data set, by what they are used for."""
UNLABELLED = -1
"""The label of an example whose label is secret (the test sets of GLUE)."""
WORD_NAMES, TAG_NAMES = ("tokens", "words"), ("ner_tags", "tags", "pos_tags", "labels", "upos")


def as_files(source: object) -> list[Path] | None:
    """Return the files that a source names; None if it is something else."""
    named = [source] if isinstance(source, str | Path) else source
    if not isinstance(named, list | tuple) or not named or not all(isinstance(one, str | Path) for one in named):
        return None
    paths = [Path(one) for one in named]
    try:
        exist = [path.exists() for path in paths]
    except OSError:  # a text, too long for a name
        return None
    return paths if all(exist) or isinstance(source, Path) else None


def load_splits(source: object) -> dict[str, Any]:
    """Return the splits of a data set on the hub, or of a dictionary of data sets, by their use; else the source as `train`."""
    if isinstance(source, str):
        source = _load_from_hub(source)
    if isinstance(source, Mapping) and source and all(hasattr(part, "features") for part in source.values()):
        found = {use: next((source[name] for name in names if name in source), None) for use, names in SPLITS.items()}
        if found["train"] is None:
            raise UserError(
                f"the data set has the splits {', '.join(map(str, source))}, but none for training; give one as train="
            )
        return {use: part for use, part in found.items() if part is not None}
    return {"train": source}


def _load_from_hub(name: str) -> object:
    if not HUB_NAME.fullmatch(name):
        raise UserError(f"train={name[:80]!r} is no file, and no name of a data set on the hub")
    try:
        from datasets import load_dataset
    except ImportError:
        raise UserError(f"no file {name}; data sets of the hub need: pip install 'regard[data]'") from None
    owner, *rest = name.split("/")
    path, config = ("/".join([owner, *rest[:1]]), rest[1] if len(rest) > 1 else None)
    try:
        return load_dataset(path, config)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"no file {name}, and the hub's data set {path} cannot be loaded: {reason}") from None


def iterate_records(source: object, names: Sequence[str]) -> Iterator[Record]:
    """Yield the rows of anything that has some, as dicts of plain values; `names` are the columns of rows without names.
    Rows whose named label is secret (-1) are left out."""
    label_names = _label_names(getattr(source, "features", None))
    for row in _rows(source):
        record = _as_record(row, names)
        if any(record[name] == UNLABELLED for name in label_names):
            continue
        for name, labels in label_names.items():
            record[name] = _named_labels(record[name], labels)
        yield record


def _rows(source: object) -> Iterator[object]:
    """Yield the rows of a table, in whichever library it is."""
    table: Any = source
    if hasattr(table, "collect") and hasattr(table, "lazy"):  # a polars LazyFrame
        table = table.collect()
    if hasattr(table, "iter_rows"):  # polars
        return iter(table.iter_rows(named=True))
    if hasattr(table, "itertuples"):  # pandas
        return (dict(zip(map(str, table.columns), row)) for row in table.itertuples(index=False, name=None))
    if hasattr(table, "to_batches"):  # Arrow
        return (row for batch in table.to_batches() for row in batch.to_pylist())
    if isinstance(table, Mapping):
        columns = {name: list(values) for name, values in table.items()}
        if len({len(values) for values in columns.values()}) > 1:
            sizes = ", ".join(f"{name} {len(values):,}" for name, values in columns.items())
            raise UserError(f"the columns have different lengths: {sizes}")
        return (dict(zip(columns, row)) for row in zip(*columns.values()))
    if isinstance(table, str) or not isinstance(table, Iterable):
        raise UserError(f"train= is a {type(table).__name__}; give files, a list, a DataFrame, or a data set")
    return iter(table)


def _as_record(row: object, names: Sequence[str]) -> Record:
    if isinstance(row, Mapping):
        return {str(name): _plain(value) for name, value in row.items()}
    values = [row] if isinstance(row, str) else list(row) if isinstance(row, Iterable) else [row]
    if len(values) > len(names):
        raise UserError(
            f"a row has {len(values)} values, and the task reads {', '.join(names)}; name the columns: use dictionaries"
        )
    return dict(zip(names, map(_plain, values)))


def _plain(value: Any) -> Any:
    """Return the scalars of numpy and pandas as Python's."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple) or (hasattr(value, "tolist") and bool(getattr(value, "ndim", False))):
        return [_plain(one) for one in (value if isinstance(value, list | tuple) else value.tolist())]
    return value.item() if hasattr(value, "item") and not isinstance(value, str) else value


def _label_names(features: object) -> dict[str, list[str]]:
    """Return the names of the labels of each column of a Hugging Face data set that stores them as numbers."""
    found = {}
    for name, feature in features.items() if isinstance(features, Mapping) else ():
        names = getattr(getattr(feature, "feature", feature), "names", None)
        if isinstance(names, list):
            found[str(name)] = [str(label) for label in names]
    return found


def _named_labels(value: object, names: Sequence[str]) -> object:
    if isinstance(value, list):
        return [_named_labels(one, names) for one in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def write_jsonl(path: Path, records: Iterable[Record]) -> int:
    """Write records as one JSON object per line; return their number."""
    lines = [json.dumps(_storable(record), ensure_ascii=False) for record in records]
    atomic_write(path, "".join(f"{line}\n" for line in lines))
    return len(lines)


def _storable(record: Record) -> Record:
    """Return the fields that a text file can hold: no images, no audio."""
    return {name: value for name, value in record.items() if isinstance(value, dict | list) or cell_text(value) is not None}


def write_conll(path: Path, records: Iterable[Record], words: str | None = None, tags: str | None = None) -> int:
    """Write sentences of words and tags in CoNLL format; return their number."""
    lines: list[str] = []
    number = 0
    for number, record in enumerate(records, start=1):
        word_list, tag_list = (
            record.get(given or next((name for name in known if name in record), known[0]))
            for given, known in ((words, WORD_NAMES), (tags, TAG_NAMES))
        )
        if not isinstance(word_list, list) or not isinstance(tag_list, list) or len(word_list) != len(tag_list):
            raise UserError(
                f"row {number} needs a list of words ({words or WORD_NAMES[0]}) and as many tags ({tags or TAG_NAMES[1]})"
            )
        lines += [f"{''.join(str(word).split())}\t{tag}" for word, tag in zip(word_list, tag_list)]
        lines.append("")
    atomic_write(path, "".join(f"{line}\n" for line in lines))
    return number
