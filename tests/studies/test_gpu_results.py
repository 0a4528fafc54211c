"""benchmarks/gpu_results.py: its plan, and the table that it keeps."""

import importlib.util
import json
import multiprocessing
import sys
from collections import Counter
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.studies import trials

ROOT = Path(__file__).parents[2]
PLAN = """
[[runs]]
recipe = "{0}"
name = "first"
seeds = [1]
[[runs]]
recipe = "{0}"
name = "second"
after = "first"
set = ["train.init_from.run={{after}}", "train.steps=3"]
seeds = [1, 2]
"""


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_results", ROOT / "benchmarks" / "gpu_results.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_results", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plan(recipe, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(recipe))
    return path


def test_the_shipped_plan_has_valid_recipes(script, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    planned = script.read_plan(ROOT / "benchmarks" / "gpu_results.toml", tmp_path, [])
    number_of_seeds = Counter(one.name for one in planned)
    number_of_seeds.pop("imdb-masked")  # what several seeds of another recipe are fine-tuned from
    assert set(number_of_seeds.values()) == {3}


def test_a_plan_is_read_in_order_with_the_folder_of_the_run_before(script, plan, tmp_path):
    first, second, third = script.read_plan(plan, tmp_path / "out", ["train.log_every=7"])
    assert second.trial.after == third.trial.after == (first.trial.folder,)
    start = f"train.init_from.run={first.trial.folder}"
    assert third.trial.overrides == (start, "train.steps=3", "train.log_every=7", "seed=2")
    assert script.read_plan(plan, tmp_path / "out", ["train.log_every=7"], ["second"]) == [first, second, third]
    assert script.read_plan(plan, tmp_path / "out", ["train.log_every=7"], ["first"]) == [first]
    with pytest.raises(UserError, match=r"--only third: .* has no run of this name"):
        script.read_plan(plan, tmp_path / "out", [], ["third"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("after =", "afterwards ="), "no field 'afterwards'"),
        (('after = "first"', 'after = "fist"'), "no run of this name"),
        (('name = "second"', 'name = "first"'), "two runs are named 'first'"),
        (("train.steps", "train.stepz"), "did you mean 'steps'"),
    ],
)
def test_a_malformed_plan_is_refused_before_anything_is_trained(script, plan, tmp_path, capsys, change, message):
    plan.write_text(plan.read_text().replace(*change))
    assert script.main([str(plan), "--out", str(tmp_path / "out"), "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


def pretend(trial, device):
    """Stand in for a training: write a log and scores, and fail for seed 2."""
    seed = int(trial.overrides[-1].partition("=")[2])
    trial.folder.mkdir()
    record = {"step": 2, "valid_loss": 1.5 * seed, "best": True}
    (trial.folder / "log.jsonl").write_text(json.dumps(record) + "\n")
    if seed == 2:
        raise UserError("out of memory")
    (trial.folder / "scores.json").write_text(json.dumps({"test": {"bleu": {"score": 40.0 + seed}}}))
    for name in ("model.safetensors", "README.md"):
        (trial.folder / name).touch()


def test_the_table_has_scores_and_failures_as_they_come_in(script, plan, tmp_path, monkeypatch):
    monkeypatch.setattr(trials, "get_context", lambda method: multiprocessing.get_context("fork"))
    monkeypatch.setattr(trials, "run_trial", pretend)
    tables = []
    write = script.write_results
    monkeypatch.setattr(script, "write_results", lambda out, rows: (tables.append(rows), write(out, rows)))
    out = tmp_path / "out"
    assert script.main([str(plan), "--out", str(out), "--device", "cpu", "--jobs", "2", "--limit", "60"]) == 1
    assert [row["status"] for row in tables[0]] == ["running", "waiting", "waiting"]
    first, second, failed = json.loads((out / "results.json").read_text())
    assert [row["status"] for row in (first, second, failed)] == ["finished", "finished", "out of memory"]
    assert second["test"] == {"test bleu": 41.0} and failed["valid"] == {"valid_loss": 3.0} and failed["step"] == 2
    text = (out / "results.md").read_text()
    assert "| second, seed 2 | out of memory |" in text and "| second | 1 | test bleu 41.0 |" in text
