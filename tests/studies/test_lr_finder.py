"""The learning-rate finder: its steps are those of training, it finds the steepest descent, and it leaves nothing behind."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import regard
from regard import tasks
from regard.cli import app
from regard.errors import UserError
from regard.run.train import train
from regard.studies.lr_finder import lr_find, smooth, suggest_rate

RECIPE = {
    "data": {"world": {"number": 200, "held_out": 10}},
    "tokens": {"size": 300},
    "model": {"preset": "tiny", "width": 16, "heads": 2, "feed_forward": 32, "max_length": 48},
    "train": {"steps": 20, "tokens_per_batch": 512, "log_every": 1, "gradient_accumulation_steps": 2},
}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_range_of_one_rate_is_training_at_that_constant_rate(kind, tmp_path):
    recipe = {
        **RECIPE,
        "train": {**RECIPE["train"], "schedule": {"kind": "constant", "warmup_steps": 0}, "optimizer": {"kind": kind}},
    }
    run = train(recipe, tmp_path / "run", device="cpu")
    logged = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    rate = run.recipe.train.optimizer.learning_rate
    found = lr_find(recipe, device="cpu", steps=20, min_rate=rate, max_rate=rate)
    assert found.rates == pytest.approx([rate] * 20)
    assert found.losses == pytest.approx([one["loss"] for one in logged if "loss" in one], abs=1e-5)


@given(
    middle=st.floats(-4, -2),
    steps=st.integers(60, 200),
    rises=st.booleans(),
    noise=st.integers(0, 2**31),
)
def test_the_suggestion_is_where_the_loss_falls_fastest(middle, steps, rises, noise):
    """Of a loss that falls like a logistic curve around a rate, and may rise steeply afterwards."""
    exponents = np.linspace(-6, 0, steps)
    losses = 4 - 2 / (1 + np.exp(-4 * (exponents - middle))) + np.random.default_rng(noise).normal(0, 0.01, steps)
    if rises:
        losses += np.where(exponents > middle + 1.5, 8 * (exponents - middle - 1.5), 0)
    suggestion, lowest = suggest_rate((10**exponents).tolist(), smooth(losses.tolist(), 0.04 * steps))
    assert abs(np.log10(suggestion) - middle) < 0.3 and suggestion < lowest


def test_smoothing_keeps_a_straight_line_inside_and_constants_everywhere():
    assert smooth([3.0] * 30, 2) == pytest.approx([3.0] * 30)
    assert smooth(np.arange(60.0).tolist(), 2)[15:-15] == pytest.approx(np.arange(60.0).tolist()[15:-15])


def test_it_stops_when_training_diverges_and_suggests_a_rate_that_does_not():
    found = regard.lr_find(RECIPE, device="cpu", steps=60, min_rate=1e-5, max_rate=1e6)
    assert len(found.losses) < 60 and all(np.isfinite(found.losses)) and 1e-5 < found.suggestion < found.lowest <= found.rates[-1]
    assert f"{found.suggestion:.1e}" in repr(found) and "svg" in found._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 5}, "5 steps from 1e-06 to 1; give at least 20"),
        ({"min_rate": 1.0, "max_rate": 0.1}, "--min below --max"),
        ({"min_rate": 1e5, "max_rate": 1e6}, "the loss does not fall from a rate of 100000 on"),
    ],
)
def test_ranges_that_find_nothing_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        lr_find(RECIPE, device="cpu", **{"steps": 20, **options})


def test_the_command_prints_the_rate_and_writes_nothing_but_the_figure(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(tasks.build_recipe(RECIPE).to_toml())
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)

    def run_command(*options):
        return CliRunner().invoke(app, ["lr-find", "recipe.toml", "--steps", "30", "--device", "cpu", *options]).stdout.strip()

    line = run_command("--out", "rates.svg")
    assert 1e-6 < float(line) < 1
    found = json.loads(run_command("--json"))
    assert f"{found['suggestion']:.1e}" == line and len(found["rates"]) == len(found["losses"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rates.svg", "recipe.toml", "temporary"]
    assert "suggested" in Path("rates.svg").read_text() and not list(temporary.iterdir())
