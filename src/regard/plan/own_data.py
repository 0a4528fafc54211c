"""The recipe of data in memory: rows are written into the run folder as files, looked at, and fitted to this machine."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from regard import distributed
from regard.corpus.in_memory import DataSource, as_files, iterate_records, load_splits, write_conll, write_jsonl
from regard.corpus.table import Record
from regard.errors import UserError
from regard.plan.budget import fit_to_budget
from regard.tasks import starter_recipe
from regard.tasks.starters.starter import StarterOptions
from regard.training.log import note

DEFAULT_MINUTES = 60.0
COLUMNS = {
    "translate": ("source", "target"),
    "classify": ("text", "label"),
    "regress": ("text", "label"),
    "tag": ("tokens", "tags"),
    "answer": ("question", "context", "answers"),
    "language": ("text",),
    "masked": ("text",),
    "span-corruption": ("text",),
}
"""The columns of rows without names, for each task that trains on data in memory."""


class DataOptions(TypedDict, total=False):
    """Data in place of a recipe: rows in memory, files, or the name of a data set on the hub."""

    task: str
    train: DataSource
    valid: DataSource
    test: DataSource | Mapping[str, DataSource]
    text: str
    text_pair: str
    label: str
    source: str
    target: str
    minutes: float


def recipe_for_data(folder: Path, device: str, options: DataOptions) -> dict[str, object]:
    """Return the settings that train on data in memory in at most `minutes` on this machine; rows are written to FOLDER/data.

    Columns that are not named are looked for. Without a validation set, some of the training examples are held out.
    """
    return distributed.broadcast(_write_recipe(folder, device, options) if distributed.is_main() else {})


def _write_recipe(folder: Path, device: str, options: DataOptions) -> dict[str, object]:
    task = options.get("task")
    if task not in COLUMNS:
        raise UserError(f"task={task!r}: data in memory trains {', '.join(COLUMNS)}; for other tasks write a recipe: regard new")
    if "train" not in options:
        raise UserError("train= is missing: give files, a list, a DataFrame, or a data set")
    files = _write_sets(folder, task, options)
    pair = (options.get("source"), options.get("target"))
    if (pair[0] is None) != (pair[1] is None):
        raise UserError("source= and target= go together: they name the columns of a text and its translation")
    columns = None if pair[0] is None else ",".join(map(str, pair))
    starter = starter_recipe(
        task,
        files.pop("train"),
        StarterOptions(options.get("text"), options.get("text_pair"), options.get("label"), columns),
    )
    fitted = fit_to_budget(starter, options.get("minutes", DEFAULT_MINUTES), device)
    for line in (*starter.understood, *fitted.notes):
        note(line)
    settings = tomllib.loads(fitted.toml)
    data: dict[str, Any] = settings["data"]
    root = Path(data["root"])
    if valid := files.pop("valid", None):
        data["valid"] = _relative(valid, root)
        data.pop("held_out", None)
    if files:
        data["test"] = {name: _relative(paths, root) for name, paths in files.items()}
    return settings


def _relative(paths: Iterable[Path], root: Path) -> list[str]:
    """Return paths as a recipe names them: by name in data.root, else from the root of the file system."""
    return [path.name if path.parent.resolve() == root.resolve() else str(path.resolve()) for path in paths]


def _write_sets(folder: Path, task: str, options: DataOptions) -> dict[str, list[Path]]:
    """Return the files of each set; what is not in files yet is written."""
    train: object = options["train"]
    sets: dict[str, object] = {"train": train} if as_files(train) else load_splits(train)
    if "valid" in options:
        sets["valid"] = options["valid"]
    test = options.get("test", sets.pop("test", None))
    if test is not None:
        sets |= test if isinstance(test, Mapping) and not _is_table(test) else {"test": test}
    found = {}
    for name, source in sets.items():
        paths = as_files(source) or _write_rows(folder / "data", name, task, source, options)
        if paths:
            found[name] = paths
    return found


def _is_table(test: Mapping[Any, object]) -> bool:
    """Whether a dictionary is one table of columns, not several test sets."""
    return all(isinstance(value, list) and not isinstance(value[:1], str) and not _has_rows(value) for value in test.values())


def _has_rows(values: list[object]) -> bool:
    return bool(values) and isinstance(values[0], Mapping | tuple)


def _write_rows(folder: Path, name: str, task: str, source: object, options: DataOptions) -> list[Path]:
    """Write the rows of one set to a file; a test set without labels is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    records: Iterable[Record] = iterate_records(load_splits(source)["train"], COLUMNS[task])
    if task == "tag":
        path = folder / f"{name}.conll"
        number = write_conll(path, records, options.get("text"), options.get("label"))
    else:
        path = folder / f"{name}.jsonl"
        number = write_jsonl(path, records)
    if not number and name not in ("train", "valid"):
        note(f"the set {name} has no labels and is left out")
        return []
    if not number:
        raise UserError(f"{name}= has no rows")
    return [path]
