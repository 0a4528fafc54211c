"""A sweep: its grid, the runs, resuming, and the summary over seeds."""

import json
import multiprocessing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.run.train import train
from regard.studies import sweep
from regard.studies.sweep import SeedScores, make_trials, run_sweep, run_trials, split_values
from regard.training.checkpoint import list_checkpoints

RECIPE = """
task = "translate"
[data.world]
kind = "addition"
number = 100
held_out = 10
longest = 3
tests = [3]
[tokens]
kind = "characters"
[model]
encoder_layers = 1
decoder_layers = 1
width = 16
heads = 2
feed_forward = 16
max_length = 24
[train]
steps = 2
evaluate_every = 1
save_every = 1
tokens_per_batch = 256
[decode]
beam = 1
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "add.toml"
    path.write_text(RECIPE)
    return path


@given(st.lists(st.one_of(st.integers(), st.floats(allow_nan=False), st.lists(st.integers()), st.text("ab,[]'", max_size=5))))
def test_values_are_split_at_commas_outside_brackets_and_quotes(values):
    written = [json.dumps(value) for value in values]
    if written:
        assert split_values(",".join(written)) == list(dict.fromkeys(written))


def test_the_grid_is_every_combination_in_order():
    trials = make_trials(["train.optimizer.learning_rate=1e-3,1e-4", "seed=1,2"])
    assert [trial.folder for trial in trials] == [
        f"learning_rate={rate},seed={seed}" for rate in ("1e-3", "1e-4") for seed in "12"
    ]
    assert trials[3].overrides == ["train.optimizer.learning_rate=1e-4", "seed=2"]


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


def test_several_devices_share_the_runs(recipe, tmp_path, monkeypatch):
    """The processes are forked here, which is faster."""
    monkeypatch.setattr(sweep, "get_context", lambda method: multiprocessing.get_context("fork"))
    work = [(recipe, tmp_path / f"{seed}", [f"seed={seed}", "train.steps=1"]) for seed in (1, 2, 3)]
    run_trials(work, ["cpu", "cpu"])
    assert all((folder / "scores.json").is_file() for _, folder, _ in work)


def test_seed_scores_show_mean_and_spread():
    assert str(SeedScores({"1": 41.0, "2": 43.0})) == "42.0 ± 1.4"
    assert str(SeedScores({"": 1.2345})) == "1.234" and SeedScores({"": 1.0}).p_value(SeedScores({"": 2.0})) is None
