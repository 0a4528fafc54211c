"""The training, validation and test sets that a recipe's `[data]` names."""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from regard.corpus import world_examples
from regard.corpus.examples import Examples, TaskMixture, TaskPairs, TextLines
from regard.corpus.image_files import read_images
from regard.corpus.pairs import read_pairs
from regard.corpus.questions import read_questions
from regard.corpus.task_mixture import as_task_pairs, with_root
from regard.corpus.text_files import read_labelled, read_tagged, read_text
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
    TasksData,
    TextData,
)

Kind = TypeVar("Kind", bound=Examples)
Set = TypeVar("Set")


@dataclass
class Dataset(Generic[Set]):
    train: Set
    valid: Set
    tests: dict[str, Set]


def read_dataset(data: BaseData, *, train: bool = True) -> Dataset[Any]:
    """Everything `[data]` names; without `train`, the training set is left empty where it is not needed to find the others."""
    if isinstance(data, TasksData):
        return read_tasks(data, train)
    assert isinstance(data, Data)
    found = read_single_task(data, train)
    if not isinstance(data, PairData) or not data.reverse:
        return found
    tests = {name: pairs.reversed() for name, pairs in found.tests.items()}
    return Dataset(found.train.reversed() if train else found.train, found.valid.reversed(), tests)


def read_tasks(data: TasksData, train: bool) -> Dataset[Any]:
    """The sets of every task; its test sets, or where it has none its validation set, are named task/set."""
    sets: dict[str, dict[str, TaskPairs]] = {"train": {}, "valid": {}, "tests": {}}
    for name, task in data.tasks.items():
        found = read_dataset(with_root(task, data.root), train=train)
        sets["valid"][name] = as_task_pairs(name, task, found.valid)
        if train:
            sets["train"][name] = as_task_pairs(name, task, found.train)
        sets["tests"] |= {f"{name}/{test}": as_task_pairs(name, task, pairs) for test, pairs in found.tests.items()} or {
            f"{name}/valid": sets["valid"][name]
        }
    return Dataset(TaskMixture(sets["train"]), TaskMixture(sets["valid"]), sets["tests"])


def read_single_task(data: Data, train: bool) -> Dataset[Any]:
    nothing = TextLines([])
    if isinstance(data.world, AlgorithmWorld):
        return read_algorithm(data.world, train)
    if data.world is not None:
        sizes = {"train": data.world.number, "valid": data.world.held_out, "test": data.world.held_out}
        if isinstance(data.world, ShapesWorld):
            sizes["composition"] = data.world.held_out
        sets = {
            split: world_examples.world_examples(data, split, number)
            for split, number in sizes.items()
            if train or split != "train"
        }
        return Dataset(sets.pop("train", nothing), sets.pop("valid"), sets)
    tests = {name: read_files(data, files) for name, files in data.test.items()}
    if data.held_out:
        training, valid, test = hold_out(read_files(data, data.train), data.held_out)
        return Dataset(training, valid, {"held_out": test, **tests})
    return Dataset(read_files(data, data.train) if train else nothing, read_files(data, data.valid), tests)


def read_algorithm(world: AlgorithmWorld, train: bool) -> Dataset[Any]:
    """Training and validation pairs of the lengths trained on, and a test set of each length tested on."""
    trained = (world.shortest, world.longest)
    training = world_examples.algorithm_examples(world, "train", world.number, *trained) if train else TextLines([])
    tests = {
        f"length {n}": world_examples.algorithm_examples(world, "test", world.held_out, n, n)
        for n in world.tests or [world.longest]
    }
    return Dataset(training, world_examples.algorithm_examples(world, "valid", world.held_out, *trained), tests)


def read_files(data: Data, files: list[str]) -> Any:
    """Examples of the kind that the task wants."""
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


def hold_out(examples: Kind, number: int) -> tuple[Kind, Kind, Kind]:
    """Training, validation and test examples that share no text and no picture: those with the smallest hashes are set aside."""
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
