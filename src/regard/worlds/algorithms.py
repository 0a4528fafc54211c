"""Algorithms as pairs of text: copying digits, and adding whole numbers (Dehghani et al. 2019, sec. 3.4).

    copy       "30918" -> "30918"    its length is the number of digits
    addition   "123+45" -> "168"     its length is the digits of the longer operand; the other has any number up to that

A pair is a pure function of the seed; its source alone decides its target, and whether it belongs to train, valid or test.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random

from regard.errors import UserError

ALGORITHMS = ("copy", "addition")
SPLITS = {"train": 14, "valid": 1, "test": 1}  # of sixteen sources
MAX_ENUMERATED = 10_000  # a length with at most so many sources is listed and shuffled; of a longer one they are drawn


@dataclass(frozen=True, slots=True)
class AlgorithmPair:
    source: str
    target: str


def generate(kind: str, number: int, seed: int, *, shortest: int, longest: int, split: str = "train") -> list[AlgorithmPair]:
    """The first `number` distinct pairs of a seed; fewer are always the beginning of more. Every length is as likely as any other
    as long as it has sources left."""
    if kind not in ALGORITHMS:
        raise UserError(f"kind = {kind!r}: the algorithms are {' and '.join(ALGORITHMS)}")
    if split not in SPLITS:
        raise UserError(f"split = {split!r}: the splits are {', '.join(SPLITS)}")
    if not 1 <= shortest <= longest:
        raise UserError(f"lengths {shortest} to {longest}: the shortest is at least 1, and not longer than the longest")
    left = {length: count_available(kind, length, split) for length in range(shortest, longest + 1)}
    if not 1 <= number <= sum(left.values()):
        lengths = f"length {longest}" if shortest == longest else f"lengths {shortest} to {longest}"
        raise UserError(
            f"number = {number}: {kind} has {sum(left.values())} {split} examples of {lengths}; "
            "ask for fewer (at least 1), or for longer ones"
        )
    lanes = {length: iterate_sources(kind, length, seed, split) for length in left}
    turns = Random(f"{kind} {seed}")
    pairs = []
    for _ in range(number):
        lasting = [length for length in left if left[length]]
        length = lasting[int(turns.random() * len(lasting))]
        left[length] -= 1
        source = next(lanes[length])
        pairs.append(AlgorithmPair(source, solve(kind, source)))
    return pairs


def solve(kind: str, source: str) -> str:
    return source if kind == "copy" else str(sum(map(int, source.split("+"))))


def iterate_sources(kind: str, length: int, seed: int, split: str) -> Iterator[str]:
    """The distinct sources of one length and split, in an order that the seed decides; without end where they are drawn."""
    draws = Random(f"{kind} {length} {seed}")
    if count_sources(kind, length) <= MAX_ENUMERATED:
        yield from sorted(enumerate_sources(kind, length, split), key=lambda _: draws.random())
        return
    seen: set[str] = set()
    while True:
        source = sample_source(kind, length, draws)
        if source not in seen and assign_split(source) == split:
            seen.add(source)
            yield source


def count_available(kind: str, length: int, split: str) -> int:
    """How many sources of a length can be had: all of them, or where they are drawn half, so that a new one is soon met."""
    return (
        len(enumerate_sources(kind, length, split))
        if count_sources(kind, length) <= MAX_ENUMERATED
        else count_sources(kind, length) * SPLITS[split] // 32
    )


def count_sources(kind: str, length: int) -> int:
    """Distinct sources of a length, over all splits: 10ⁿ; or all pairs of up to n digits but those where both have fewer."""
    if kind == "copy":
        return 10**length
    return 100**length - (100 ** (length - 1) if length > 1 else 0)


@cache
def enumerate_sources(kind: str, length: int, split: str) -> tuple[str, ...]:
    """All sources of a length and split."""
    if kind == "copy":
        every = ["".join(drawn) for drawn in product("0123456789", repeat=length)]
    else:
        numbers = [str(n) for n in range(10**length)]
        every = [f"{a}+{b}" for a, b in product(numbers, numbers) if max(len(a), len(b)) == length]
    return tuple(source for source in every if assign_split(source) == split)


def sample_source(kind: str, length: int, draws: Random) -> str:
    """Any digits; or one operand of so many, the other of any number up to that, in either order."""
    if kind == "copy":
        return sample_digits(length, draws)
    operands = [sample_number(length, draws), sample_number(1 + int(draws.random() * length), draws)]
    return "+".join(operands if draws.random() < 0.5 else operands[::-1])


def sample_number(length: int, draws: Random) -> str:
    """A whole number of so many digits; the first is 0 only where it is the only one."""
    return sample_digits(1, draws) if length == 1 else str(1 + int(draws.random() * 9)) + sample_digits(length - 1, draws)


def sample_digits(number: int, draws: Random) -> str:
    return "".join(str(int(draws.random() * 10)) for _ in range(number))


def assign_split(source: str) -> str:
    """By the source alone, so that no seed and no number puts a test source into train."""
    drawn = hashlib.blake2b(source.encode(), digest_size=1).digest()[0] % 16
    return {0: "valid", 1: "test"}.get(drawn, "train")
