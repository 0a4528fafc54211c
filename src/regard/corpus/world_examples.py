"""Examples of every kind from the embedded worlds."""

from dataclasses import replace
from typing import Any

from regard import rng
from regard.corpus.examples import Labelled, Lines, Pairs, Pictures, Questions, Tagged
from regard.recipe import (
    Algorithm,
    Data,
    LabelledData,
    LabelledPictures,
    PairData,
    PictureData,
    QuestionData,
    Shapes,
    TaggedData,
    TaskData,
    TextData,
    World,
)
from regard.worlds import algorithms, bilingual, shapes

NOWHERE = "–"
"""The tag of a word that nothing is aligned with."""


def examples(data: Data, split: str, number: int) -> Any:
    """Translation pairs; sentences; words tagged with what they become in German; sentences with an "it" labelled with its
    German gender, or paired with it; words to be found again in the German sentence; pictures."""
    world = data.world
    if isinstance(world, Shapes):
        return drawn(data, world, split, number)
    assert isinstance(world, World)
    name = f"world {world.kind} {split}"
    labelled = isinstance(data, LabelledData) or (isinstance(data, TaskData) and data.kind == "classify")
    share = 1.0 if labelled else world.share
    gold = bilingual.generate(number, world.seed, level=world.level, split=split, share=share)
    match data:
        case TaskData(kind="classify"):
            return Pairs([pair.source for pair in gold], genders(gold), name)
        case PairData():
            return Pairs([pair.source for pair in gold], [pair.target for pair in gold], name, gold=gold)
        case TextData():
            return lines_of(gold, data.language, name)
        case TaggedData():
            return Tagged([pair.source.split() for pair in gold], [glosses(pair) for pair in gold], name)
        case LabelledData():
            return Labelled([pair.source for pair in gold], genders(gold), name)
        case QuestionData():
            return questions_of(gold, data.unanswerable, name)


def drawn(data: Data, world: Shapes, split: str, number: int) -> Pictures:
    """Pictures with labels or with captions, and what is known of each."""
    assert isinstance(data, PictureData)
    gold = shapes.generate(number, world.seed, split=split, size=data.height_width[0], shapes=world.shapes)
    found = Pictures([picture.pixels() for picture in gold], f"world {world.kind} {split}", gold=gold)
    if isinstance(data, LabelledPictures):
        return replace(found, label=[picture.label(data.of) for picture in gold])
    return replace(found, captions=[[caption.text for caption in picture.captions] for picture in gold])


def genders(gold: list[bilingual.Pair]) -> list[str]:
    """Of what each "it" stands for."""
    return [bilingual.GENDER[pair.pronouns[0].form] for pair in gold]


def solved(world: Algorithm, split: str, number: int, shortest: int, longest: int) -> Pairs:
    """Sources of these lengths, and what the algorithm makes of them."""
    pairs = algorithms.generate(world.kind, number, world.seed, shortest=shortest, longest=longest, split=split)
    return Pairs([pair.source for pair in pairs], [pair.target for pair in pairs], f"world {world.kind} {split}")


def lines_of(gold: list[bilingual.Pair], language: str, name: str) -> Lines:
    """Sentences in one language; in both, each is followed by its translation, and the two are a document."""
    if language != "both":
        return Lines([pair.source if language == "source" else pair.target for pair in gold], name)
    numbers = [3 * i + side for i in range(len(gold)) for side in (1, 2)]
    return Lines([text for pair in gold for text in (pair.source, pair.target)], name, numbers)


def glosses(pair: bilingual.Pair) -> list[str]:
    """The German word that each English word is aligned with, the first if there are several: "the" is der, die, das …"""
    target = pair.target.split()
    found = dict(reversed(pair.alignment))
    return [target[found[i]].strip(".,").lower() if i in found else NOWHERE for i in range(len(pair.source.split()))]


def questions_of(gold: list[bilingual.Pair], unanswerable: bool, name: str) -> Questions:
    """What has become of an English word in the German sentence? Where some are to have no answer, a third of the words are those
    of another sentence, and neither they nor what became of them stand here."""
    found = Questions([], [], [], name)
    asked = [asks(pair) for pair in gold]
    for number, (pair, words) in enumerate(zip(gold, asked)):
        if not words:
            continue
        word, (start, end) = words[int(rng.mix(number)) % len(words)]
        others = asked[number - 1] if unanswerable and number % 3 == 0 else []
        spoken = bare(pair.source) | bare(pair.target)
        strange = [other for other, (a, b) in others if not ({other} | bare(gold[number - 1].target[a:b])) & spoken]
        found.question.append(strange[0] if strange else word)
        found.context.append(pair.target)
        found.answers.append([] if strange else [(start, end)])
    return found


def asks(pair: bilingual.Pair) -> list[tuple[str, tuple[int, int]]]:
    """The English words that stand once in a sentence and have become words side by side in German; and where these stand."""
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


def bare(text: str) -> set[str]:
    return {word.strip(".,").lower() for word in text.split()}
