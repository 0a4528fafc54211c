"""Parallel text: two aligned files, one .tsv, or one .jsonl."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from regard.corpus.examples import SentencePairs
from regard.corpus.lines import read_lines
from regard.corpus.table import Row, file_kind, jsonl_rows, table_rows, tsv_rows
from regard.errors import UserError


def read_pairs(
    files: Sequence[Path], *, columns: Sequence[int | str] = (0, 1), fields: Sequence[str] = ("source", "target")
) -> SentencePairs:
    """Pairs from two aligned files (source, target) or one .tsv or .jsonl file. Pairs empty on both sides are left out. Of more
    than two columns, the last is the target, and the source is the others with tabs between them."""
    if len(columns) > 2 and len(files) == 1:
        rows = table_rows(files[0], columns, "columns")
    elif len(files) == 2 and len(columns) == 2:
        rows = aligned_rows(*files)
    elif len(files) == 1 and file_kind(files[0]) == ".jsonl":
        rows = jsonl_rows(files[0], fields, "data.fields")
    elif len(files) == 1 and file_kind(files[0]) == ".tsv":
        rows = tsv_rows(files[0], columns, "data.columns")
    else:
        raise UserError(
            f"{', '.join(map(str, files))}: give two aligned files (source, target), or one .tsv or .jsonl (.gz and .xz too)"
        )
    return collect_pairs(rows, files)


def collect_pairs(rows: Iterable[Row], files: Sequence[Path]) -> SentencePairs:
    pairs = SentencePairs([], [], str(files[0]))
    for line, cells in rows:
        *sources, target = (cell.strip() for cell in cells)
        if any((*sources, target)) and not all((*sources, target)):
            side = "source" if target else "target"
            raise UserError(f"{files[0]}:{line} has an empty {side} side; remove the pair, or check that the lines are aligned")
        if target:
            pairs.source.append("\t".join(text.replace("\t", " ") for text in sources) if len(sources) > 1 else sources[0])
            pairs.target.append(target)
            pairs.lines.append(line)
    if not pairs.source:
        raise UserError(f"{files[0]} has no sentence pairs")
    return pairs


def aligned_rows(source: Path, target: Path) -> Iterator[Row]:
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise UserError(
            f"{source} has {len(sources):,} lines but {target} has {len(targets):,}; "
            "line n of one must translate line n of the other"
        )
    return ((number, [s, t]) for number, (s, t) in enumerate(zip(sources, targets), start=1))
