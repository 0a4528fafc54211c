"""Text-to-text (T5, Raffel et al. 2020): several tasks, each of which maps a text with a prefix to a text."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch

from regard.batches.mixture import MixtureRows, examples_per_epoch
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, TranslationRows
from regard.batches.token_store import TokenStore
from regard.corpus.dataset import Dataset
from regard.corpus.examples import TaskMixture, TaskPairs
from regard.errors import UserError
from regard.files import atomic_write
from regard.recipe import Model, Recipe, TaskData, TasksData, TransformerModel
from regard.scoring import (
    Confusion,
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
from regard.tasks.base import Run
from regard.tasks.shared.labels import LABELS_FILE, Classification, rank_labels
from regard.tasks.shared.one_or_many import one_or_many
from regard.tasks.starters.pair_starters import text_to_text_recipe
from regard.tasks.task import HUMAN_CHECK, TEXT_LIMITS, ComparisonRow, EvaluationResult, Task, TaskCard
from regard.tasks.translate import SEQ2SEQ_MODELS, TextToTextVerbs, exact_matches
from regard.training.losses import sequence_log_probs

MAIN_METRIC = {"translate": "bleu", "summarise": "rougel", "classify": "accuracy", "regress": "spearman"}
"""The validation metric of each kind of task."""
NO_LABEL = "(other text)"
"""What stands in the confusion matrix for outputs that are none of the labels."""


class TextToTextRecipe(Recipe):
    """Map texts to texts, whatever the task: a prefix names it (Raffel et al. 2020, sec. 2.4)."""

    task: Literal["text-to-text"] = "text-to-text"
    data: TasksData
    model: Model = TransformerModel(preset="t5-small")


class TextToTextRun(TextToTextVerbs, Run):
    """A model of several text-to-text tasks."""

    recipe: TextToTextRecipe
    _labels: dict[str, list[str]]
    """The labels of each task of kind "classify"."""

    @overload
    def classify(self, texts: str, task: str | None = None) -> Classification: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, texts: Iterable[str], task: str | None = None) -> list[Classification]: ...
    def classify(self, texts: str | Iterable[str], task: str | None = None) -> Classification | list[Classification]:
        """Return every label of a text, or of each text of a list, the most probable first.

        A probability is that of writing the label, among those of all labels.
        """
        return one_or_many(texts, lambda several: self._classify(several, self._classify_task(task)))

    def _classify(self, texts: Sequence[str], name: str) -> list[Classification]:
        """Return every label of each text for a task with labels."""
        sources, labels = self._ids(self._prefixed(texts, name)), self._labels[name]
        pairs = [(source, label) for source in sources for label in self.tokenizers[1].encode(labels)]
        source, target = (TokenStore(Ragged.from_rows(list(side))) for side in (zip(*pairs) if pairs else ((), ())))
        log_p = torch.zeros(len(pairs), dtype=torch.float64)
        for batch in self._batches(TranslationRows(source, target, self._special_tokens), shard=False):
            log_p[torch.from_numpy(batch.rows)] = sequence_log_probs(self._predictor, batch).double().cpu()
        return rank_labels(labels, log_p.view(len(texts), len(labels)))

    def _classify_task(self, task: str | None) -> str:
        """Return the name of the task to classify for, checked to have labels."""
        if task is None and len(self._labels) == 1:
            return next(iter(self._labels))
        if task is None:
            raise UserError(
                f"{self.folder}: name the task: --task {' or '.join(self._labels)}"
                if self._labels
                else f"{self.folder}: none of its tasks has labels"
            )
        if self._task_data(task).kind != "classify":
            raise UserError(
                f"--task {task} has no labels (kind = {self._task_data(task).kind!r}); use: regard translate --task {task}"
            )
        return task

    # tasks

    def _task_data(self, name: str) -> TaskData:
        if name not in self.recipe.data.tasks:
            raise UserError(f"--task {name}: {self.folder} has the tasks {', '.join(self.recipe.data.tasks)}; name one of them")
        return self.recipe.data.tasks[name]

    def _prefixed(self, texts: Sequence[str], name: str) -> list[str]:
        """Return texts with the prefix of a task; an empty text stays empty."""
        task, found = self._task_data(name), []
        for number, text in enumerate(texts, start=1):
            parts = text.count("\t") + 1
            if text.strip() and len(task.prefixes) > 1 and parts != len(task.prefixes):
                raise UserError(f"line {number} has {parts} texts; the task {name} reads {len(task.prefixes)}, separated by tabs")
            found.append(task.prefixed(text) if text.strip() else "")
        return found

    # files and examples

    @classmethod
    def _prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        super()._prepare(folder, recipe, data)
        labels = {
            name: sorted(set(pairs.target))
            for name, pairs in data.train.parts.items()
            if recipe.data.tasks[name].kind == "classify"
        }
        atomic_write(folder / LABELS_FILE, json.dumps(labels, ensure_ascii=False, indent=1) + "\n")

    def _open_files(self) -> None:
        self._labels = self._read_json(LABELS_FILE)

    def _too_long(self, examples: TaskPairs) -> str:
        return self.recipe.data.tasks[examples.task].too_long

    def _training_rows(self, examples: TaskMixture) -> tuple[Rows, int]:
        data = self.recipe.data
        self._check_labels()
        found = [super(TextToTextRun, self)._training_rows(pairs) for pairs in examples.parts.values()]
        counts = examples_per_epoch(
            [len(rows) for rows, _ in found],
            [data.tasks[name].weight for name in examples.parts],
            data.temperature,
            data.size_limit,
        )
        return MixtureRows([rows for rows, _ in found], counts), sum(too_long for _, too_long in found)

    def _evaluation_rows(self, examples: TaskMixture | TaskPairs, *, refuse: bool = False) -> Rows:
        if isinstance(examples, TaskMixture):
            parts = examples.parts.values()
            return MixtureRows([self._evaluation_rows(pairs, refuse=refuse) for pairs in parts], [len(pairs) for pairs in parts])
        if refuse and len(examples) < 3 and self._task_data(examples.task).kind == "regress":
            raise UserError(f"{examples.name} has {len(examples)} examples; a correlation needs at least three")
        return super()._evaluation_rows(examples, refuse=refuse)

    def _check_labels(self) -> None:
        """Refuse labels that the vocabulary cannot tell apart."""
        for name, labels in self._labels.items():
            if len(labels) < 2:
                raise UserError(f"data.tasks.{name} has only the label {labels[0]!r}; at least two are needed")
            written = self._as_written(labels)
            alike = [label for label, text in zip(labels, written) if not text or written.count(text) > 1]
            if alike:
                raise UserError(
                    f"data.tasks.{name}: the vocabulary cannot tell the label {alike[0]!r} from another; "
                    "raise tokens.size, or give it another word in labels"
                )

    def _as_written(self, texts: Sequence[str]) -> list[str]:
        """Return texts as the vocabulary writes them."""
        return self.tokenizers[1].decode(self.tokenizers[1].encode(texts))

    # scores

    def _validate(self, examples: Any, rows: Rows) -> dict[str, float]:
        """Return every task's loss, and with `train.evaluate_sentences` its main metric, and the means of both over tasks."""
        assert isinstance(rows, MixtureRows)
        scores: dict[str, float] = {}
        for (name, pairs), part in zip(examples.parts.items(), rows.parts):
            scores[f"{name}/valid_loss"] = super()._validate(pairs, part)["valid_loss"]
            if number := self.recipe.train.evaluate_sentences:
                spread = np.linspace(0, len(pairs) - 1, min(len(pairs), max(3, number))).astype(int)  # a file may be sorted
                some = pairs.select(spread.tolist())
                metric = MAIN_METRIC[self._task_data(name).kind]
                outputs = [found.text for found in self._best(some.source, beam=1)]
                scores[f"{name}/valid_{metric}"] = self._task_scores(name, outputs, some.target, samples=2)[0][metric].score
        losses, metrics = ([value for name, value in scores.items() if name.endswith("_loss") == loss] for loss in (True, False))
        scores["valid_loss"] = float(np.mean(losses))
        return {**scores, "valid_mean": float(np.mean(metrics))} if metrics else scores

    def _score(self, name: str, examples: Any) -> EvaluationResult:
        outputs = [found.text for found in self._best(examples.source)]
        scores, notes = self._task_scores(examples.task, outputs, examples.target)
        scores["perplexity"], confusion = self._perplexity(examples), None
        if self._task_data(examples.task).kind == "classify":
            labels = self._as_written(self._labels[examples.task])
            predicted = [text if text in labels else NO_LABEL for text in outputs]
            confusion = Confusion.count(self._as_written(examples.target), predicted, labels)
        return EvaluationResult(name, examples, outputs, scores, notes=notes, confusion=confusion)

    def _task_scores(
        self, name: str, outputs: Sequence[str], references: Sequence[str], *, samples: int = SAMPLES
    ) -> tuple[dict[str, Score], list[str]]:
        """Return the scores of outputs for a task, and notes on them."""
        match self._task_data(name).kind:
            case "summarise":
                return rouge_scores(outputs, references, samples=samples), []
            case "classify":
                baseline = max(references.count(label) for label in set(references)) / len(references)
                references = self._as_written(references)
                scores = classification_scores(outputs, references, samples=samples)
                notes = [f"baseline, the most frequent label: {baseline:.1%}"]
                return {"accuracy": accuracy(exact_matches(outputs, references)), **scores}, notes
            case "regress":
                numbers, missing = parse_numbers(outputs)
                notes = [f"{missing} of {len(outputs)} outputs are no numbers"] if missing else []
                return correlation_scores(numbers, np.array([float(text) for text in references]), samples=samples), notes
        return translation_scores(outputs, references, samples=samples), []

    def _compare(self, runs: dict[str, Any], examples: Any) -> list[ComparisonRow]:
        outputs = {name: [found.text for found in run._best(examples.source)] for name, run in runs.items()}
        match self._task_data(examples.task).kind:
            case "summarise":
                return compare_rouge(outputs, examples.target)
            case "classify" | "regress":
                references = self._as_written(examples.target)
                return compare_accuracy({name: exact_matches(texts, references) for name, texts in outputs.items()})
        return compare_systems(outputs, examples.target)


