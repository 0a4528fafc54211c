"""Examples of every kind from the embedded worlds."""

from typing import Any

from regard.corpus.examples import Labelled, Lines, Pairs, Tagged
from regard.recipe import Algorithm, Data, LabelledData, PairData, TaggedData, TaskData, TextData, World
from regard.worlds import algorithms, bilingual

NOWHERE = "–"
"""The tag of a word that nothing is aligned with."""


def examples(data: Data, split: str, number: int) -> Any:
    """Translation pairs; sentences; words tagged with what they become in German; sentences with an "it" labelled with its
    German gender, or paired with it."""
    world = data.world
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
