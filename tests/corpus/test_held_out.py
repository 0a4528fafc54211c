"""Held-out documents and the end of a running text: lines that follow one another stay together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.batches.masked_rows import lines_with_successor
from regard.corpus.dataset import read_dataset
from regard.corpus.examples import TextLines
from regard.corpus.held_out import hold_out, hold_out_documents, hold_out_end
from regard.errors import UserError
from regard.recipe import TextData
from regard.tasks import build_recipe


def documents(sizes):
    """Lines of documents with an empty line between them."""
    numbers = [first + i for size, first in zip(sizes, np.cumsum([1, *(n + 1 for n in sizes)])) for i in range(size)]
    return TextLines([f"line {number}" for number in numbers], name="a.txt", lines=[int(number) for number in numbers])


@given(sizes=st.lists(st.integers(1, 12), min_size=30, max_size=60))
def test_documents_are_held_out_as_a_whole(sizes):
    lines = documents(sizes)
    number = len(lines) // 20
    sets = hold_out_documents(lines, number)
    document = dict(zip(lines.text, lines.documents()))
    found = [{document[text] for text in part.text} for part in sets]
    assert not found[0] & found[1] and not found[0] & found[2] and not found[1] & found[2]
    assert sorted(text for part in sets for text in part.text) == sorted(lines.text)
    assert len(sets[1]) >= number and len(sets[2]) >= number and 2 * len(sets[0]) >= len(lines)


@pytest.mark.parametrize("sizes", [[400], [200, 200], [8] * 50])
def test_held_out_lines_make_pairs_for_next_sentence(sizes):
    lines = documents(sizes)
    _, valid, test = hold_out_documents(lines, 20)
    for part in (valid, test):
        pairs = len(lines_with_successor(np.array(part.documents())))
        assert pairs >= 0.8 * len(part) and 20 <= len(part) <= 40
    scattered = hold_out(lines, 20)[1]
    assert len(lines_with_successor(np.array(scattered.documents()))) < 8  # what it was before


def test_next_sentence_holds_out_documents(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join("\n".join(f"line {i} of {j}" for i in range(6)) for j in range(40)))
    settings = {
        "task": "masked",
        "data": {"root": str(tmp_path), "train": ["a.txt"], "held_out": 12},
        "masking": {"next_sentence": True},
        "model": {"kind": "transformer", "segments": 2},
    }
    recipe = build_recipe(settings)
    assert recipe.data.held_out_documents and not build_recipe({**settings, "masking": {}}).data.held_out_documents
    found = read_dataset(recipe.data)
    assert [line.split(" of ")[1] for line in found.valid.text] == [
        n for n in dict.fromkeys(line.split(" of ")[1] for line in found.valid.text) for _ in range(6)
    ]


def test_end_of_a_running_text_is_held_out(tmp_path):
    lines = TextLines([f"line {i}" for i in range(40)], name="a.txt")
    train, valid, test = hold_out_end(lines, 5)
    assert train.text + valid.text + test.text == lines.text and len(valid) == len(test) == 5
    (tmp_path / "a.txt").write_text("\n".join(lines.text))
    found = read_dataset(TextData(root=str(tmp_path), train=["a.txt"], stream=True, held_out=5))
    assert found.valid.text == valid.text and found.tests["held_out"].text == test.text


@pytest.mark.parametrize("function", [hold_out, hold_out_documents, hold_out_end])
def test_too_many_held_out_lines_are_refused_with_a_cure_that_works(function):
    lines = TextLines([f"line {i}" for i in range(15)], name="a.txt")
    with pytest.raises(UserError, match="set at most 3"):
        function(lines, 4)
    assert len(function(lines, 3)[1]) >= 3
    with pytest.raises(UserError, match=r"give more data, or data\.valid"):
        function(TextLines(["one", "two"], name="a.txt"), 1)


@pytest.mark.parametrize("hold", [hold_out, hold_out_documents, hold_out_end])
def test_without_a_held_out_test_set_its_examples_are_trained_on(hold):
    """The validation set is the same; at the end of a running text, it is the end."""
    lines = documents([1] * 80)
    train, valid, test = hold(lines, 10)
    more, same, none = hold(lines, 10, 0)
    assert len(none) == 0 and len(more) == len(train) + len(test) and sorted(more.text + same.text) == sorted(lines.text)
    assert same.text == (lines.text[-10:] if hold is hold_out_end else valid.text)
    assert len(hold(lines, 10, 3)[2]) == 3


def test_the_size_of_the_held_out_test_set_is_a_setting(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(f"line {i}" for i in range(40)))
    found = read_dataset(TextData(root=str(tmp_path), train=["a.txt"], held_out=5, held_out_test=0, test={"b": ["a.txt"]}))
    assert list(found.tests) == ["b"] and len(found.train) == 35
    with pytest.raises(ValueError, match=r"data.held_out_test = 3 needs data.held_out"):
        TextData(train=["a.txt"], valid=["a.txt"], held_out_test=3)
    with pytest.raises(
        UserError, match=r"data.held_out = 15 holds out 25 with data.held_out_test = 10, which may be at most half"
    ):
        read_dataset(TextData(root=str(tmp_path), train=["a.txt"], held_out=15, held_out_test=10))
