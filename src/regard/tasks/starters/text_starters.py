"""Starter recipes for texts: translation, several tasks as text to text, language models, classification, tagging, questions."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard.corpus.examples import Examples, SentencePairs
from regard.corpus.lines import iterate_lines
from regard.corpus.questions import read_questions
from regard.corpus.table import file_kind
from regard.corpus.text_files import read_labelled, read_pairs, read_tagged, read_text
from regard.errors import UserError
from regard.tasks.starters.data_files import file_settings, fill_template, held_out_size, longest_text, setting_line, toml_value

# (pairs up to, preset, vocabulary, steps, tokens per batch, learning rate, dropout, R-Drop, BPE-dropout)
PAIR_SIZES = [
    (5_000, "tiny", 2_000, 3_000, 2048, 2e-3, 0.3, 0.0, 0.1),
    (50_000, "small", 6_000, 8_000, 4096, 1e-3, 0.3, 4.0, 0.1),
    (500_000, "small", 12_000, 30_000, 8192, 1e-3, 0.2, 2.0, 0.1),
    (5_000_000, "base", 32_000, 100_000, 25_000, 7e-4, 0.1, 0.0, 0.0),
    (float("inf"), "big", 32_000, 300_000, 25_000, 5e-4, 0.1, 0.0, 0.0),
]
# (examples up to, steps, tokens per batch, width, dropout)
TEXT_SIZES = [(2_000, 1_000, 2048, 128, 0.4), (50_000, 4_000, 4096, 256, 0.3), (float("inf"), 20_000, 8192, 512, 0.1)]
MAX_LABELS = 20
KNOWN_HEADERS = [
    ("sentence", "label"),
    ("text", "label"),
    ("source", "target"),
    ("document", "summary"),
    ("article", "highlights"),
    ("question", "answer"),
]
"""Source and target columns that a header may name."""


def _pair_settings(number: int) -> dict[str, object]:
    """Return the settings for a number of sentence pairs."""
    names = ("preset", "vocabulary", "steps", "tokens", "learning_rate", "dropout", "r_drop", "bpe_dropout")
    settings: dict[str, object] = dict(zip(names, next(row[1:] for row in PAIR_SIZES if number <= row[0])))
    steps = int(str(settings["steps"]))
    return {**settings, "interval": max(100, steps // 20), "warmup": max(100, steps // 10)}


def translate_recipe(files: Sequence[Path]) -> str:
    """Return a recipe for two aligned files, or one .tsv or .jsonl."""
    if not files:
        raise UserError("name your data: --source F --target F, or --pairs F.tsv")
    pairs = read_pairs(files)
    held_out, longest = held_out_size(pairs), longest_text((*pairs.source, *pairs.target))
    return fill_template(
        "translate",
        **file_settings(files),
        **_pair_settings(len(pairs)),
        examples=f"{len(pairs):,}",
        held_out=held_out,
        evaluate_sentences=min(500, held_out),
        longest=longest,
        max_length=max(64, 4 * longest),
    )


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
        if all(_is_number(text) for text in target):
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


def text_to_text_recipe(files: Sequence[Path]) -> str:
    """Return a recipe with one task for each table, and one for two aligned files."""
    tasks = _detect_tasks(files)
    number = sum(len(task.pairs) for task in tasks)
    longest = max(longest_text((*task.pairs.source, *task.pairs.target)) for task in tasks)
    return fill_template(
        "text-to-text",
        root=file_settings(files)["root"],
        **_pair_settings(number),
        examples=f"{number:,}",
        first_task=tasks[0].name,
        tasks="\n".join(task.section(files) for task in tasks),
        longest=longest,
        max_length=min(512, max(64, 4 * longest)),
    )


def _detect_tasks(files: Sequence[Path]) -> list[DetectedTask]:
    """Return a task for every table; two other files are one task of aligned lines."""
    tables = [path for path in files if file_kind(path) in (".tsv", ".jsonl")]
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
    """Return a task whose source and target are the first two columns unless a header names them, or a .jsonl's first two
    fields."""
    name = "".join(letter if letter.isalnum() else "_" for letter in path.name.split(".")[0])
    first = next(iter(iterate_lines(path)), "")
    if file_kind(path) == ".jsonl":
        try:
            fields = list(json.loads(first))[:2]
        except (json.JSONDecodeError, TypeError, RecursionError):
            fields = ["source", "target"]
        return DetectedTask(name, [path], read_pairs([path], fields=fields), f"fields = {toml_value(fields)}")
    columns = next((pair for pair in KNOWN_HEADERS if set(pair) <= set(first.split("\t"))), (0, 1))
    return DetectedTask(name, [path], read_pairs([path], columns=columns), f"columns = {toml_value(list(columns))}")


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def plain_recipe(task: str, title: str, read: Callable[[Sequence[Path]], Examples]) -> Callable[[Sequence[Path]], str]:
    """Return the starter of a task whose files need no further settings."""
    return lambda files: _text_recipe(task, title, files, read(_required(files)))


language_recipe = plain_recipe("language", "Language modelling", read_text)
masked_recipe = plain_recipe("masked", "Masked language modelling", read_text)
tag_recipe = plain_recipe("tag", "Tagging of words", read_tagged)


def classify_recipe(files: Sequence[Path]) -> str:
    """Return a recipe for texts with labels in the first two columns, unless a header names them."""
    first = next(iter(iterate_lines(_required(files)[0])), "").lower().split("\t")
    named = next((name for name in ("sentence", "text") if name in first and "label" in first), None)
    text, label = (0, 1) if named is None else (named, "label")
    settings = [
        setting_line(f"{name} = {toml_value(column)}", "a column's index from 0, or its name")
        for name, column in (("text", text), ("label", label))
    ]
    examples = read_labelled(files, text=text, label=label)
    return _text_recipe("classify", "Text classification", files, examples, data_settings="\n".join(settings))


def answer_recipe(files: Sequence[Path]) -> str:
    """Return a recipe for questions in SQuAD's format; whether some have no answer is read from the data."""
    questions = read_questions(_required(files))
    unanswerable = f"unanswerable = {toml_value(not all(questions.answers))}"
    settings = [
        setting_line(unanswerable, "whether some questions have no answer in their context"),
        setting_line("stride = 128", "tokens between two windows of a long context"),
    ]
    return _text_recipe("answer", "Question answering", files, questions, data_settings="\n".join(settings))


def _required(files: Sequence[Path]) -> Sequence[Path]:
    if not files:
        raise UserError("name your data: --data F")
    return files


def _text_recipe(task: str, title: str, files: Sequence[Path], examples: Examples, *, data_settings: str = "") -> str:
    steps, tokens, width, dropout = next(row[1:] for row in TEXT_SIZES if len(examples) <= row[0])
    longest = longest_text(examples.texts()[0])
    return fill_template(
        "text",
        **file_settings(files),
        task=task,
        title=title,
        examples=f"{len(examples):,}",
        held_out=held_out_size(examples),
        data_settings=data_settings,
        vocabulary=min(8000, max(500, 20 * len(examples) // 100 * 10)),
        width=width,
        feed_forward=4 * width,
        preset="" if task == "language" else setting_line('preset = "bert-mini"', "BERT's shape; transformers opens the export"),
        longest=longest,
        max_length=min(512, max(32, 4 * longest)),
        steps=steps,
        tokens=tokens,
        interval=max(100, steps // 20),
        warmup=max(100, steps // 10),
        dropout=dropout,
    )
