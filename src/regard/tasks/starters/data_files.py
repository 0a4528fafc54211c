"""A user's data files as starter recipes describe them: names, columns and image sizes; and the templates that they fill."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from string import Template

import numpy as np

from regard.corpus.decode_image import decode_image
from regard.corpus.examples import Examples, ImageExamples
from regard.corpus.table import RECORD_KINDS, TABLE_KINDS, delimited_cells, file_kind, records
from regard.errors import UserError

PATH_COLUMNS = ("file", "file_name", "image", "path", "filename", "filepath", "picture")
CAPTION_COLUMNS = ("captions", "caption", "text", "title", "sentences")
SAMPLED_IMAGES = 64
FINETUNING_RATE = "5e-5"
COMMENT_COLUMN = 32
CHARACTERS_PER_TOKEN = 3
MAX_TOKENS_PER_CHARACTER = 0.6
"""Of a small vocabulary, or of a language without spaces."""
FITTING_PERCENT = 99
"""Texts that max_length is chosen for: a single very long one does not make every batch larger."""
MIN_LENGTH, MAX_LENGTH = 32, 512


def fill_template(template: str, **values: object) -> str:
    """Return templates/TEMPLATE.toml with its $placeholders filled in and its comments aligned; lines left empty by an empty
    value go."""
    text = package_files("regard.tasks.starters").joinpath("templates", f"{template}.toml").read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines():
        code, _, comment = line.partition("  # ")  # in the template, not in the values
        filled = Template(code).substitute(values)
        if comment:
            filled = f"{filled:<{COMMENT_COLUMN - 1}} # {Template(comment).substitute(values)}"
        if filled or not line:
            lines.append(filled)
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """Return a string, number, boolean or list as TOML writes it, which is as JSON does."""
    return json.dumps(value, ensure_ascii=False)


def setting_line(setting: str, comment: str) -> str:
    """Return a line `setting  # comment` with the comment in its column."""
    return f"{setting:<{COMMENT_COLUMN - 1}} # {comment}"


def file_settings(files: Sequence[Path], all_files: Sequence[Path] = ()) -> dict[str, str]:
    """Return data.root and the files as TOML: by name if all of the recipe's files are in one folder, else by full path."""
    together = len({file.parent for file in all_files or files}) == 1
    names = ", ".join(toml_value(file.name if together else str(file.resolve())) for file in files)
    return {"root": toml_value(str(files[0].parent if together else Path())), "files": names}


def held_out_size(examples: Examples) -> int:
    """Return how many examples to hold out for validation, and as many for testing."""
    return min(2000, max(1, len(set(examples.keys())) // 20))


def longest_text(texts: Sequence[str]) -> int:
    """Return the number of words of the longest text."""
    return max(len(text.split()) for text in texts)


@dataclass(frozen=True)
class TextLengths:
    """Estimated tokens of texts, before there is a tokenizer."""

    total: float
    typical: int
    max_length: int
    """Enough for nearly all texts."""


def text_lengths(texts: Sequence[str]) -> TextLengths:
    """Estimate the tokens of texts from their characters, which languages without spaces have too."""
    characters = np.array([len(text) for text in texts])
    fitting = float(np.percentile(characters, FITTING_PERCENT)) * MAX_TOKENS_PER_CHARACTER + 2
    bounded = min(MAX_LENGTH, max(MIN_LENGTH, -(-fitting // MIN_LENGTH) * MIN_LENGTH))
    total = characters.sum() / CHARACTERS_PER_TOKEN
    return TextLengths(float(total), max(1, min(int(bounded), round(total / len(texts)) + 2)), int(bounded))


def detect_path_column(file: Path) -> int | str:
    """Return the column of image paths: by the name of a .jsonl field or in a .tsv header, else the first."""
    if file.is_dir() or file_kind(file) not in TABLE_KINDS or ".index.tsv" in file.name:
        return 0
    names = _column_names(file)
    path = next((name for name in PATH_COLUMNS if name in names), None)
    if path is None and file_kind(file) in RECORD_KINDS:
        raise UserError(f"{file}:1 has the fields {', '.join(names)}; name the image path {' or '.join(PATH_COLUMNS[:3])}")
    return path or 0


def detect_columns(file: Path) -> tuple[int | str, list[int | str]]:
    """Return the columns of path and captions: by the names of .jsonl fields or in a .tsv header, else the first and the
    following."""
    if file.suffix == ".tar":
        return 0, [1]  # captions are files beside the images
    if file_kind(file) not in TABLE_KINDS:
        raise UserError(
            f"{file}: give a table (.tsv, .csv, .jsonl, .parquet) of image paths and captions, an .index.tsv, or .tar shards"
        )
    names = _column_names(file)
    path, captions = (next((name for name in known if name in names), None) for known in (PATH_COLUMNS, CAPTION_COLUMNS))
    if file_kind(file) in RECORD_KINDS and (path is None or captions is None):
        raise UserError(
            f"{file}:1 has the fields {', '.join(names)}; name the image path {' or '.join(PATH_COLUMNS[:3])}, and the captions "
            f"{' or '.join(CAPTION_COLUMNS[:2])}"
        )
    if path is not None and captions is not None:
        return path, [captions]
    first = 3 if ".index.tsv" in file.name else 1  # an index has name, offset and size first
    if len(names) <= first:
        raise UserError(f"{file}:1 has {len(names)} columns; captions are expected from column {first} on, counted from 0")
    return 0, list(range(first, len(names)))


def _column_names(file: Path) -> list[str]:
    """Return the fields of a table's first record, or the cells of the first line of a .tsv or .csv."""
    if file_kind(file) not in RECORD_KINDS:
        return [cell.strip() for cell in next(delimited_cells(file), (1, [""]))[1]]
    row = next(records(file), (1, None))[1]
    if not isinstance(row, dict):
        raise UserError(f"{file}:1 is not a JSON object")
    return list(row)


def median_short_side(images: ImageExamples) -> float:
    """Return the median of the shorter sides of a sample of the images."""
    sample = images.images[:: -(-len(images) // SAMPLED_IMAGES)]
    return float(np.median([min(decode_image(one.read(), str(one)).size) for one in sample if not isinstance(one, np.ndarray)]))


def finetuning_recipe(recipe: str, folder: Path) -> str:
    """Return a starter recipe that fine-tunes a run or Hugging Face folder: without [tokens] and [model], which it brings."""
    if not (folder / "config.json").is_file() and not (folder / "recipe.toml").is_file():
        raise UserError(f"--from {folder}: neither a run folder nor a Hugging Face folder")
    sections = re.split(r"(?m)^(?=\[)", recipe)
    kept = [section for section in sections if not section.startswith(("[tokens]", "[model"))]
    start = f"init_from = {toml_value(str(folder.resolve()))}"
    text = "".join(kept).replace("[train]\n", f"[train]\n{setting_line(start, 'its weights, architecture and tokenizer')}\n", 1)
    return re.sub(r"(?m)^learning_rate = \S+", f"learning_rate = {FINETUNING_RATE}", text)
