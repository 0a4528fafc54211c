"""Score a run on its test sets or on other files; compare runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard import distributed
from regard.corpus.examples import SentencePairs
from regard.corpus.text_files import read_pairs
from regard.errors import UserError
from regard.files import atomic_write
from regard.tasks.base import EvaluationResult, Run
from regard.tasks.gold import add_gold_scores, attach_gold_alignments
from regard.tasks.text_to_text import TextToTextRun
from regard.tasks.translate import TranslateRun


def evaluate(
    run: Run,
    *,
    source: Path | None = None,
    reference: Path | None = None,
    task: str | None = None,
    gold: Path | None = None,
    save: bool = True,
) -> list[EvaluationResult]:
    """Score the recipe's test sets, or one pair of files, which may have a `gold` alignment, and write scores.json into the run
    folder. Of a run of several tasks, those of one `task`."""
    sets = select_sets(run, source, reference, task)
    if gold is not None:
        if source is None:
            raise UserError(f"--gold {gold} aligns the words of two files: give them as --source and --reference")
        sets = {name: attach_gold_alignments(run, examples, gold) for name, examples in sets.items()}
    results = [score_set(run, name, examples) for name, examples in sets.items()]
    if save and distributed.is_main():
        write_scores(run, results)
    return results


def select_sets(run: Run, source: Path | None, reference: Path | None, task: str | None = None) -> dict[str, Any]:
    if (source is None) != (reference is None):
        raise UserError("--source and --reference go together")
    if isinstance(run, TextToTextRun):
        return select_task_sets(run, source, reference, task)
    if task is not None:
        raise UserError(f"--task {task}: {run.folder} {run.does}, and has no other task; leave it out")
    if source is None or reference is None:
        return run.data.tests or {"valid": run.data.valid}
    if not isinstance(run, TranslateRun):
        raise UserError(
            f"--source and --reference are for a run that translates; {run.folder} {run.does}: "
            "name its test sets in the recipe (data.test)"
        )
    return {source.name.split(".")[0]: read_pairs([source, reference])}


def select_task_sets(run: TextToTextRun, source: Path | None, reference: Path | None, task: str | None) -> dict[str, Any]:
    if source is None or reference is None:
        chosen = None if task is None else run.task(task)
        return {name: pairs for name, pairs in run.data.tests.items() if chosen is None or pairs.task == task}
    if task is None:
        raise UserError(f"say for which task these files are: --task {' or '.join(run.recipe.data.tasks)}")
    return {f"{task}/{source.name.split('.')[0]}": run.as_task(read_pairs([source, reference]), task)}


def score_set(run: Run, name: str, examples: Any) -> EvaluationResult:
    result = run.score(name, examples)
    if isinstance(run, TranslateRun) and isinstance(examples, SentencePairs) and examples.gold is not None:
        add_gold_scores(run, result, examples.gold)
    return run.signed(result)


def write_scores(run: Run, results: Sequence[EvaluationResult]) -> None:
    """scores.json: {set: {metric: {score, low, high, signature}}}; what the run said; BLEU by sentence length as a picture."""
    path = run.folder / "scores.json"
    known = run.read_json("scores.json")
    known |= {result.name: {metric: score.to_json() for metric, score in result.scores.items()} for result in results}
    atomic_write(path, json.dumps(known, indent=1) + "\n")
    (run.folder / "outputs").mkdir(exist_ok=True)
    for result in results:
        if result.outputs:
            name = f"{result.name.replace('/', '-')}.txt"
            (run.folder / "outputs" / name).write_text("\n".join(result.outputs) + "\n", encoding="utf-8")
        if result.by_length:
            draw_by_length({run.folder.name: result.by_length}, run.folder / "figures" / f"bleu-by-length-{result.name}.svg")


def draw_by_length(series: dict[str, list[dict[str, Any]]], path: Path) -> None:
    from regard.show.figures.curves import score_by_length as picture
    from regard.show.figures.style import save_figure

    save_figure(picture(series), path)


def compare_runs(
    runs: Sequence[Any], *, source: Path | None = None, reference: Path | None = None, task: str | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Paired tests of each run against the first, on the first one's test sets or on given files."""
    for run in runs:
        if type(run) is not type(runs[0]):
            raise UserError(f"{runs[0].folder} {runs[0].does}, {run.folder} {run.does}: there is nothing to compare")
    if not hasattr(runs[0], "paired"):
        raise UserError(
            f"{runs[0].folder} {runs[0].does}, for which there is no paired test; hold the intervals of evaluate "
            "against each other"
        )
    folders = [run.folder.name for run in runs]
    names = [name if folders.count(name) == 1 else f"{number} {name}" for number, name in enumerate(folders, start=1)]
    sets = select_sets(runs[0], source, reference, task)
    if not (source and reference) and not runs[0].data.tests:
        raise UserError(f"{runs[0].folder} names no test sets; give --source and --reference")
    return {name: runs[0].paired(dict(zip(names, runs)), examples) for name, examples in sets.items()}