def parse_numbers(outputs: Sequence[str]) -> tuple[np.ndarray, int]:
    """Return the numbers in outputs, and how many are none: these count as the mean of the others."""
    found = np.full(len(outputs), np.nan)
    for i, text in enumerate(outputs):
        try:
            found[i] = float(text)
        except ValueError:
            continue
    known = np.isfinite(found)
    return np.where(known, found, found[known].mean() if known.any() else 0.0), int((~known).sum())


TEXT_TO_TEXT = Task(
    name="text-to-text",
    does="maps texts to texts",
    recipe=TextToTextRecipe,
    run=TextToTextRun,
    models=SEQ2SEQ_MODELS,
    verbs=("translate", "classify", "align", "embed"),
    encoder_decoder=True,
    searches=True,
    metrics=("valid_mean",),
    explains="translation",
    model_sizes=lambda recipe, vocabulary: vocabulary,
    lengths=lambda recipe, given: given or (30, 30),
    starter=text_to_text_recipe,
    card=TaskCard(
        uses="Its tasks, on texts like those it was trained on. Research and teaching.",
        misuses=f"{HUMAN_CHECK} every answer; passing its output off as a person's words.",
        limits=f"{TEXT_LIMITS} It can answer fluently and wrongly.",
        commands=('translate {} "…" --task NAME', 'classify {} "…" --task NAME'),
    ),
)
