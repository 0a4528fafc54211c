"""Score a run on its test sets or on other files; compare runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from regard import distributed
from regard.corpus.examples import Examples, SentencePairs
from regard.errors import UserError
from regard.files import atomic_write, file_name, writing_into
from regard.progress import show_progress, timed
from regard.run.evaluation_sets import select_sets
from regard.scoring import TranslationMetric, open_metric
from regard.tasks.base import Run
from regard.tasks.shared.data_record import trained_examples
from regard.tasks.shared.gold import add_gold_scores, attach_gold_alignments
from regard.tasks.starters.starter import StarterOptions
from regard.tasks.task import ComparisonRow, EvaluationResult
from regard.tasks.translate import TranslateRun
from regard.training.log import append_event, note


def evaluate(
    run: Run,
    *,
    data: Path | None = None,
    source: Path | None = None,
    reference: Path | None = None,
    task: str | None = None,
    gold: Path | None = None,
    columns: StarterOptions | None = None,
    metrics: Sequence[str] = (),
    save: bool = True,
) -> list[EvaluationResult]:
    """Score the recipe's test sets, a file of `data`, or a pair of files, and write scores.json into the run folder.

    A pair of files may have a file of `gold` alignments. `columns` are those of the data, if not the recipe's. Of a text-to-text
    run, `task` selects the sets of one task. `metrics` are scored besides the usual ones of a translation ("comet", "chrf++").
    """
    if metrics and run.task.name != "translate":
        raise UserError(f"--metric {metrics[0]} scores translations; {run.folder} {run.task.does}; leave it out")
    if save and run._ensemble:
        raise UserError(
            f"the scores of an ensemble are not those of {run.folder}, and cannot be saved there; leave out save=True"
        )
    opened = {name: open_metric(name, run.device.type) for name in metrics}  # before anything is decoded
    sets = select_sets(run, source, reference, task, data, columns)
    if gold is not None:
        if source is None:
            raise UserError(f"--gold {gold} aligns the words of two files: give them as --source and --reference")
        sets = {name: attach_gold_alignments(run, examples, gold) for name, examples in sets.items()}
    seconds: dict[str, float] = {}
    results = []
    for name, examples in sets.items():
        with timed(seconds, f"scoring_{name}"):
            results.append(score_set(run, name, examples, opened))
    if save and distributed.is_main():
        with timed(seconds, "score_files"):
            write_scores(run, results)
        append_event(run.folder / "log.jsonl", "scored", seconds)
    return results


def score_set(
    run: Run, name: str, examples: Examples, metrics: Mapping[str, TranslationMetric] | None = None
) -> EvaluationResult:
    """Score one evaluation set; `metrics` are more of a translation than the task's own."""
    with show_progress(f"scoring {name}"):
        result = run._score(name, examples)
    for metric, score in (metrics or {}).items():
        pairs = cast(SentencePairs, examples)
        result.scores[metric] = score(pairs.source, result.outputs, pairs.target)
    if isinstance(examples, SentencePairs) and examples.gold is not None:
        add_gold_scores(cast(TranslateRun, run), result, examples.gold)
    return run._sign(result)


def write_scores(run: Run, results: Sequence[EvaluationResult]) -> None:
    """Write scores.json ({set: {metric: {score, low, high, signature}}}), classes.json with the scores of every class, the
    outputs, and figures: BLEU by length, the confusion matrix."""
    update_json(
        run,
        "scores.json",
        {result.name: {metric: score.to_json() for metric, score in result.scores.items()} for result in results},
    )
    update_json(
        run, "classes.json", {result.name: result.confusion.to_json() for result in results if result.confusion is not None}
    )
    for result in results:
        if result.outputs:
            with writing_into(run.folder / "outputs"):
                atomic_write(run.folder / "outputs" / f"{file_name(result.name)}.txt", "\n".join(result.outputs) + "\n")
        write_figures(run, result)


def update_json(run: Run, name: str, sets: Mapping[str, object]) -> None:
    """Replace the entries of these sets in a JSON file of the run folder; nothing without any."""
    if sets:
        atomic_write(run.folder / name, json.dumps({**run._read_json(name), **sets}, indent=1, ensure_ascii=False) + "\n")


def write_figures(run: Run, result: EvaluationResult) -> None:
    """Write the figures of one evaluation set, of what it measures."""
    from regard.show.figures.curves import score_by_length
    from regard.show.figures.figure_files import save_figure
    from regard.show.figures.matrix import confusion_matrix

    folder, name = run.folder / "figures", file_name(result.name)
    if result.by_length:
        save_figure(score_by_length({run.folder.name: result.by_length}), folder / f"bleu-by-length-{name}.svg")
    if result.confusion is not None:
        save_figure(confusion_matrix(result.confusion, title=result.name), folder / f"confusion-{name}.svg")


def compare(
    *runs: Run | str | Path, source: str | Path | None = None, reference: str | Path | None = None, task: str | None = None
) -> dict[str, list[ComparisonRow]]:
    """Test runs, or run folders, against the first by paired significance tests; return the rows of each test set.

    The test sets are those of the first run, or the given files.
    """
    from regard.run.load import load_native

    if len(runs) < 2:
        raise UserError("compare needs at least two runs, the baseline first")
    opened = [run if isinstance(run, Run) else load_native(Path(run)) for run in runs]
    files = {name: None if path is None else Path(path) for name, path in (("source", source), ("reference", reference))}
    return compare_runs(opened, **files, task=task)


def compare_runs(
    runs: Sequence[Run], *, source: Path | None = None, reference: Path | None = None, task: str | None = None
) -> dict[str, list[ComparisonRow]]:
    """Test each run against the first (paired), on the first one's test sets or on given files."""
    first = runs[0]
    for run in runs:
        if run.task.run is not first.task.run:
            raise UserError(f"{first.folder} {first.task.does}, {run.folder} {run.task.does}: compare runs of one task")
    folders = [run.folder.name for run in runs]
    names = [name if folders.count(name) == 1 else f"{number} {name}" for number, name in enumerate(folders, start=1)]
    sets = select_sets(first, source, reference, task)
    if not (source and reference) and not first.data.tests:
        raise UserError(f"{first.folder} names no test sets; give --source and --reference")
    for warning in training_overlaps(runs, sets):
        note(warning)
    return {name: first._compare(dict(zip(names, runs)), examples) for name, examples in sets.items()}


def training_overlaps(runs: Sequence[Run], sets: Mapping[str, Examples]) -> list[str]:
    """Return a warning for every run and test set where test examples were in the run's training data, by their hashes."""
    found = []
    for run in runs:
        for name, examples in sets.items():
            if known := trained_examples(run.folder, examples):
                number = len(set(examples.keys()))
                found.append(
                    f"warning: {run.folder} was trained on {known:,} of the {number:,} distinct examples of {name}: its scores "
                    "there are not those of unseen data; compare on files that neither run was trained on (--source, --reference)"
                )
    return found
