"""Examples of every kind from the embedded worlds."""

from typing import Any

from regard.corpus.examples import Labelled, Lines, Pairs, Tagged
from regard.recipe import Algorithm, Data, LabelledData, PairData, TaggedData, TextData, World
from regard.worlds import algorithms, bilingual

NOWHERE = "–"
"""The tag of a word that nothing is aligned with."""


def examples(data: Data, split: str, number: int) -> Any:
    """Translation pairs; sentences; words tagged with what they become in German; sentences with an "it" labelled with its
    German gender."""
    world = data.world
    assert isinstance(world, World)
    name = f"world {world.kind} {split}"
    share = 1.0 if isinstance(data, LabelledData) else world.share
    gold = bilingual.generate(number, world.seed, level=world.level, split=split, share=share)
    match data:
        case PairData():
            return Pairs([pair.source for pair in gold], [pair.target for pair in gold], name, gold=gold)
        case TextData():
            return Lines([pair.source if data.language == "source" else pair.target for pair in gold], name)
        case TaggedData():
            return Tagged([pair.source.split() for pair in gold], [glosses(pair) for pair in gold], name)
        case LabelledData():
            return Labelled([pair.source for pair in gold], [bilingual.GENDER[pair.pronouns[0].form] for pair in gold], name)


def solved(world: Algorithm, split: str, number: int, shortest: int, longest: int) -> Pairs:
    """Sources of these lengths, and what the algorithm makes of them."""
    pairs = algorithms.generate(world.kind, number, world.seed, shortest=shortest, longest=longest, split=split)
    return Pairs([pair.source for pair in pairs], [pair.target for pair in pairs], f"world {world.kind} {split}")


def glosses(pair: bilingual.Pair) -> list[str]:
    """The German word that each English word is aligned with, the first if there are several: "the" is der, die, das …"""
    target = pair.target.split()
    found = dict(reversed(pair.alignment))
    return [target[found[i]].strip(".,").lower() if i in found else NOWHERE for i in range(len(pair.source.split()))]
