"""Read the training, validation and test sets that a recipe's `[data]` names, from files or an embedded world."""

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from regard import rng
from regard.corpus.examples import (
    Examples,
    ImageExamples,
    LabelledTexts,
    QuestionExamples,
    SentencePairs,
    TaggedSentences,
    TaskMixture,
    TaskPairs,
    TextLines,
)
from regard.corpus.held_out import hold_out, hold_out_documents, hold_out_end
from regard.corpus.image_files import read_images
from regard.corpus.questions import read_questions
from regard.corpus.text_files import read_labelled, read_pairs, read_tagged, read_text
from regard.errors import UserError
from regard.recipe import (
    AlgorithmWorld,
    BaseData,
    BaseImageData,
    BilingualWorld,
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
from regard.worlds import algorithms, bilingual, shapes

UNALIGNED = "–"
"""The tag of an unaligned word."""
SetT = TypeVar("SetT")
ExamplesT = TypeVar("ExamplesT", bound=Examples)


@dataclass
class Dataset(Generic[SetT]):
    train: SetT
    valid: SetT
    tests: dict[str, SetT]


def read_dataset(data: BaseData, *, train: bool = True) -> Dataset[Examples | TaskMixture]:
    """Read everything `[data]` names; without `train`, leave the training set empty unless it is needed to find the others."""
    if isinstance(data, TasksData):
        return _read_tasks(data, train)
    assert isinstance(data, Data)
    found = _read_single_task(data, train)
    if train and data.limit:
        found.train = draw_examples(found.train, data.limit, data.limit_seed or 0)
    if not isinstance(data, PairData) or not data.reverse:
        return found
    tests = {name: pairs.reversed() for name, pairs in found.tests.items()}
    return Dataset(found.train.reversed() if train else found.train, found.valid.reversed(), tests)


def _read_tasks(data: TasksData, train: bool) -> Dataset[Any]:
    """Read the sets of every task; its test sets, or its validation set if it has none, are named task/set."""
    sets: dict[str, dict[str, TaskPairs]] = {"train": {}, "valid": {}, "tests": {}}
    for name, task in data.tasks.items():
        found: Dataset[Any] = read_dataset(task.model_copy(update={"root": str(Path(data.root, task.root))}), train=train)
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
        sets = {split: world_examples(data, split, number) for split, number in sizes.items() if train or split != "train"}
        return Dataset(sets.pop("train", empty), sets.pop("valid"), sets)
    tests = {name: read_files(data, files) for name, files in data.test.items()}
    if data.held_out:
        training, valid, test = _hold_out(data, read_files(data, data.train))
        return Dataset(training, valid, {**({"held_out": test} if len(test) else {}), **tests})
    return Dataset(read_files(data, data.train) if train else empty, read_files(data, data.valid), tests)


def draw_examples(examples: ExamplesT, number: int, seed: int) -> ExamplesT:
    """Return this many examples, drawn at random, in their order; the first ones drawn are the same for every number."""
    if number > len(examples):
        raise UserError(f"data.limit = {number}: there are {len(examples):,} training examples; set at most {len(examples)}")
    drawn = np.argsort(rng.hash64(seed, np.arange(len(examples))), kind="stable")[:number]
    return examples.select(sorted(drawn.tolist()))


def _read_algorithm(world: AlgorithmWorld, train: bool) -> Dataset[Any]:
    """Generate training and validation pairs of the training lengths, and a test set of each test length."""
    trained = (world.shortest, world.longest)
    training = algorithm_examples(world, "train", world.number, *trained) if train else TextLines([])
    tests = {f"length {n}": algorithm_examples(world, "test", world.held_out, n, n) for n in world.tests or [world.longest]}
    return Dataset(training, algorithm_examples(world, "valid", world.held_out, *trained), tests)


def read_files(data: Data, files: list[str]) -> Examples:
    """Read files as examples of the kind that the task needs."""
    paths = [Path(data.root, file) for file in files]
    match data:
        case PairData():
            return read_pairs(paths, columns=data.columns, fields=data.fields)
        case LabelledData():
            return read_labelled(paths, text=data.text, text_pair=data.text_pair, label=data.label)
        case QuestionData():
            return read_questions(paths, unanswerable=data.unanswerable)
        case TaggedData():
            return read_tagged(paths, word=data.word, tag=data.tag)
        case LabelledImageData():
            return read_images(paths, label=data.label, path=data.path, offset=data.offset)
        case CaptionedImageData():
            return read_images(paths, captions=data.captions, path=data.path, offset=data.offset)
        case BaseImageData():
            return read_images(paths, path=data.path, offset=data.offset)
    assert isinstance(data, TextData)
    return read_text(paths, column=data.column, keep_empty=data.stream)


def _hold_out(data: Data, examples: Any) -> tuple[Any, Any, Any]:
    """Hold out what `data.held_out` says: single texts, documents, or the end of a stream."""
    if isinstance(data, TextData) and data.stream:
        return hold_out_end(examples, data.held_out, data.held_out_test)
    if isinstance(data, TextData) and data.held_out_documents:
        return hold_out_documents(examples, data.held_out, data.held_out_test)
    return hold_out(examples, data.held_out, data.held_out_test)


def as_task_pairs(name: str, task: TaskData, pairs: SentencePairs) -> TaskPairs:
    """Return the pairs of a task as the model reads and generates them."""
    targets = [_target_text(task, pairs, i) for i in range(len(pairs))] if task.labels or task.kind == "regress" else pairs.target
    return TaskPairs([task.prefixed(text) for text in pairs.source], targets, name=pairs.name, lines=pairs.lines, task=name)


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


def world_examples(data: Data, split: str, number: int) -> Examples:
    """Generate examples of the kind that the task needs: translation pairs; sentences; words tagged with their translation;
    sentences with an "it" labelled or paired with its German gender; words to find in the German sentence; images."""
    world = data.world
    if isinstance(world, ShapesWorld):
        return shape_examples(data, world, split, number)
    assert isinstance(world, BilingualWorld)
    name = f"world {world.kind} {split}"
    labelled = isinstance(data, LabelledData) or (isinstance(data, TaskData) and data.kind == "classify")
    share = 1.0 if labelled else world.pronoun_fraction
    gold = bilingual.generate(number, world.seed, level=world.level, split=split, pronoun_fraction=share)
    match data:
        case TaskData(kind="classify"):
            return SentencePairs([pair.source for pair in gold], _genders(gold), name=name)
        case PairData():
            return SentencePairs([pair.source for pair in gold], [pair.target for pair in gold], name=name, gold=gold)
        case TextData():
            return _text_lines(gold, data.language, name)
        case TaggedData():
            return TaggedSentences([pair.source.split() for pair in gold], [_glosses(pair) for pair in gold], name=name)
        case LabelledData():
            return LabelledTexts([pair.source for pair in gold], _genders(gold), name=name)
    assert isinstance(data, QuestionData)
    return _question_examples(gold, data.unanswerable, name)


def shape_examples(data: Data, world: ShapesWorld, split: str, number: int) -> ImageExamples:
    """Generate images with labels or captions, and their annotations."""
    assert isinstance(data, BaseImageData)
    gold = shapes.generate(number, world.seed, split=split, size=data.height_width[0], shapes=world.shapes)
    found = ImageExamples([image.pixels() for image in gold], name=f"world {world.kind} {split}", gold=gold)
    if isinstance(data, LabelledImageData):
        return replace(found, label=[image.label(data.label_attribute) for image in gold])
    return replace(found, captions=[[caption.text for caption in image.captions] for image in gold])


def _genders(gold: list[bilingual.SentencePair]) -> list[str]:
    """Return the gender of each antecedent of "it"."""
    return [bilingual.PRONOUN_GENDER[pair.pronouns[0].form] for pair in gold]


def algorithm_examples(world: AlgorithmWorld, split: str, number: int, shortest: int, longest: int) -> SentencePairs:
    """Generate sources of these lengths and the algorithm's outputs."""
    pairs = algorithms.generate(
        world.kind,
        number,
        world.seed,
        shortest=shortest,
        longest=longest,
        split=split,
        digit_order=world.digit_order,
        pad=world.pad,
    )
    return SentencePairs([pair.source for pair in pairs], [pair.target for pair in pairs], name=f"world {world.kind} {split}")


def _text_lines(gold: list[bilingual.SentencePair], language: str, name: str) -> TextLines:
    """Return sentences in one language; in both, each is followed by its translation, and the two are one document."""
    if language != "both":
        return TextLines([pair.source if language == "source" else pair.target for pair in gold], name=name)
    numbers = [3 * i + side for i in range(len(gold)) for side in (1, 2)]
    return TextLines([text for pair in gold for text in (pair.source, pair.target)], name=name, lines=numbers)


def _glosses(pair: bilingual.SentencePair) -> list[str]:
    """Return the German word that each English word is aligned with, the first of several: "the" is der, die, das …"""
    target = pair.target.split()
    found = dict(reversed(pair.alignment))
    return [target[found[i]].strip(".,").lower() if i in found else UNALIGNED for i in range(len(pair.source.split()))]


def _question_examples(gold: list[bilingual.SentencePair], unanswerable: bool, name: str) -> QuestionExamples:
    """Ask for the translation of an English word in the German sentence. With `unanswerable`, a third of the words are
    from another sentence, and neither they nor their translations occur here."""
    found = QuestionExamples([], [], [], name=name)
    candidates = [unique_aligned_words(pair) for pair in gold]
    for number, (pair, words) in enumerate(zip(gold, candidates)):
        if not words:
            continue
        word, (start, end) = words[int(rng.hash64(number)) % len(words)]
        others = candidates[number - 1] if unanswerable and number % 3 == 0 else []
        present = _bare_words(pair.source) | _bare_words(pair.target)
        absent = [other for other, (a, b) in others if not ({other} | _bare_words(gold[number - 1].target[a:b])) & present]
        found.question.append(absent[0] if absent else word)
        found.context.append(pair.target)
        found.answers.append([] if absent else [(start, end)])
    return found


def unique_aligned_words(pair: bilingual.SentencePair) -> list[tuple[str, tuple[int, int]]]:
    """Return the English words that occur once and are aligned with adjacent German words, and the characters of these."""
    source, target = [word.strip(".,").lower() for word in pair.source.split()], pair.target.split()
    starts = [0]
    for word in target:
        starts.append(starts[-1] + len(word) + 1)
    found = []
    for i, word in enumerate(source):
        to = sorted(j for at, j in pair.alignment if at == i)
        if to and source.count(word) == 1 and to == list(range(to[0], to[-1] + 1)):
            found.append((word, (starts[to[0]], starts[to[-1]] + len(target[to[-1]].rstrip(".,")))))
    return found


def _bare_words(text: str) -> set[str]:
    return {word.strip(".,").lower() for word in text.split()}
