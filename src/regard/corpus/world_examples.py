"""Examples of every kind from the embedded worlds."""

from dataclasses import replace
from typing import Any

from regard import rng
from regard.corpus.examples import ImageExamples, LabelledTexts, QuestionExamples, SentencePairs, TaggedSentences, TextLines
from regard.recipe import (
    AlgorithmWorld,
    BaseImageData,
    BilingualWorld,
    Data,
    LabelledData,
    LabelledImageData,
    PairData,
    QuestionData,
    ShapesWorld,
    TaggedData,
    TaskData,
    TextData,
)
from regard.worlds import algorithms, bilingual, shapes

UNALIGNED = "–"
"""The tag of an unaligned word."""


def world_examples(data: Data, split: str, number: int) -> Any:
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
            return SentencePairs([pair.source for pair in gold], _genders(gold), name)
        case PairData():
            return SentencePairs([pair.source for pair in gold], [pair.target for pair in gold], name, gold=gold)
        case TextData():
            return _text_lines(gold, data.language, name)
        case TaggedData():
            return TaggedSentences([pair.source.split() for pair in gold], [_glosses(pair) for pair in gold], name)
        case LabelledData():
            return LabelledTexts([pair.source for pair in gold], _genders(gold), name)
        case QuestionData():
            return _question_examples(gold, data.unanswerable, name)


def shape_examples(data: Data, world: ShapesWorld, split: str, number: int) -> ImageExamples:
    """Generate images with labels or captions, and their annotations."""
    assert isinstance(data, BaseImageData)
    gold = shapes.generate(number, world.seed, split=split, size=data.height_width[0], shapes=world.shapes)
    found = ImageExamples([image.pixels() for image in gold], f"world {world.kind} {split}", gold=gold)
    if isinstance(data, LabelledImageData):
        return replace(found, label=[image.label(data.label_attribute) for image in gold])
    return replace(found, captions=[[caption.text for caption in image.captions] for image in gold])


def _genders(gold: list[bilingual.SentencePair]) -> list[str]:
    """Return the gender of each antecedent of "it"."""
    return [bilingual.PRONOUN_GENDER[pair.pronouns[0].form] for pair in gold]


def algorithm_examples(world: AlgorithmWorld, split: str, number: int, shortest: int, longest: int) -> SentencePairs:
    """Generate sources of these lengths and the algorithm's outputs."""
    pairs = algorithms.generate(world.kind, number, world.seed, shortest=shortest, longest=longest, split=split)
    return SentencePairs([pair.source for pair in pairs], [pair.target for pair in pairs], f"world {world.kind} {split}")


def _text_lines(gold: list[bilingual.SentencePair], language: str, name: str) -> TextLines:
    """Return sentences in one language; in both, each is followed by its translation, and the two are one document."""
    if language != "both":
        return TextLines([pair.source if language == "source" else pair.target for pair in gold], name)
    numbers = [3 * i + side for i in range(len(gold)) for side in (1, 2)]
    return TextLines([text for pair in gold for text in (pair.source, pair.target)], name, numbers)


def _glosses(pair: bilingual.SentencePair) -> list[str]:
    """Return the German word that each English word is aligned with, the first of several: "the" is der, die, das …"""
    target = pair.target.split()
    found = dict(reversed(pair.alignment))
    return [target[found[i]].strip(".,").lower() if i in found else UNALIGNED for i in range(len(pair.source.split()))]


def _question_examples(gold: list[bilingual.SentencePair], unanswerable: bool, name: str) -> QuestionExamples:
    """Ask for the translation of an English word in the German sentence. With `unanswerable`, a third of the words are
    from another sentence, and neither they nor their translations occur here."""
    found = QuestionExamples([], [], [], name)
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
