"""The training, validation and test sets that a recipe's `[data]` names."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from regard.corpus.pairs import Pairs, read_pairs
from regard.errors import Mistake
from regard.recipe import Data, World
from regard.worlds import bilingual


@dataclass
class Dataset:
    train: Pairs
    valid: Pairs
    tests: dict[str, Pairs]


def read_dataset(data: Data, *, train: bool = True) -> Dataset:
    """Everything `[data]` names; without `train`, the training set is left empty where it is not needed to find the others."""
    found = read_forward(data, train)
    if not data.reverse:
        return found
    tests = {name: pairs.reversed() for name, pairs in found.tests.items()}
    return Dataset(found.train.reversed(), found.valid.reversed(), tests)


def read_forward(data: Data, train: bool) -> Dataset:
    if data.world is not None:
        return world_dataset(data.world, train)

    def read(files: list[str]) -> Pairs:
        return read_pairs([Path(data.root, file) for file in files], columns=data.columns, fields=data.fields)

    tests = {name: read(files) for name, files in data.test.items()}
    if data.held_out:
        training, valid, test = hold_out(read(data.train), data.held_out)
        return Dataset(training, valid, {"held_out": test, **tests})
    return Dataset(read(data.train) if train else Pairs([], []), read(data.valid), tests)


def hold_out(pairs: Pairs, number: int) -> tuple[Pairs, Pairs, Pairs]:
    """Training, validation and test pairs that share no source sentence: the sentences with the smallest hashes are set aside."""
    hashes = {source: hashlib.sha256(source.encode()).digest() for source in pairs.source}
    if len(hashes) < 4 * number:
        raise Mistake(f"{pairs.name} has {len(hashes):,} distinct source sentences; "
                      f"data.held_out = {number} takes twice as many: set at most {len(hashes) // 4}")
    ranked = sorted(hashes, key=lambda source: hashes[source])
    aside = dict.fromkeys(ranked[:number], "valid") | dict.fromkeys(ranked[number:2 * number], "test")
    split: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    for index, source in enumerate(pairs.source):
        split[aside.get(source, "train")].append(index)
    return pairs.choose(split["train"]), pairs.choose(split["valid"]), pairs.choose(split["test"])


def world_dataset(world: World, train: bool = True) -> Dataset:
    def pairs(number: int, split: str) -> Pairs:
        gold = bilingual.generate(number, world.seed, level=world.level, split=split, share=world.share)
        return Pairs([pair.source for pair in gold], [pair.target for pair in gold], f"world {world.kind} {split}", gold=gold)

    return Dataset(pairs(world.number, "train") if train else Pairs([], []), pairs(world.held_out, "valid"),
                   {"test": pairs(world.held_out, "test")})
