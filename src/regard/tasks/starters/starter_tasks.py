"""A starter recipe of several tasks: a task for each table, and one for two aligned files; how each is scored is guessed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard.corpus.examples import SentencePairs
from regard.corpus.lines import iterate_lines
from regard.corpus.pairs import read_pairs
from regard.corpus.table import file_kind
from regard.errors import UserError
from regard.tasks.starters.starter_files import held_out_size, root_and_names

MOST_LABELS = 20
NAMED = [
    ("sentence", "label"),
    ("text", "label"),
    ("source", "target"),
    ("document", "summary"),
    ("article", "highlights"),
    ("question", "answer"),
]
"""Columns that a first line may name."""


@dataclass
class DetectedTask:
    """What a starter says of one task."""

    name: str
    files: Sequence[Path]
    pairs: SentencePairs
    columns: str

    @property
    def kind(self) -> str:
        target = self.pairs.target
        words = [np.mean([len(text.split()) for text in side]) for side in (self.pairs.source, target)]
        if len(set(target)) <= min(MOST_LABELS, len(target) // 5):
            return "classify"
        if all(is_number(text) for text in target):
            return "regress"
        return "summarise" if words[0] >= 4 * words[1] else "translate"

    def part(self, every: Sequence[Path]) -> str:
        """Its part of the recipe; where every file of all tasks lies together, names are enough."""
        _, names = root_and_names(self.files, every)
        long = 'too_long = "drop"               # or "error", or "truncate"\n' if self.kind == "translate" else ""
        held_out = held_out_size(self.pairs)
        return f"""\
[data.tasks.{self.name}]          # {len(self.pairs):,} examples
prefix = "{self.name}: "           # what stands before every text, and tells the task; say it in words
kind = "{self.kind}"              # translate, summarise, classify or regress: how it is scored
train = [{names}]
{self.columns}{long}held_out = {held_out}                    # set aside to validate, and as many to test; or name your own
"""


def is_number(text: str) -> bool:
    try:
        return np.isfinite(float(text))
    except ValueError:
        return False


def detect_tasks(files: Sequence[Path]) -> list[DetectedTask]:
    """Every table is a task; two other files are one of aligned lines."""
    tables = [path for path in files if file_kind(path) in (".tsv", ".jsonl")]
    aligned = [path for path in files if path not in tables]
    if not files or len(aligned) not in (0, 2):
        raise UserError("name your data: --data F.tsv (or .jsonl) for each task, --source F --target F for one of aligned files")
    found = [DetectedTask("translate", aligned, read_pairs(aligned), "")] if aligned else []
    for path in tables:
        found.append(from_table(path))
    names = [task.name for task in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two of the files would be the task {name!r}; give them different names")
    return found


def from_table(path: Path) -> DetectedTask:
    """Source and target are the first two columns, unless the first line names them; of a .jsonl, its first two fields."""
    name = "".join(letter if letter.isalnum() else "_" for letter in path.name.split(".")[0])
    first = next(iter(iterate_lines(path)), "")
    if file_kind(path) == ".jsonl":
        try:
            fields = list(json.loads(first))[:2]
        except (json.JSONDecodeError, TypeError, RecursionError):
            fields = ["source", "target"]
        return DetectedTask(name, [path], read_pairs([path], fields=fields), f"fields = {json.dumps(fields)}\n")
    named = next((pair for pair in NAMED if set(pair) <= set(first.split("\t"))), None)
    return DetectedTask(
        name, [path], read_pairs([path], columns=named or (0, 1)), f"columns = {json.dumps(list(named or (0, 1)))}\n"
    )
