"""Read the training, validation and test sets that a recipe's `[data]` names, from files or an embedded world."""

import hashlib
import math
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from regard.corpus import world_examples
from regard.corpus.examples import Examples, SentencePairs, TaskMixture, TaskPairs, TextLines
from regard.corpus.image_files import read_images
from regard.corpus.questions import read_questions
from regard.corpus.text_files import read_labelled, read_pairs, read_tagged, read_text
from regard.errors import UserError
from regard.recipe import (
    AlgorithmWorld,
    BaseData,
    BaseImageData,
    CaptionedImageData,
    Data,
    LabelledData,
    LabelledImageData,
    PairData,
    QuestionData,
    ShapesWorld,
    TaggedData,
    TaskData,
    TasksData,
    TextData,
)

ExamplesT = TypeVar("ExamplesT", bound=Examples)
SetT = TypeVar("SetT")


@dataclass
class Dataset(Generic[SetT]):
    train: SetT
    valid: SetT
    tests: dict[str, SetT]


def read_dataset(data: BaseData, *, train: bool = True) -> Dataset[Any]:
    """Read everything `[data]` names; without `train`, leave the training set empty unless it is needed to find the others."""
    if isinstance(data, TasksData):
        return _read_tasks(data, train)
    assert isinstance(data, Data)
    found = _read_single_task(data, train)
    if not isinstance(data, PairData) or not data.reverse:
        return found
    tests = {name: pairs.reversed() for name, pairs in found.tests.items()}
    return Dataset(found.train.reversed() if train else found.train, found.valid.reversed(), tests)


def _read_tasks(data: TasksData, train: bool) -> Dataset[Any]:
    """Read the sets of every task; its test sets, or its validation set if it has none, are named task/set."""
    sets: dict[str, dict[str, TaskPairs]] = {"train": {}, "valid": {}, "tests": {}}
    for name, task in data.tasks.items():
        found = read_dataset(_with_root(task, data.root), train=train)
        sets["valid"][name] = as_task_pairs(name, task, found.valid)
        if train:
            sets["train"][name] = as_task_pairs(name, task, found.train)
        sets["tests"] |= {f"{name}/{test}": as_task_pairs(name, task, pairs) for test, pairs in found.tests.items()} or {
            f"{name}/valid": sets["valid"][name]
        }
    return Dataset(TaskMixture(sets["train"]), TaskMixture(sets["valid"]), sets["tests"])


def _read_single_task(data: Data, train: bool) -> Dataset[Any]:
    empty = TextLines([])
    if isinstance(data.world, AlgorithmWorld):
        return _read_algorithm(data.world, train)
    if data.world is not None:
        sizes = {"train": data.world.number, "valid": data.world.held_out, "test": data.world.held_out}
        if isinstance(data.world, ShapesWorld):
            sizes["composition"] = data.world.held_out
        sets = {
            split: world_examples.world_examples(data, split, number)
            for split, number in sizes.items()
            if train or split != "train"
        }
        return Dataset(sets.pop("train", empty), sets.pop("valid"), sets)
    tests = {name: _read_files(data, files) for name, files in data.test.items()}
    if data.held_out:
        training, valid, test = hold_out(_read_files(data, data.train), data.held_out)
        return Dataset(training, valid, {"held_out": test, **tests})
    return Dataset(_read_files(data, data.train) if train else empty, _read_files(data, data.valid), tests)


def _read_algorithm(world: AlgorithmWorld, train: bool) -> Dataset[Any]:
    """Generate training and validation pairs of the training lengths, and a test set of each test length."""
    trained = (world.shortest, world.longest)
    training = world_examples.algorithm_examples(world, "train", world.number, *trained) if train else TextLines([])
    tests = {
        f"length {n}": world_examples.algorithm_examples(world, "test", world.held_out, n, n)
        for n in world.tests or [world.longest]
    }
    return Dataset(training, world_examples.algorithm_examples(world, "valid", world.held_out, *trained), tests)


def _read_files(data: Data, files: list[str]) -> Any:
    """Read files as examples of the kind that the task needs."""
    read: Any
    match data:
        case PairData():
            read = partial(read_pairs, columns=data.columns, fields=data.fields)
        case LabelledData():
            read = partial(read_labelled, text=data.text, text_pair=data.text_pair, label=data.label)
        case QuestionData():
            read = partial(read_questions, unanswerable=data.unanswerable)
        case TaggedData():
            read = partial(read_tagged, word=data.word, tag=data.tag)
        case LabelledImageData():
            read = partial(read_images, label=data.label, path=data.path, offset=data.offset)
        case CaptionedImageData():
            read = partial(read_images, captions=data.captions, path=data.path, offset=data.offset)
        case BaseImageData():
            read = partial(read_images, path=data.path, offset=data.offset)
        case TextData():
            read = partial(read_text, column=data.column, keep_empty=data.stream)
    return read([Path(data.root, file) for file in files])


def hold_out(examples: ExamplesT, number: int) -> tuple[ExamplesT, ExamplesT, ExamplesT]:
    """Split examples into training, validation and test sets without a shared text or image: the smallest hashes are held out."""
    keys = examples.keys()
    hashes = {key: hashlib.sha256(key.encode()).digest() for key in keys}
    if len(hashes) < 4 * number:
        raise UserError(
            f"{examples.name} has {len(hashes):,} distinct examples; "
            f"data.held_out = {number} takes twice as many: set at most {len(hashes) // 4}"
        )
    ranked = sorted(hashes, key=lambda key: hashes[key])
    aside = dict.fromkeys(ranked[:number], "valid") | dict.fromkeys(ranked[number : 2 * number], "test")
    split: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    for index, key in enumerate(keys):
        split[aside.get(key, "train")].append(index)
    return examples.select(split["train"]), examples.select(split["valid"]), examples.select(split["test"])


def as_task_pairs(name: str, task: TaskData, pairs: SentencePairs) -> TaskPairs:
    """Return the pairs of a task as the model reads and generates them."""
    targets = [_target_text(task, pairs, i) for i in range(len(pairs))] if task.labels or task.kind == "regress" else pairs.target
    return TaskPairs([task.prefixed(text) for text in pairs.source], targets, pairs.name, pairs.lines, task=name)


def _target_text(task: TaskData, pairs: SentencePairs, index: int) -> str:
    """Return the text that stands for a label or a number."""
    target = pairs.target[index]
    if task.kind == "regress":
        return round_to_step(target, task.step, pairs.where(index))
    if target not in task.labels:
        raise UserError(
            f"{pairs.where(index)} has the label {target!r}, for which `labels` has no word ({', '.join(task.labels)}); "
            "add it there"
        )
    return task.labels[target]


def round_to_step(target: str, step: float, where: str) -> str:
    """Return the nearest multiple of a step, with as many decimals as the step has."""
    try:
        number = float(target)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where} has {target!r} where a number should be (kind = 'regress')")
    decimals = max(0, -int(Decimal(str(step)).normalize().as_tuple().exponent))
    return f"{round(number / step) * step + 0.0:.{decimals}f}"


def _with_root(task: TaskData, root: str) -> TaskData:
    """Return the task with its files relative to a folder."""
    return task.model_copy(update={"root": str(Path(root, task.root))})
