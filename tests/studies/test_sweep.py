"""A sweep: its grid, the runs, resuming, and the summary over seeds."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.run.train import train
from regard.studies.sweep import SeedScores, make_grid, run_sweep, split_values
from regard.training.checkpoint import list_checkpoints


@given(st.lists(st.one_of(st.integers(), st.floats(allow_nan=False), st.lists(st.integers()), st.text("ab,[]'", max_size=5))))
def test_values_are_split_at_commas_outside_brackets_and_quotes(values):
    written = [json.dumps(value) for value in values]
    if written:
        assert split_values(",".join(written)) == list(dict.fromkeys(written))


def test_the_grid_is_every_combination_in_order():
    points = make_grid(["train.optimizer.learning_rate=1e-3,1e-4", "seed=1,2"])
    assert [point.folder for point in points] == [
        f"learning_rate={rate},seed={seed}" for rate in ("1e-3", "1e-4") for seed in "12"
    ]
    assert points[3].overrides == ["train.optimizer.learning_rate=1e-4", "seed=2"]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (["steps"], "not of the form"),
        (["seed=1,,2"], "is missing"),
        (["seed=1", "seed=2"], "given twice"),
        ([f"seed={','.join(map(str, range(200)))}", f"train.steps={','.join(map(str, range(1, 200)))}"], "combinations"),
        (["train.stepz=1"], "did you mean 'steps'"),
        (["data.origin=a b,a_b"], "differ only in characters"),
    ],
)
def test_a_malformed_grid_is_refused_before_anything_is_trained(recipe, tmp_path, grid, message):
    with pytest.raises(UserError, match=message):
        run_sweep(recipe, tmp_path / "out", grid, device="cpu")
    assert not (tmp_path / "out").exists()


def test_a_sweep_trains_each_combination_and_summarises_over_seeds(recipe, tmp_path):
    """A trial that was interrupted resumes, a finished one is kept, and each run is the one that `train` gives."""
    out, grid = tmp_path / "out", ["train.optimizer.learning_rate=1e-2,1e-9", "seed=1,2"]
    rate = "train.optimizer.learning_rate=1e-2"
    train(recipe, out / "learning_rate=1e-2,seed=1", overrides=[rate], device="cpu")
    finished = (out / "learning_rate=1e-2,seed=1" / "model.safetensors").stat().st_mtime_ns
    started = train(
        recipe, out / "learning_rate=1e-2,seed=2", overrides=["train.optimizer.learning_rate=1e-2", "seed=2"], device="cpu"
    )
    expected = (started.folder / "model.safetensors").read_bytes()
    (started.folder / "model.safetensors").unlink()
    assert list_checkpoints(started.folder / "checkpoints")
    result = run_sweep(recipe, out, grid, device="cpu")
    assert (out / "learning_rate=1e-2,seed=1" / "model.safetensors").stat().st_mtime_ns == finished
    assert (started.folder / "model.safetensors").read_bytes() == expected
    assert {one.setting[0][1] for one in result.settings} == {"1e-2", "1e-9"}
    for one in result.settings:
        for metric, scores in one.scores.items():
            assert set(scores.by_seed) == {"1", "2"}, metric
    first, second = (one.scores["valid_loss"].mean for one in result.settings)
    assert first <= second
    assert result.p_values(result.settings[0])["valid_loss"] is None
    assert 0 <= result.p_values(result.settings[1])["valid_loss"] <= 1
    written = json.loads((out / "sweep.json").read_text())
    assert written == json.loads(json.dumps(result.to_json()))
    with pytest.raises(UserError, match="another recipe"):
        run_sweep(recipe, out, grid, overrides=["train.steps=3"], device="cpu")


def test_seed_scores_show_mean_and_spread():
    assert str(SeedScores({"1": 41.0, "2": 43.0})) == "42.0 ± 1.4"
    assert str(SeedScores({"": 1.2345})) == "1.234" and SeedScores({"": 1.0}).p_value(SeedScores({"": 2.0})) is None
