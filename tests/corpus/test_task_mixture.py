"""Pairs of a task mixture: prefixes, words for labels, rounded numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.corpus.dataset import as_task_pairs, read_dataset, round_to_step
from regard.corpus.examples import SentencePairs
from regard.errors import UserError
from regard.recipe import TaskData, TasksData


def task(**settings):
    return TaskData.model_validate({"prefix": "do: ", "world": {}, **settings})


def test_every_source_starts_with_the_task_prefix():
    made = as_task_pairs("t", task(), SentencePairs(["a", "b"], ["c", "d"], name="file", lines=[3, 9]))
    assert (made.source, made.target, made.task, made.where(1)) == (["do: a", "do: b"], ["c", "d"], "t", "file:9")
    assert made.select([1]).task == "t" and made.select([1]).source == ["do: b"]
    two = task(prefix=["one: ", " two: "], columns=[0, 1, 2], world=None, train=["a.tsv"], held_out=1)
    assert as_task_pairs("t", two, SentencePairs(["a\tb"], ["c"])).source == ["one: a two: b"]


def test_labels_become_words():
    classify = task(kind="classify", labels={"0": "no", "1": "yes"})
    assert as_task_pairs("t", classify, SentencePairs(["a", "b"], ["1", "0"])).target == ["yes", "no"]
    with pytest.raises(UserError, match=r"file:2 has the label '2', for which `labels` has no word \(0, 1\)"):
        as_task_pairs("t", classify, SentencePairs(["a", "b"], ["1", "2"], name="file", lines=[1, 2]))


@pytest.mark.parametrize(
    "target, step, text",
    [
        ("3.749", 0.2, "3.8"),
        ("3.7", 0.2, "3.6"),
        ("-0.04", 0.2, "0.0"),
        ("2", 0.25, "2.00"),
        ("2.3", 0.25, "2.25"),
        ("17", 5, "15"),
        ("0.123", 0.01, "0.12"),
        ("1e3", 1, "1000"),
    ],
)
def test_numbers_are_rounded_to_steps(target, step, text):
    assert round_to_step(target, step, "here") == text


@given(st.floats(-1e4, 1e4), st.sampled_from([0.01, 0.1, 0.2, 0.25, 0.5, 1, 5]))
def test_rounding_error_is_at_most_half_a_step(number, step):
    text = round_to_step(str(number), step, "here")
    assert abs(float(text) - number) <= step / 2 + 1e-6 and round_to_step(text, step, "here") == text


@pytest.mark.parametrize("target", ["much", "nan", "inf", ""])
def test_targets_that_are_no_numbers_are_refused(target):
    with pytest.raises(UserError, match=r"here has '.*' where a number should be"):
        round_to_step(target, 0.2, "here")


def test_sets_of_all_tasks_are_named_by_task(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("a.tsv", "b/b.tsv"):
        (tmp_path / name).write_text("".join(f"{name} {i}\t{i}\n" for i in range(20)))
    one = {"prefix": "a: ", "train": ["a.tsv"], "held_out": 2, "test": {"more": ["a.tsv"]}}
    other = {"prefix": "b: ", "root": "b", "train": ["b.tsv"], "valid": ["b.tsv"]}
    data = TasksData.model_validate({"root": str(tmp_path), "tasks": {"a": one, "b": other}})
    found = read_dataset(data)
    assert list(found.tests) == ["a/held_out", "a/more", "b/valid"]
    assert {name: len(pairs) for name, pairs in found.train.parts.items()} == {"a": 16, "b": 20}
    assert len(found.train) == 36 and len(found.train.texts()[0]) == 36 and found.train.texts()[1][-1] == "19"
    assert not set(found.train.parts["a"].source) & set(found.valid.parts["a"].source + found.tests["a/held_out"].source)
    assert len(read_dataset(data, train=False).train) == 0
