"""Parallel text: two aligned files, one .tsv, or one .jsonl."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regard.corpus.text import iterate_lines, read_lines
from regard.errors import Mistake
from regard.worlds import bilingual


@dataclass
class Pairs:
    """Sentences and their translations, each remembering its line."""

    source: list[str]
    target: list[str]
    name: str = ""
    lines: list[int] = field(default_factory=list)
    """The line each pair came from, counted from 1."""
    gold: list[bilingual.Pair] | None = None
    """What a world knows of its pairs: alignments and antecedents."""

    def __len__(self) -> int:
        return len(self.source)

    def where(self, index: int) -> str:
        return f"{self.name}:{self.lines[index]}" if self.lines else f"{self.name} pair {index + 1}"

    def reversed(self) -> "Pairs":
        """The other direction; what a world knows of its pairs holds for this one only."""
        return Pairs(self.target, self.source, self.name, self.lines)

    def choose(self, indices: Sequence[int]) -> "Pairs":
        def pick(values: list) -> list:
            return [values[i] for i in indices]

        return Pairs(pick(self.source), pick(self.target), self.name, pick(self.lines) if self.lines else [],
                     None if self.gold is None else pick(self.gold))


def read_pairs(files: Sequence[Path], *, columns: tuple[int, int] = (0, 1),
               fields: tuple[str, str] = ("source", "target")) -> Pairs:
    """Pairs from two aligned files (source, target) or one .tsv or .jsonl file. Pairs empty on both sides are left out."""
    if len(files) == 2:
        rows = aligned_rows(*files)
    elif len(files) == 1 and kind_of(files[0]) == ".jsonl":
        rows = jsonl_rows(files[0], fields)
    elif len(files) == 1 and kind_of(files[0]) == ".tsv":
        rows = tsv_rows(files[0], columns)
    else:
        raise Mistake(f"{', '.join(map(str, files))}: give two aligned files (source, target), "
                      "or one .tsv or .jsonl (.gz and .xz too)")
    return collect(rows, files)


def kind_of(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in (".gz", ".xz") else path.suffix


def collect(rows: Iterable[tuple[int, str, str]], files: Sequence[Path]) -> Pairs:
    pairs = Pairs([], [], str(files[0]))
    for line, source, target in rows:
        source, target = source.strip(), target.strip()
        if bool(source) != bool(target):
            side = "source" if not source else "target"
            raise Mistake(f"{files[0]}:{line} has an empty {side} side; remove the pair, or check that the lines are aligned")
        if source:
            pairs.source.append(source)
            pairs.target.append(target)
            pairs.lines.append(line)
    if not pairs.source:
        raise Mistake(f"{files[0]} has no sentence pairs")
    return pairs


def aligned_rows(source: Path, target: Path) -> Iterator[tuple[int, str, str]]:
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise Mistake(f"{source} has {len(sources):,} lines but {target} has {len(targets):,}; "
                      "line n of one must translate line n of the other")
    return zip(range(1, len(sources) + 1), sources, targets)


def tsv_rows(path: Path, columns: tuple[int, int]) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(iterate_lines(path), start=1):
        cells = line.split("\t")
        if line.strip() and len(cells) <= max(columns):
            raise Mistake(f"{path}:{number} has {len(cells)} columns; data.columns = {list(columns)} needs {max(columns) + 1}")
        if line.strip():
            yield number, cells[columns[0]], cells[columns[1]]


def jsonl_rows(path: Path, fields: tuple[str, str]) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(iterate_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise Mistake(f"{path}:{number} is not JSON: {error}") from None
        values = [row.get(name) if isinstance(row, dict) else None for name in fields]
        if not all(isinstance(value, str) for value in values):
            raise Mistake(f"{path}:{number} lacks a text field {fields[0]!r} or {fields[1]!r}; name yours in data.fields")
        yield number, str(values[0]), str(values[1])
