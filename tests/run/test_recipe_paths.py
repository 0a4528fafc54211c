"""Paths beside the recipe, and run folders given as recipes."""

import pytest

import regard
from regard import tasks
from regard.errors import UserError

RECIPE = """
task = "language"
[data]
root = "texts"
train = ["a.txt"]
valid = ["a.txt"]
[model]
kind = "transformer"
layers = 1
width = 16
heads = 2
"""


def test_a_relative_root_starts_at_the_working_folder_or_beside_the_recipe(tmp_path, monkeypatch):
    beside, here = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (beside, here):
        (folder / "texts").mkdir(parents=True)
    (beside / "mine.toml").write_text(RECIPE)
    monkeypatch.chdir(here)
    assert tasks.read_recipe(beside / "mine.toml").data.root == "texts"
    (beside / "texts" / "a.txt").write_text("a b\n")
    assert tasks.read_recipe(beside / "mine.toml").data.root == str(beside / "texts")
    assert tasks.read_recipe("../project/mine.toml").digest() == tasks.read_recipe(beside / "mine.toml").digest()
    (here / "texts" / "a.txt").write_text("a b\n")
    assert tasks.read_recipe(beside / "mine.toml").data.root == "texts"


def test_a_missing_file_is_named_with_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"no file {tmp_path}/texts/a.txt; relative paths start at data.root"):
        regard.train("mine.toml", device="cpu")


def test_a_run_folder_given_as_a_recipe_suggests_resume(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    with pytest.raises(UserError, match=rf"is a run folder.*regard train {tmp_path} --resume"):
        regard.train(tmp_path, device="cpu")
