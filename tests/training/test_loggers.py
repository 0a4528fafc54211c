"""Loggers: each service gets every number of log.jsonl once, a resumed run continues there, a missing package is named.

Weights & Biases and MLflow are stand-ins that record their calls; tests/system/test_logger_packages.py has the packages.
"""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from regard.errors import Interrupted, UserError
from regard.run.train import train
from regard.training.callbacks import Callback
from regard.training.loggers import RUN_IDS

TINY = {
    "data": {"world": {"number": 60, "held_out": 10}},
    "tokens": {"size": 300},
    "model": {"preset": "tiny", "width": 16, "heads": 2, "feed_forward": 32, "max_length": 48},
    "train": {"steps": 6, "tokens_per_batch": 512, "log_every": 1, "evaluate_every": 3, "save_every": 2},
}


class Interrupting(Callback):
    def on_step(self, step, values):
        if step == 4:
            raise Interrupted(15)


def train_in_two_parts(logger, folder):
    """Train with a logger; a signal interrupts the run, which is then resumed."""
    recipe = {**TINY, "train": {**TINY["train"], "log": [logger]}}
    with pytest.raises(Interrupted):
        train(recipe, folder, device="cpu", callbacks=[Interrupting()])
    train(folder, device="cpu", resume=True)


class StandInRun(SimpleNamespace):
    def log(self, values, step):
        self.seen += [(name, step, value) for name, value in values.items()]

    def finish(self, exit_code):
        self.exits.append(exit_code)


@pytest.fixture
def wandb(monkeypatch):
    """Return a stand-in for wandb, which records what it is given."""
    module = ModuleType("wandb")
    module.errors = SimpleNamespace(Error=ConnectionError)
    module.inits, module.seen, module.exits = [], [], []

    def init(**given):
        module.inits.append(given)
        return StandInRun(id=given["id"] or "abc123", seen=module.seen, exits=module.exits)

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_gets_every_number_once_and_a_resumed_run_continues(wandb, numbers_of, numbers_in_log, tmp_path):
    train_in_two_parts("wandb", tmp_path / "run")
    assert numbers_of(wandb.seen) == numbers_in_log(tmp_path / "run")
    assert [given["id"] for given in wandb.inits] == [None, "abc123"] and wandb.exits == [1, 0]
    assert wandb.inits[0]["config"]["train"]["steps"] == 6 and wandb.inits[0]["name"] == "run"
    assert json.loads((tmp_path / "run" / RUN_IDS).read_text()) == {"wandb": "abc123"}


def test_a_service_that_fails_is_one_line_with_the_cure(wandb, tmp_path):
    def init(**given):
        raise ConnectionError("api_key not configured\nlong story")

    wandb.init = init
    recipe = {**TINY, "train": {**TINY["train"], "log": ["wandb"]}}
    with pytest.raises(UserError, match=r"train.log: wandb failed: api_key not configured; log in with: wandb login, or set WAN"):
        train(recipe, tmp_path / "run", device="cpu")


class StandInClient:
    """MLflow's client; runs are kept in the module."""

    def __init__(self, module):
        self.module = module

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id=7) if name in self.module.experiments else None

    def create_experiment(self, name):
        self.module.experiments.append(name)
        return 7

    def create_run(self, experiment_id, run_name):
        assert experiment_id == 7
        return SimpleNamespace(info=SimpleNamespace(run_id=f"run {run_name}"))

    def update_run(self, run_id, status):
        self.module.states.append((run_id, status))

    set_terminated = update_run

    def log_param(self, run_id, key, value):
        self.module.params[key] = value

    def log_batch(self, run_id, metrics):
        self.module.seen += [(one.key, one.step, one.value) for one in metrics]


def test_mlflow_gets_every_number_once_and_a_resumed_run_continues(monkeypatch, numbers_of, numbers_in_log, tmp_path):
    module = ModuleType("mlflow")
    module.experiments, module.states, module.params, module.seen = [], [], {}, []
    module.exceptions = SimpleNamespace(MlflowException=ConnectionError)
    module.entities = SimpleNamespace(
        Metric=lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, timestamp=timestamp, step=step)
    )
    module.MlflowClient = lambda: StandInClient(module)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "attention")
    train_in_two_parts("mlflow", tmp_path / "run")
    assert numbers_of(module.seen) == numbers_in_log(tmp_path / "run")
    assert module.experiments == ["attention"] and module.params["train.steps"] == "6"
    assert module.states == [("run run", "FAILED"), ("run run", "RUNNING"), ("run run", "FINISHED")]


def test_tensorboard_shows_every_number_of_the_log(numbers_in_log, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train_in_two_parts("tensorboard", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    seen = [(name, one.step, one.value) for name in events.Tags()["scalars"] for one in events.Scalars(name)]
    expected = {key[:2] for key in numbers_in_log(tmp_path / "run")}
    assert {(name, step) for name, step, _ in seen} == expected and len(seen) == len(expected)


@pytest.mark.parametrize(("name", "extra"), [("tensorboard", "board"), ("wandb", "wandb"), ("mlflow", "mlflow")])
def test_a_missing_package_is_named_with_its_cure_before_anything_is_written(name, extra, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    recipe = {**TINY, "train": {**TINY["train"], "log": [name]}}
    with pytest.raises(UserError, match=rf'train.log = \["{name}"\] .*: pip install "regard\[{extra}\]"$'):
        train(recipe, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
