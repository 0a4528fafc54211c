"""Algorithms: determinism, distinct sources, disjoint splits, correct targets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.corpus.dataset import read_dataset
from regard.errors import UserError
from regard.tasks import build_recipe, parse_recipe
from regard.worlds.algorithms import (
    ALGORITHMS,
    DIGIT_ORDERS,
    MAX_ENUMERATED,
    SPLITS,
    AlgorithmPair,
    assign_split,
    classify_carries,
    count_available,
    count_sources,
    enumerate_sources,
    generate,
    write_sum,
)

kinds, seeds, splits = st.sampled_from(ALGORITHMS), st.integers(0, 10**6), st.sampled_from(list(SPLITS))


def input_length(kind, source):
    return len(source) if kind == "copy" else max(len(operand) for operand in source.split("+"))


@given(kinds, seeds, st.integers(1, 12), st.integers(0, 12), splits)
def test_targets_are_correct_and_lengths_are_in_range(kind, seed, shortest, more, split):
    number = min(60, sum(count_available(kind, n, split) for n in range(shortest, shortest + more + 1)))
    if number == 0:
        return
    pairs = generate(kind, number, seed, shortest=shortest, longest=shortest + more, split=split)
    assert len(pairs) == number == len({pair.source for pair in pairs})
    for pair in pairs:
        operands = [int(operand) for operand in pair.source.split("+")]
        assert pair.target == pair.source if kind == "copy" else int(pair.target) == operands[0] + operands[1]
        assert shortest <= input_length(kind, pair.source) <= shortest + more and assign_split(pair.source) == split


@given(kinds, seeds, st.integers(1, 300), st.integers(0, 100))
def test_generation_is_deterministic_and_prefix_stable(kind, seed, number, more):
    whole = generate(kind, number + more, seed, shortest=1, longest=5)
    assert generate(kind, number, seed, shortest=1, longest=5) == whole[:number]
    for length in (2, 6):  # enumerated, and sampled
        one, other = (generate(kind, 50, seed, shortest=length, longest=length) for seed in (seed, seed + 1))
        assert one != other


@pytest.mark.parametrize("kind, length", [("copy", 5), ("addition", 3)])
def test_sampled_sources_are_distinct(kind, length):
    number = min(3000, count_available(kind, length, "test"))
    assert count_sources(kind, length) > MAX_ENUMERATED
    assert len({pair.source for pair in generate(kind, number, 1, shortest=length, longest=length, split="test")}) == number


@given(kinds, st.integers(1, 8))
def test_splits_are_disjoint_for_all_seeds(kind, longest):
    texts = []
    for split in SPLITS:
        number = min(200, sum(count_available(kind, n, split) for n in range(1, longest + 1)))
        some = [generate(kind, number, seed, shortest=1, longest=longest, split=split) for seed in (1, 2, 3) if number]
        texts.append({pair.source for pairs in some for pair in pairs})
    assert sum(map(len, texts)) == len(set().union(*texts))


def test_lengths_are_equally_likely_until_exhausted():
    pairs = generate("copy", 20_000, 1, shortest=1, longest=10)
    counts = [sum(len(pair.source) == n for pair in pairs) for n in range(1, 11)]
    assert counts[:2] == [count_available("copy", n, "train") for n in (1, 2)], "short lengths are exhausted"
    assert max(counts[5:]) < 1.1 * min(counts[5:])


def test_addition_has_both_orders_and_all_operand_lengths():
    shapes = {tuple(map(len, pair.source.split("+"))) for pair in generate("addition", 500, 1, shortest=4, longest=4)}
    assert shapes == {(4, n) for n in range(1, 5)} | {(n, 4) for n in range(1, 5)}


@given(seeds, splits, st.integers(1, 6), st.integers(0, 4))
def test_digit_order_and_padding_change_only_how_a_sum_is_written(seed, split, longest, more):
    number = min(40, sum(count_available("addition", n, split) for n in range(1, longest + 1)))
    lengths = dict(shortest=1, longest=longest, split=split)
    plain = generate("addition", number, seed, **lengths)
    for order in DIGIT_ORDERS:
        for pad in (0, longest + more):
            written = generate("addition", number, seed, **lengths, digit_order=order, pad=pad)
            for pair, same in zip(written, plain, strict=True):
                operands = pair.source.split("+")
                read = [operand[::-1] if order == "reverse" else operand for operand in operands]
                target = pair.target if order == "plain" else pair.target[::-1]
                assert [*map(int, read)] == [*map(int, same.source.split("+"))] and int(target) == int(same.target)
                assert pad == 0 or [len(operands[0]), len(operands[1]), len(target)] == [pad, pad, pad + 1]
                assert pad > 0 or (read == same.source.split("+") and target == same.target)


@pytest.mark.parametrize(
    "order, pad, source, target",
    [
        ("plain", 0, "123+45", "168"),
        ("reverse_target", 0, "123+45", "861"),
        ("reverse", 0, "321+54", "861"),
        ("plain", 4, "0123+0045", "00168"),
        ("reverse", 4, "3210+5400", "86100"),
    ],
)
def test_written_sums(order, pad, source, target):
    assert write_sum(AlgorithmPair("123+45", "168"), order, pad) == AlgorithmPair(source, target)


@pytest.mark.parametrize(
    "order, source, target, carries",
    [
        ("plain", "159+745", "904", ["carry", "carry through 9", "no carry"]),
        ("reverse_target", "159+745", "409", ["no carry", "carry through 9", "carry"]),
        ("reverse", "9510+5470", "40900", ["no carry", "carry through 9", "carry", "", ""]),
        ("plain", "99+1", "100", ["", "carry through 9", "no carry"]),
        ("plain", "0+0", "0", ["no carry"]),
    ],
)
def test_carries_into_each_digit(order, source, target, carries):
    assert classify_carries(AlgorithmPair(source, target), order) == carries


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_all_existing_sources_can_be_generated_and_no_more(kind):
    n = 2
    assert count_sources(kind, n) == sum(len(enumerate_sources(kind, n, split)) for split in SPLITS) <= MAX_ENUMERATED
    pairs = generate(kind, count_available(kind, n, "test"), 1, shortest=n, longest=n, split="test")
    assert {pair.source for pair in pairs} == set(enumerate_sources(kind, n, "test"))
    with pytest.raises(
        UserError, match=rf"number = {len(pairs) + 1}: {kind} has {len(pairs)} test examples of length 2; ask for"
    ):
        generate(kind, len(pairs) + 1, 1, shortest=n, longest=n, split="test")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(kind="sort"), "kind = 'sort': the algorithms are copy and addition"),
        (dict(split="dev"), "split = 'dev': the splits are train, valid, test"),
        (dict(shortest=5, longest=3), "lengths 5 to 3"),
        (dict(shortest=0), "lengths 0 to 4"),
        (dict(number=0), "number = 0"),
    ],
)
def test_invalid_arguments_raise_one_line_errors(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        generate(**{"kind": "copy", "number": 5, "seed": 1, "shortest": 1, "longest": 4, **arguments})
    assert "\n" not in str(caught.value)


def test_recipe_has_a_test_set_of_each_length():
    recipe = build_recipe({"data": {"world": {"kind": "addition", "number": 300, "held_out": 30, "longest": 3, "tests": [3, 7]}}})
    data = read_dataset(recipe.data)
    assert len(data.train) == 300 and len(data.valid) == 30 and list(data.tests) == ["length 3", "length 7"]
    for name, pairs in data.tests.items():
        assert {f"length {input_length('addition', source)}" for source in pairs.source} == {name} and len(pairs) == 30
    assert max(input_length("addition", source) for source in data.train.source + data.valid.source) == 3
    sets = {"train": [data.train], "valid": [data.valid], "test": list(data.tests.values())}
    assert all(assign_split(source) == split for split, found in sets.items() for pairs in found for source in pairs.source)
    without = build_recipe({"data": {"world": {"kind": "copy", "held_out": 9}}})
    assert list(read_dataset(without.data, train=False).tests) == ["length 10"], "the longest training length"


@pytest.mark.parametrize(
    "text, message",
    [
        ("[data.world]\nkind = 'copied'", r"data.world.kind = 'copied': should be bilingual, copy, addition or shapes"),
        ("[data.world]\nkind = 'copy'\nlongst = 3", r"no setting 'longst' in data.world; did you mean 'longest'\?"),
        ("[data.world]\nkind = 'copy'\nlevel = 3", r"no setting 'level' in data.world; there are: kind, number"),
        ("[data.world]\nkind = 'copy'\nshortest = 11", r"data.world.shortest = 11 is more than longest = 10"),
        ("[data.world]\nkind = 'copy'\npad = 20", r"data.world.digit_order and pad are of sums; leave them out, or set kind"),
        ("[data.world]\nkind = 'addition'\nlongest = 5\ntests = [8]\npad = 7", r"pad = 7: the longest operands have 8 digits"),
        ("[data]\nreverse = true\nworld = {kind = 'addition'}", r"data.reverse: an algorithm has one direction"),
        (
            "task = 'language'\n[data.world]\nkind = 'copy'",
            r"data.world.kind = 'copy' is for the tasks translate and",
        ),
        (
            "task = 'tag'\n[data.world]\nkind = 'addition'",
            r"data.world.kind = 'addition' is for the tasks translate and text-to-text; change the task",
        ),
    ],
)
def test_invalid_recipes_raise_one_line_errors(text, message):
    with pytest.raises(UserError, match=message) as caught:
        parse_recipe(text)
    assert "\n" not in str(caught.value)
