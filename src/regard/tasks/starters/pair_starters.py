"""Starter recipes for pairs of texts: translation, and several tasks as text to text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard.corpus.examples import SentencePairs
from regard.corpus.table import TABLE_KINDS, file_kind
from regard.corpus.text_files import read_pairs
from regard.errors import UserError
from regard.tasks.starters.columns import SOURCE_TARGET_NAMES, Column, find_pair, is_number, read_table
from regard.tasks.starters.data_files import (
    file_settings,
    fill_template,
    held_out_size,
    longest_text,
    setting_line,
    text_lengths,
    toml_value,
)
from regard.tasks.starters.starter import Starter, StarterOptions, round_steps

# (pairs up to, preset, vocabulary, epochs, tokens per batch, dropout, R-Drop, BPE-dropout)
PAIR_SIZES = [
    (5_000, "tiny", 2_000, 80, 2048, 0.3, 0.0, 0.1),
    (50_000, "small", 6_000, 60, 4096, 0.3, 4.0, 0.1),
    (500_000, "small", 12_000, 20, 8192, 0.2, 2.0, 0.1),
    (5_000_000, "base", 32_000, 20, 25_000, 0.1, 0.0, 0.0),
    (float("inf"), "big", 32_000, 10, 25_000, 0.1, 0.0, 0.0),
]
PRESETS = {"big": 5e-4, "base": 7e-4, "small": 1e-3, "tiny": 2e-3}
"""The models from the largest on, and their learning rates."""
MAX_LABELS = 20
LABEL_PAIRS = [("sentence", "label"), ("text", "label"), *SOURCE_TARGET_NAMES]


def _pair_starter(
    template: str, pairs: Sequence[SentencePairs], values: Mapping[str, object], understood: Sequence[str]
) -> Starter:
    """Return the starter of an encoder–decoder for sentence pairs: without R-Drop, then with smaller models, it costs less."""
    number = sum(map(len, pairs))
    preset, vocabulary, epochs, tokens, dropout, r_drop, bpe_dropout = next(row[1:] for row in PAIR_SIZES if number <= row[0])
    sides = [text_lengths([text for part in pairs for text in part.texts()[side]]) for side in (0, 1)]
    smaller = list(PRESETS)[list(PRESETS).index(str(preset)) :]
    sizes: list[dict[str, object]] = [{"preset": name, "learning_rate": PRESETS[name], "r_drop": 0.0} for name in smaller]
    if r_drop and template == "translate":
        sizes.insert(0, {**sizes[0], "r_drop": r_drop})
    per_epoch = max(side.total for side in sides) / tokens
    more = {
        "examples": f"{number:,}",
        "vocabulary": vocabulary,
        "tokens": tokens,
        "dropout": dropout,
        "bpe_dropout": bpe_dropout,
        "longest": longest_text([text for part in pairs for side in part.texts() for text in side]),
        "max_length": max(64, *(side.max_length for side in sides)),
    }
    lengths = (sides[0].typical, sides[1].typical)
    steps = round_steps(epochs * per_epoch)
    return Starter(template, {**values, **more}, steps, per_epoch, lengths, sizes, [f"{number:,} pairs", *understood])


def translate_recipe(files: Sequence[Path], options: StarterOptions) -> Starter:
    """Return a recipe for two aligned files, or one table."""
    if not files:
        raise UserError("name your data: --source F --target F, or --pairs F.tsv")
    columns, understood = "", [f"{files[0]} is the source, {files[-1]} the target"]
    if len(files) == 1 and file_kind(files[0]) in TABLE_KINDS:
        source, target = find_pair(read_table(files[0]), options)
        setting, pairs = _read_columns(files[0], source, target)
        columns = setting_line(setting, "the columns of source and target")
        understood = [f"{files[0]}: {source} is the source, {target} the target; choose others with --columns SOURCE,TARGET"]
    else:
        pairs = read_pairs(files)
    held_out = held_out_size(pairs)
    values = {**file_settings(files), "columns": columns, "held_out": held_out, "evaluate_sentences": min(500, held_out)}
    return _pair_starter("translate", [pairs], values, understood)


def _read_columns(path: Path, source: Column, target: Column) -> tuple[str, SentencePairs]:
    """Return the setting that names two columns, and the pairs that they hold."""
    names = (source.name, target.name)
    if file_kind(path) == ".jsonl":
        return f"fields = {toml_value(list(names))}", read_pairs([path], fields=[str(name) for name in names])
    return f"columns = {toml_value(list(names))}", read_pairs([path], columns=names)


@dataclass
class DetectedTask:
    """One task of a text-to-text recipe."""

    name: str
    files: Sequence[Path]
    pairs: SentencePairs
    columns: str

    def kind(self) -> str:
        """Return how the task is scored, guessed from its targets."""
        target = self.pairs.target
        words = [np.mean([len(text.split()) for text in side]) for side in (self.pairs.source, target)]
        if len(set(target)) <= min(MAX_LABELS, len(target) // 5):
            return "classify"
        if all(map(is_number, target)):
            return "regress"
        return "summarise" if words[0] >= 4 * words[1] else "translate"

    def section(self, all_files: Sequence[Path]) -> str:
        """Return its section of the recipe."""
        kind = self.kind()
        return fill_template(
            "text-to-text-task",
            **file_settings(self.files, all_files),
            name=self.name,
            examples=f"{len(self.pairs):,}",
            kind=kind,
            columns=self.columns,
            too_long=setting_line('too_long = "drop"', 'or "error", or "truncate"') if kind == "translate" else "",
            held_out=held_out_size(self.pairs),
        )


def text_to_text_recipe(files: Sequence[Path], options: StarterOptions) -> Starter:
    """Return a recipe with one task for each table, and one for two aligned files."""
    tasks = _detect_tasks(files)
    values = {
        "root": file_settings(files)["root"],
        "first_task": tasks[0].name,
        "tasks": "\n".join(task.section(files) for task in tasks),
    }
    understood = [
        f"task {task.name}: {len(task.pairs):,} pairs of {', '.join(map(str, task.files))}, {task.kind()}" for task in tasks
    ]
    return _pair_starter("text-to-text", [task.pairs for task in tasks], values, understood)


def _detect_tasks(files: Sequence[Path]) -> list[DetectedTask]:
    """Return a task for every table; two other files are one task of aligned lines."""
    tables = [path for path in files if file_kind(path) in TABLE_KINDS]
    aligned = [path for path in files if path not in tables]
    if not files or len(aligned) not in (0, 2):
        raise UserError("name your data: --data F.tsv (or .jsonl) for each task, --source F --target F for one of aligned files")
    found = [DetectedTask("translate", aligned, read_pairs(aligned), "")] if aligned else []
    found += map(_task_from_table, tables)
    names = [task.name for task in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two of the files would be the task {name!r}; give them different names")
    return found


def _task_from_table(path: Path) -> DetectedTask:
    """Return a task whose source and target are the columns with usual names, or the first two."""
    name = "".join(letter if letter.isalnum() else "_" for letter in path.name.split(".")[0])
    table = read_table(path)
    named = [(table.named(one), table.named(other)) for one, other in LABEL_PAIRS]
    source, target = next(((one, other) for one, other in named if one and other), (table.columns + table.columns)[:2])
    setting, pairs = _read_columns(path, source, target)
    return DetectedTask(name, [path], pairs, setting)
