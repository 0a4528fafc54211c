"""A learning curve: its points are the scores of the runs, its tests pair the answers to one example, and a report is written."""

import json

import numpy as np
import pytest

from regard.cli.options import app
from regard.errors import UserError
from regard.scoring.score import percentage
from regard.studies.learning_curve import Point, compare_lines, run_learning_curve
from regard.studies.sweep import SeedScores

RECIPE = """
task = "TASK"
[data.world]
kind = "bilingual"
number = 200
held_out = 30
[tokens]
kind = "words"
[model]
width = 8
max_length = 48
[train]
steps = 2
evaluate_every = 2
save_every = 2
tokens_per_batch = 512
"""
GRID = ["data.limit=0,20", "model.attention=additive,none", "model.width=8", "seed=1,2"]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.replace("TASK", "classify"))
    return path


def test_the_points_are_the_test_scores_of_the_runs(recipe, tmp_path, capsys):
    out = tmp_path / "out"
    curve = run_learning_curve(recipe, out, GRID, "data.limit", device="cpu")
    assert curve.names == ["attention = additive", "attention = none"]
    assert [(point.value, point.position) for point in curve.points] == [("20", 20.0), ("all", 200.0)] * 2
    for point, attention in zip(curve.points, ["additive", "additive", "none", "none"]):
        assert percentage(point.counts.sum(0)) == pytest.approx(point.scores.mean), "counts are means over the seeds"
        for seed, score in point.scores.by_seed.items():
            folder = out / f"limit={'0' if point.value == 'all' else point.value},attention={attention},width=8,seed={seed}"
            stored = json.loads((folder / "scores.json").read_text())["test"]["accuracy"]["score"]
            assert score == pytest.approx(stored, abs=1e-4)
            sets = json.loads((folder / "data.json").read_text())["sets"]
            assert sets["training"]["examples"] == (200 if point.value == "all" else 20)
    assert any(len(set(point.scores.by_seed.values())) > 1 for point in curve.points), "seeds that differ, else nothing is tested"
    drawn = [(out / f"limit=20,attention=none,width=8,seed={seed}" / "training_hashes.bin").read_bytes() for seed in (1, 2)]
    assert drawn[0] != drawn[1], "each seed draws its own examples"
    assert json.loads((out / "curve.json").read_text())["differences"][0]["name"] == "attention = none"
    assert "<svg" in curve.report.read_text() and "attention = none" in (out / "figures" / "curve.svg").read_text()
    grid = [f"--set={axis}" for axis in GRID]
    app(["sweep", str(recipe), *grid, "--curve", "data.limit", "--out", str(out), "--device", "cpu"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "attention = additive" in printed and "p (examples)" in printed and "curve.html" in printed


def test_a_tagger_is_scored_by_words(recipe, tmp_path):
    recipe.write_text(RECIPE.replace("TASK", "tag"))
    (only,) = run_learning_curve(recipe, tmp_path / "out", ["data.limit=20"], "data.limit", device="cpu").points
    stored = json.loads((tmp_path / "out" / "limit=20" / "scores.json").read_text())["test"]["accuracy"]["score"]
    assert only.scores.mean == pytest.approx(stored, abs=1e-4) and only.counts[:, 1].max() > 1


def point(name, right):
    """A point of 2 seeds × N examples."""
    counts = np.stack([np.mean(right, axis=0), np.ones(len(right[0]))], axis=1)
    return Point(name, "10", 10.0, SeedScores({str(seed): 100 * float(np.mean(row)) for seed, row in enumerate(right)}), counts)


def test_seeds_that_repeat_their_answers_add_no_evidence():
    """Three seeds with the same answers are as significant as one: the examples are the observations."""
    generator = np.random.default_rng(1)
    better, worse = generator.random(100) < 0.8, generator.random(100) < 0.7
    one = compare_lines([point("a", [better]), point("b", [worse])])[0]
    three = compare_lines([point("a", [better] * 3), point("b", [worse] * 3)])[0]
    assert (one.p_value, one.low, one.high) == (three.p_value, three.low, three.high)
    assert one.difference == pytest.approx(100 * (better.mean() - worse.mean())) and one.low < one.difference < one.high


@pytest.mark.parametrize(
    ("task", "axis", "grid", "message"),
    [
        ("classify", "data.limit", ["seed=1,2"], "give its values, such as --set data.limit=100,1000"),
        ("language", "data.limit", ["data.limit=5,9"], "classify or tag; task = 'language'"),
    ],
)
def test_what_has_no_curve_is_refused_before_anything_is_trained(tmp_path, task, axis, grid, message):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.replace("TASK", task))
    with pytest.raises(UserError, match=message):
        run_learning_curve(path, tmp_path / "out", grid, axis, device="cpu")
    assert not (tmp_path / "out").exists()
