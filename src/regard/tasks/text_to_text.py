"""A run of several tasks, each of which is to answer a text with a text (T5, Raffel et al. 2020)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.batches.batches import sequential_batches
from regard.batches.mixture import MixtureRows, examples_per_epoch
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, TranslationRows
from regard.batches.token_store import TokenStore
from regard.corpus.dataset import Dataset, as_task_pairs
from regard.corpus.examples import SentencePairs, TaskMixture, TaskPairs
from regard.errors import UserError
from regard.files import atomic_write
from regard.interop.convert import HuggingFaceFolder
from regard.recipe import TaskData
from regard.scoring import (
    Score,
    accuracy,
    classification_scores,
    compare_accuracy,
    compare_rouge,
    compare_systems,
    correlation_scores,
    rouge_scores,
    translation_scores,
)
from regard.scoring.score import SAMPLES
from regard.tasks.algorithm import exact_matches
from regard.tasks.base import EVALUATE_TOKENS, EvaluationResult, Run
from regard.tasks.classify import Prediction
from regard.tasks.translate import TranslateRun
from regard.training.losses import sequence_log_probs

FILE = "labels.json"
MAIN_METRIC = {"translate": "bleu", "summarise": "rougel", "classify": "accuracy", "regress": "spearman"}
"""What each kind of task is judged by while training."""


class TextToTextRun(TranslateRun):
    does = "answers texts with texts"

    def __init__(self, folder: Path, recipe: Any, device: torch.device, huggingface: HuggingFaceFolder | None = None):
        super().__init__(folder, recipe, device, huggingface)
        self.words: dict[str, list[str]] = self.read_json(FILE)
        """What can be said where a task is to classify."""

    @classmethod
    def prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        super().prepare(folder, recipe, data)
        words = {
            name: sorted(set(pairs.target))
            for name, pairs in data.train.parts.items()
            if recipe.data.tasks[name].kind == "classify"
        }
        atomic_write(folder / FILE, json.dumps(words, ensure_ascii=False, indent=1) + "\n")

    @classmethod
    def tokenizer_names(cls, recipe: Any) -> list[str]:
        return ["tokenizer.json"]

    # its tasks

    def task(self, name: str) -> TaskData:
        if name not in self.recipe.data.tasks:
            raise UserError(f"--task {name}: {self.folder} knows {', '.join(self.recipe.data.tasks)}")
        return self.recipe.data.tasks[name]

    def prefixed(self, texts: Sequence[str], name: str) -> list[str]:
        """Texts with what says which task is wanted; nothing is wanted of an empty one."""
        task, found = self.task(name), []
        for number, text in enumerate(texts, start=1):
            parts = text.count("\t") + 1
            if text.strip() and len(task.prefixes) > 1 and parts != len(task.prefixes):
                raise UserError(
                    f"line {number} has {parts} texts; the task {name} reads {len(task.prefixes)}, with a tab between them"
                )
            found.append(task.prefixed(text) if text.strip() else "")
        return found

    def as_task(self, pairs: SentencePairs, name: str) -> TaskPairs:
        """Somebody's pairs as this run reads and says them."""
        return as_task_pairs(name, self.task(name), pairs)

    # what it learns from

    def too_long(self, examples: TaskPairs) -> str:
        return self.recipe.data.tasks[examples.task].too_long

    def training_rows(self, examples: TaskMixture) -> tuple[Rows, int]:
        data = self.recipe.data
        self.check_labels()
        found = [super(TextToTextRun, self).training_rows(pairs) for pairs in examples.parts.values()]
        drawn = examples_per_epoch(
            [len(rows) for rows, _ in found], [data.tasks[name].weight for name in examples.parts], data.temperature, data.limit
        )
        return MixtureRows([rows for rows, _ in found], drawn), sum(long for _, long in found)

    def evaluation_rows(self, examples: TaskMixture | TaskPairs, *, refuse: bool = False) -> Rows:
        if isinstance(examples, TaskMixture):
            parts = examples.parts.values()
            return MixtureRows([self.evaluation_rows(pairs, refuse=refuse) for pairs in parts], [len(pairs) for pairs in parts])
        if refuse and len(examples) < 3 and self.task(examples.task).kind == "regress":
            raise UserError(
                f"{examples.name} has {len(examples)} examples; numbers are scored by how they go together: give three"
            )
        return super().evaluation_rows(examples, refuse=refuse)

    def check_labels(self) -> None:
        """Labels that the vocabulary writes alike would be learned as one."""
        for name, words in self.words.items():
            if len(words) < 2:
                raise UserError(f"data.tasks.{name} has only the label {words[0]!r}; at least two are needed")
            written = self.written(words)
            alike = [word for word, text in zip(words, written) if not text or written.count(text) > 1]
            if alike:
                raise UserError(
                    f"data.tasks.{name}: the vocabulary cannot tell the label {alike[0]!r} from another; "
                    "raise tokens.size, or give it another word in labels"
                )

    def written(self, texts: Sequence[str]) -> list[str]:
        """Texts as the vocabulary writes them."""
        return self.tokenizers[1].decode(self.tokenizers[1].encode(texts))

    # how well it does

    def validate(self, examples: Any, rows: Rows) -> dict[str, float]:
        """Every task's loss, and its first score where the recipe asks for it; the mean of both over tasks, which choose the best
        weights."""
        assert isinstance(rows, MixtureRows)
        scores: dict[str, float] = {}
        for (name, pairs), part in zip(examples.parts.items(), rows.parts):
            scores[f"{name}/valid_loss"] = Run.validate(self, pairs, part)["valid_loss"]
            if number := self.recipe.train.evaluate_sentences:
                spread = np.linspace(0, len(pairs) - 1, min(len(pairs), max(3, number))).astype(int)  # a file may be sorted
                some = pairs.select(spread.tolist())
                metric = MAIN_METRIC[self.task(name).kind]
                said = [found.text for found in self.best(some.source, beam=1)]
                scores[f"{name}/valid_{metric}"] = self.judge(name, said, some.target, samples=2)[0][metric].score
        losses, firsts = ([value for name, value in scores.items() if name.endswith("_loss") == loss] for loss in (True, False))
        scores["valid_loss"] = float(np.mean(losses))
        return {**scores, "valid_mean": float(np.mean(firsts))} if firsts else scores

    def score(self, name: str, examples: Any) -> EvaluationResult:
        said = [found.text for found in self.best(examples.source)]
        scores, notes = self.judge(examples.task, said, examples.target)
        return EvaluationResult(name, examples, said, {**scores, "perplexity": self.perplexity(examples)}, notes=notes)

    def judge(
        self, name: str, said: Sequence[str], meant: Sequence[str], *, samples: int = SAMPLES
    ) -> tuple[dict[str, Score], list[str]]:
        """The scores of what was said for a task, and notes on them."""
        match self.task(name).kind:
            case "summarise":
                return rouge_scores(said, meant, samples=samples), []
            case "classify":
                commonest = max(meant.count(label) for label in set(meant)) / len(meant)
                meant = self.written(meant)
                return {
                    "accuracy": accuracy(exact_matches(said, meant)),
                    **classification_scores(said, meant, samples=samples),
                }, [f"always saying the commonest label: {commonest:.1%}"]
            case "regress":
                numbers, missing = parse_numbers(said)
                notes = [f"{missing} of {len(said)} texts said are no numbers"] if missing else []
                return correlation_scores(numbers, np.array([float(text) for text in meant]), samples=samples), notes
        return translation_scores(said, meant, samples=samples), []

    def paired(self, runs: dict[str, Any], examples: Any) -> list[dict[str, Any]]:
        """Is each run different from the first on these texts?"""
        said = {name: [found.text for found in run.best(examples.source)] for name, run in runs.items()}
        match self.task(examples.task).kind:
            case "summarise":
                return compare_rouge(said, examples.target)
            case "classify" | "regress":
                return compare_accuracy(
                    {name: exact_matches(texts, self.written(examples.target)) for name, texts in said.items()}
                )
        return compare_systems(said, examples.target)

    # what it can do

    def classify(self, texts: Sequence[str], task: str | None = None) -> list[list[Prediction]]:
        """Every label of each text, the most probable first: the probability of saying it, among those of all labels."""
        name = self.classifying(task)
        sources, words = self.ids(self.prefixed(texts, name)), self.words[name]
        said = self.tokenizers[1].encode(words)
        both = [(source, word) for source in sources for word in said]
        rows = TranslationRows(
            TokenStore(Ragged.from_rows([a for a, _ in both])),
            TokenStore(Ragged.from_rows([b for _, b in both])),
            self.special_tokens,
        )
        log_p = torch.zeros(len(both), dtype=torch.float64)
        for batch in sequential_batches(rows, EVALUATE_TOKENS):
            log_p[torch.from_numpy(batch.rows)] = sequence_log_probs(self.model, batch.to(self.device)).double().cpu()
        found = []
        for p in log_p.view(len(texts), len(words)).softmax(-1):
            order = p.argsort(descending=True, stable=True).tolist()
            found.append([Prediction(words[i], float(p[i])) for i in order])
        return found

    def classifying(self, task: str | None) -> str:
        """The task that is meant, where it is one with labels."""
        if task is None and len(self.words) == 1:
            return next(iter(self.words))
        if task is None:
            raise UserError(
                f"{self.folder}: say for which task the labels are: "
                + (f"--task {' or '.join(self.words)}" if self.words else "none of its tasks has labels")
            )
        if self.task(task).kind != "classify":
            raise UserError(f"--task {task} has no labels (kind = {self.task(task).kind!r}); use: regard translate --task {task}")
        return task


def parse_numbers(said: Sequence[str]) -> tuple[np.ndarray, int]:
    """The numbers in what was said; what is none counts as the mean of the others, and is counted."""
    found = np.full(len(said), np.nan)
    for i, text in enumerate(said):
        try:
            found[i] = float(text)
        except ValueError:
            continue
    known = np.isfinite(found)
    return np.where(known, found, found[known].mean() if known.any() else 0.0), int((~known).sum())
