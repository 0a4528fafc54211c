"""Algorithms as pairs of text: copying digits, and adding natural numbers (Dehghani et al. 2019, sec. 3.4).

    copy       "30918" -> "30918"    the length is the number of digits
    addition   "123+45" -> "168"     the length is the number of digits of the longer operand; the other has at most as many

A pair is a pure function of the seed; its source alone determines its target, and whether it belongs to train, valid or test.

How a sum is written decides whether longer sums than those of training are right. `digit_order`:

    plain           "123+45" -> "168"    the first digit depends on all carries
    reverse_target  "123+45" -> "861"    the least significant digit first (Lee et al. 2023, "Teaching arithmetic to small
                                         transformers"): each digit depends on two digits and one carry
    reverse         "321+54" -> "861"    of the operands too (McLeish et al. 2024)

`pad = 5` fills every operand with zeros to 5 digits and the sum to 6, "32100+54000" -> "861000", so that a digit has one
distance from the digits that it depends on, whatever the length.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random

from regard.errors import UserError
from regard.worlds import SPLITS, assign_split

ALGORITHMS = ("copy", "addition")
CARRIES = ("no carry", "carry", "carry through 9")
"""What comes into a digit of a sum: nothing, a carry, or a carry that it passes on, since its operands' digits add up to 9."""
DIGIT_ORDERS = ("plain", "reverse_target", "reverse")
MAX_ENUMERATED = 10_000  # lengths with at most this many sources are enumerated and shuffled; longer ones are sampled


@dataclass(frozen=True, slots=True)
class AlgorithmPair:
    """An input and the output of the algorithm."""

    source: str
    target: str


def generate(
    kind: str,
    number: int,
    seed: int,
    *,
    shortest: int,
    longest: int,
    split: str = "train",
    digit_order: str = "plain",
    pad: int = 0,
) -> list[AlgorithmPair]:
    """Return the first `number` distinct pairs of a seed; a smaller number gives a prefix of a larger one.

    All lengths are equally likely as long as they have sources left. The order of digits and the padding of sums change how a
    pair is written, not which pairs there are.
    """
    if kind not in ALGORITHMS:
        raise UserError(f"kind = {kind!r}: the algorithms are {' and '.join(ALGORITHMS)}")
    if split not in SPLITS:
        raise UserError(f"split = {split!r}: the splits are {', '.join(SPLITS)}")
    if not 1 <= shortest <= longest:
        raise UserError(f"lengths {shortest} to {longest}: the shortest must be at least 1 and at most the longest")
    left = {length: count_available(kind, length, split) for length in range(shortest, longest + 1)}
    if not 1 <= number <= sum(left.values()):
        lengths = f"length {longest}" if shortest == longest else f"lengths {shortest} to {longest}"
        raise UserError(
            f"number = {number}: {kind} has {sum(left.values())} {split} examples of {lengths}; "
            "ask for fewer (at least 1), or for longer ones"
        )
    sources = {length: iterate_sources(kind, length, seed, split) for length in left}
    rng = Random(f"{kind} {seed}")
    pairs = []
    for _ in range(number):
        remaining = [length for length in left if left[length]]
        length = remaining[int(rng.random() * len(remaining))]
        left[length] -= 1
        source = next(sources[length])
        pair = AlgorithmPair(source, solve(kind, source))
        pairs.append(pair if kind == "copy" else write_sum(pair, digit_order, pad))
    return pairs


def solve(kind: str, source: str) -> str:
    """Return the output of an algorithm."""
    return source if kind == "copy" else str(sum(map(int, source.split("+"))))


def write_sum(pair: AlgorithmPair, digit_order: str, pad: int) -> AlgorithmPair:
    """Return a sum with its digits in this order and its operands filled with zeros to `pad` digits."""
    operands = [operand.zfill(pad) for operand in pair.source.split("+")]
    target = pair.target.zfill(pad + 1 if pad else 0)
    if digit_order == "reverse":
        operands = [operand[::-1] for operand in operands]
    return AlgorithmPair("+".join(operands), target if digit_order == "plain" else target[::-1])


def classify_carries(pair: AlgorithmPair, digit_order: str) -> list[str]:
    """Return what each digit of a written sum needs: one of CARRIES, or "" beyond the digits of the longer operand."""
    operands = [operand if digit_order == "reverse" else operand[::-1] for operand in pair.source.split("+")]
    length = max(1, *(len(operand.rstrip("0")) for operand in operands))
    found, carry = [], 0
    for place in range(len(pair.target)):
        digits = sum(int(operand[place]) for operand in operands if place < len(operand))
        kind = CARRIES[0 if not carry else 2 if digits == 9 else 1]
        found.append(kind if place < length else "")
        carry = int(digits + carry > 9)
    return found[::-1] if digit_order == "plain" else found


def iterate_sources(kind: str, length: int, seed: int, split: str) -> Iterator[str]:
    """Yield the distinct sources of one length and split in an order given by the seed; without end where they are sampled."""
    rng = Random(f"{kind} {length} {seed}")
    if count_sources(kind, length) <= MAX_ENUMERATED:
        yield from sorted(enumerate_sources(kind, length, split), key=lambda _: rng.random())
        return
    seen: set[str] = set()
    while True:
        source = sample_source(kind, length, rng)
        if source not in seen and assign_split(source) == split:
            seen.add(source)
            yield source


def count_available(kind: str, length: int, split: str) -> int:
    """Return how many sources of a length may be asked for: all, or half where they are sampled, so that new ones stay
    frequent."""
    total = count_sources(kind, length)
    return len(enumerate_sources(kind, length, split)) if total <= MAX_ENUMERATED else total * SPLITS[split] // 32


def count_sources(kind: str, length: int) -> int:
    """Return the number of distinct sources of a length n over all splits: 10ⁿ, or the pairs of operands whose longer one
    has n digits."""
    if kind == "copy":
        return int(10**length)
    return int(100**length - (100 ** (length - 1) if length > 1 else 0))


@cache
def enumerate_sources(kind: str, length: int, split: str) -> tuple[str, ...]:
    """Return all sources of a length and split."""
    if kind == "copy":
        sources = ["".join(digits) for digits in product("0123456789", repeat=length)]
    else:
        numbers = [str(n) for n in range(10**length)]
        sources = [f"{a}+{b}" for a, b in product(numbers, numbers) if max(len(a), len(b)) == length]
    return tuple(source for source in sources if assign_split(source) == split)


def sample_source(kind: str, length: int, rng: Random) -> str:
    """Return random digits; or one operand of this length and one of at most this length, in either order."""
    if kind == "copy":
        return _sample_digits(length, rng)
    operands = [_sample_number(length, rng), _sample_number(1 + int(rng.random() * length), rng)]
    return "+".join(operands if rng.random() < 0.5 else operands[::-1])


def _sample_number(length: int, rng: Random) -> str:
    """Return a natural number of this many digits; only a single digit may be 0."""
    return _sample_digits(1, rng) if length == 1 else str(1 + int(rng.random() * 9)) + _sample_digits(length - 1, rng)


def _sample_digits(number: int, rng: Random) -> str:
    return "".join(str(int(rng.random() * 10)) for _ in range(number))
