"""Score a run on its test sets or on other files; compare runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard import distributed
from regard.corpus.examples import Pairs
from regard.corpus.pairs import read_pairs
from regard.errors import Mistake
from regard.files import replace_file
from regard.tasks.base import Result, Run
from regard.tasks.gold import score_against_truth, with_gold
from regard.tasks.text_to_text import TasksRun
from regard.tasks.translate import Translator


def evaluate(
    run: Run,
    *,
    source: Path | None = None,
    reference: Path | None = None,
    task: str | None = None,
    gold: Path | None = None,
    save: bool = True,
) -> list[Result]:
    """Score the recipe's test sets, or one pair of files, which may have a `gold` alignment, and write scores.json into the run
    folder. Of a run of several tasks, those of one `task`."""
    sets = chosen_sets(run, source, reference, task)
    if gold is not None:
        if source is None:
            raise Mistake(f"--gold {gold} aligns the words of two files: give them as --source and --reference")
        sets = {name: with_gold(run, examples, gold) for name, examples in sets.items()}
    results = [score_set(run, name, examples) for name, examples in sets.items()]
    if save and distributed.first():
        write_scores(run, results)
    return results


def chosen_sets(run: Run, source: Path | None, reference: Path | None, task: str | None = None) -> dict[str, Any]:
    if (source is None) != (reference is None):
        raise Mistake("--source and --reference go together")
    if isinstance(run, TasksRun):
        return sets_of_tasks(run, source, reference, task)
    if task is not None:
        raise Mistake(f"--task {task}: {run.folder} {run.does}, and has no other task; leave it out")
    if source is None or reference is None:
        return run.data.tests or {"valid": run.data.valid}
    if not isinstance(run, Translator):
        raise Mistake(
            f"--source and --reference are for a run that translates; {run.folder} {run.does}: "
            "name its test sets in the recipe (data.test)"
        )
    return {source.name.split(".")[0]: read_pairs([source, reference])}


def sets_of_tasks(run: TasksRun, source: Path | None, reference: Path | None, task: str | None) -> dict[str, Any]:
    if source is None or reference is None:
        chosen = None if task is None else run.task(task)
        return {name: pairs for name, pairs in run.data.tests.items() if chosen is None or pairs.task == task}
    if task is None:
        raise Mistake(f"say for which task these files are: --task {' or '.join(run.recipe.data.tasks)}")
    return {f"{task}/{source.name.split('.')[0]}": run.as_task(read_pairs([source, reference]), task)}


def score_set(run: Run, name: str, examples: Any) -> Result:
    result = run.score(name, examples)
    if isinstance(run, Translator) and isinstance(examples, Pairs) and examples.gold is not None:
        score_against_truth(run, result, examples.gold)
    return run.signed(result)


def write_scores(run: Run, results: Sequence[Result]) -> None:
    """scores.json: {set: {metric: {score, low, high, signature}}}; what the run said; BLEU by sentence length as a picture."""
    path = run.folder / "scores.json"
    known = run.read_json("scores.json")
    known |= {result.name: {metric: score.to_json() for metric, score in result.scores.items()} for result in results}
    replace_file(path, json.dumps(known, indent=1) + "\n")
    (run.folder / "outputs").mkdir(exist_ok=True)
    for result in results:
        if result.outputs:
            name = f"{result.name.replace('/', '-')}.txt"
            (run.folder / "outputs" / name).write_text("\n".join(result.outputs) + "\n", encoding="utf-8")
        if result.by_length:
            draw_by_length({run.folder.name: result.by_length}, run.folder / "pictures" / f"bleu-by-length-{result.name}.svg")


def draw_by_length(series: dict[str, list[dict[str, Any]]], path: Path) -> None:
    from regard.show.figures.curves import score_by_length as picture
    from regard.show.figures.style import save

    save(picture(series), path)


def compare_runs(
    runs: Sequence[Any], *, source: Path | None = None, reference: Path | None = None, task: str | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Paired tests of each run against the first, on the first one's test sets or on given files."""
    for run in runs:
        if type(run) is not type(runs[0]):
            raise Mistake(f"{runs[0].folder} {runs[0].does}, {run.folder} {run.does}: there is nothing to compare")
    if not hasattr(runs[0], "paired"):
        raise Mistake(
            f"{runs[0].folder} {runs[0].does}, for which there is no paired test; hold the intervals of evaluate "
            "against each other"
        )
    folders = [run.folder.name for run in runs]
    names = [name if folders.count(name) == 1 else f"{number} {name}" for number, name in enumerate(folders, start=1)]
    sets = chosen_sets(runs[0], source, reference, task)
    if not (source and reference) and not runs[0].data.tests:
        raise Mistake(f"{runs[0].folder} names no test sets; give --source and --reference")
    return {name: runs[0].paired(dict(zip(names, runs)), examples) for name, examples in sets.items()}
