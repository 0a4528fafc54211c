"""The sets that a run is scored on: the test sets of its recipe, a file of data, or a pair of files."""

from dataclasses import replace
from pathlib import Path
from typing import cast

from regard.corpus.dataset import as_task_pairs, read_files
from regard.corpus.examples import Examples, LabelledTexts, SentencePairs
from regard.corpus.table import TABLE_KINDS, file_kind, is_natural_number
from regard.corpus.text_files import read_pairs
from regard.errors import UserError
from regard.recipe import Data, LabelledData, PairData, TextData
from regard.tasks.base import Run
from regard.tasks.shared.labels import label_ids
from regard.tasks.starters.columns import find_labelled, find_text, read_table
from regard.tasks.starters.starter import StarterOptions
from regard.tasks.text_to_text import TextToTextRun
from regard.training.log import note


def select_sets(
    run: Run,
    source: Path | None,
    reference: Path | None,
    task: str | None = None,
    data: Path | None = None,
    columns: StarterOptions | None = None,
) -> dict[str, Examples]:
    """Return the evaluation sets by name: given files, the recipe's test sets, or without any the validation set."""
    if (source is None) != (reference is None):
        raise UserError("--source and --reference go together")
    if data is not None and source is not None:
        raise UserError(f"--data {data} and --source {source} are two ways to name the examples; give one")
    if columns is not None and data is None:
        raise UserError("--text, --text-pair and --label name columns of --data FILE; give that file")
    if run.task.name == "text-to-text":
        return select_task_sets(cast(TextToTextRun, run), source, reference, task, data)
    if task is not None:
        raise UserError(f"--task {task}: {run.folder} {run.task.does}, and has no other task; leave it out")
    if data is not None:
        return {set_name(data): read_given(run, data, columns or StarterOptions())}
    if source is None or reference is None:
        return run.data.tests or {"valid": run.data.valid}
    if "translate" not in run.task.verbs:
        raise UserError(
            f"--source and --reference are for a run that translates; {run.folder} {run.task.does}: "
            "give --data FILE, or name its test sets in the recipe (data.test)"
        )
    return {set_name(source): read_pairs([source, reference])}


def set_name(file: Path) -> str:
    """Return the name of the set in a file."""
    return file.name.split(".")[0]


def select_task_sets(
    run: TextToTextRun, source: Path | None, reference: Path | None, task: str | None, data: Path | None
) -> dict[str, Examples]:
    """Return the evaluation sets of all tasks, or of one."""
    if data is None and (source is None or reference is None):
        if task is not None:
            run._task_data(task)
        return {name: pairs for name, pairs in run.data.tests.items() if task is None or pairs.task == task}
    if task is None:
        raise UserError(f"name the task of these files: --task {' or '.join(run.recipe.data.tasks)}")
    settings = run._task_data(task)
    files = [file for file in (source, reference) if file is not None]
    pairs = read_pairs(files) if data is None else read_table_pairs(settings, data)
    return {f"{task}/{set_name(data or files[0])}": as_task_pairs(task, settings, pairs)}


def read_table_pairs(settings: PairData, data: Path) -> SentencePairs:
    """Read a table of parallel text in the direction of the recipe."""
    pairs = cast(SentencePairs, read_files(settings, [str(data.absolute())]))
    return pairs.reversed() if settings.reverse else pairs


def read_given(run: Run, data: Path, columns: StarterOptions) -> Examples:
    """Read a file as examples of the run's task, with the columns of its recipe, or those that the user names.

    A Hugging Face folder has no recipe: its columns are found by their names and by what is in them.
    """
    settings = run.recipe.data
    assert isinstance(settings, Data)
    if isinstance(settings, PairData):
        return read_table_pairs(settings, data)
    named = columns != StarterOptions()
    if named and not isinstance(settings, LabelledData | TextData):
        raise UserError(f"--text, --text-pair, --label: {run.folder} {run.task.does}; its files have no such columns")
    if named or run._is_pretrained:
        settings = settings.model_copy(update=find_columns(run, settings, data, columns))
    examples = read_files(settings, [str(data.absolute())])
    return with_known_labels(run, examples) if isinstance(examples, LabelledTexts) and run.task.name == "classify" else examples


def find_columns(run: Run, settings: Data, data: Path, columns: StarterOptions) -> dict[str, int | str | None]:
    """Return the columns of a table, and print what was understood."""
    if isinstance(settings, TextData):
        is_table = file_kind(data) in TABLE_KINDS and (columns.text is not None or file_kind(data) != ".tsv")
        return {"column": find_text(read_table(data), columns).name} if is_table else {}
    if not isinstance(settings, LabelledData):
        return {}
    table = read_table(data)
    if not run._is_pretrained:  # the others are those of the recipe
        given = {"text": columns.text, "text_pair": columns.text_pair, "label": columns.label}
        return {role: table.given(name, f"--{role.replace('_', '-')}").name for role, name in given.items() if name is not None}
    found = find_labelled(table, columns, numbers=run.task.name == "regress")
    chosen = {"text": found.text, "text_pair": found.text_pair, "label": found.label}
    described = ", ".join(f"{column} is the {role.replace('_', ' ')}" for role, column in chosen.items() if column is not None)
    note(f"{data}: {described}; choose others with --text, --text-pair, --label")
    return {role: None if column is None else column.name for role, column in chosen.items()}


def with_known_labels(run: Run, examples: LabelledTexts) -> LabelledTexts:
    """Return examples with the names of the model's labels, which files may also give by number, as GLUE's do; refuse others."""
    labels: list[str] = run.labels  # type: ignore[attr-defined]
    numbers = run._is_pretrained and all(is_natural_number(label) and int(label) < len(labels) for label in examples.label)
    if numbers and not set(examples.label) & set(labels):
        examples = replace(examples, label=[labels[int(label)] for label in examples.label])
    label_ids(labels, examples, examples.label)
    return examples
