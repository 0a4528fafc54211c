"""One's own files, as a starter recipe names them and looks into them."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regard.corpus.decode_image import decode_image
from regard.corpus.examples import Examples, ImageExamples
from regard.corpus.lines import iterate_lines
from regard.corpus.table import file_kind
from regard.errors import UserError

PATHS = ("file", "file_name", "image", "path", "filename", "filepath", "picture")
CAPTIONS = ("captions", "caption", "text", "title", "sentences")
SAMPLED_IMAGES = 64


def root_and_names(files: Sequence[Path], every: Sequence[Path] = ()) -> tuple[Path, str]:
    """The folder that paths start at, and the files as a list of TOML has them: by name where all of them, or of the `every` that
    a recipe has, lie together."""
    together = len({file.parent for file in every or files}) == 1
    names = ", ".join(json.dumps(file.name if together else str(file.resolve())) for file in files)
    return files[0].parent if together else Path(), names


def held_out_size(examples: Examples) -> int:
    """How many of them to validate on, and as many to test on."""
    return min(2000, max(1, len(set(examples.keys())) // 20))


def detect_path_column(file: Path) -> int | str:
    """The column of the paths: by the name of a .jsonl's field or of a .tsv's first line, else the first."""
    if file.is_dir() or file_kind(file) not in (".tsv", ".jsonl") or ".index.tsv" in file.name:
        return 0
    names = column_names(file)
    path = next((name for name in PATHS if name in names), None)
    if path is None and file_kind(file) == ".jsonl":
        raise UserError(f"{file}:1 has the fields {', '.join(names)}; name the path {' or '.join(PATHS[:3])}")
    return path or 0


def detect_columns(file: Path) -> tuple[int | str, list[int | str]]:
    """Where path and captions are: by the names of a .jsonl's fields or of a .tsv's first line, else first and after it."""
    if file.suffix == ".tar":
        return 0, [1]  # they lie beside the pictures
    if file_kind(file) not in (".tsv", ".jsonl"):
        raise UserError(f"{file}: give a .tsv or .jsonl with paths of pictures and captions, an .index.tsv, or .tar shards")
    names = column_names(file)
    path, said = (next((name for name in known if name in names), None) for known in (PATHS, CAPTIONS))
    if file_kind(file) == ".jsonl" and (path is None or said is None):
        raise UserError(
            f"{file}:1 has the fields {', '.join(names)}; name the path {' or '.join(PATHS[:3])}, and the captions "
            f"{' or '.join(CAPTIONS[:2])}"
        )
    if path is not None and said is not None:
        return path, [said]
    before = 3 if ".index.tsv" in file.name else 1  # a name; where it begins, its bytes
    if len(names) <= before:
        raise UserError(f"{file}:1 has {len(names)} columns; captions are expected from column {before} on, counted from 0")
    return 0, list(range(before, len(names)))


def column_names(file: Path) -> list[str]:
    """The fields of a .jsonl's first line; the cells of a .tsv's."""
    first = next((line for line in iterate_lines(file) if line.strip()), "")
    if file_kind(file) != ".jsonl":
        return [cell.strip() for cell in first.split("\t")]
    try:
        row = json.loads(first)
    except json.JSONDecodeError:
        row = None
    if not isinstance(row, dict):
        raise UserError(f"{file}:1 is not a JSON object")
    return list(row)


def short_sides(pictures: ImageExamples) -> list[int]:
    """The shorter sides of some of them."""
    return [
        min(decode_image(one.read(), str(one)).size)
        for one in pictures.images[:: -(-len(pictures) // SAMPLED_IMAGES)]
        if not isinstance(one, np.ndarray)
    ]
