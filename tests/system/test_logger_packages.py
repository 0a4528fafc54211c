"""Weights & Biases and MLflow themselves, offline: each has every number of log.jsonl once, and a resumed run continues its run.

`make system` installs them into a folder of their own; the commands run without a network where the kernel can take it away.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from regard.training.loggers import RUN_IDS

pytestmark = pytest.mark.system
PACKAGES = Path(os.environ.get("REGARD_LOGGERS", Path(sys.prefix) / "loggers"))
NO_NETWORK = ["unshare", "--map-root-user", "--net"]
RECIPE = {
    "data": {"world": {"number": 60, "held_out": 10}},
    "tokens": {"size": 300},
    "model": {"preset": "tiny", "width": 16, "heads": 2, "feed_forward": 32, "max_length": 48},
    "train": {"steps": 3, "tokens_per_batch": 512, "log_every": 1, "evaluate_every": 3, "save_every": 3},
}
READ_WANDB = """
import json, sys
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore
for path in sys.argv[1:]:
    store = DataStore()
    store.open_for_scan(path)
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for name, value in values.items():
            if not name.startswith("_"):
                print(json.dumps([name, values["_step"], value]))
"""
READ_MLFLOW = """
import json, sys, mlflow
client = mlflow.MlflowClient()
run = client.get_run(sys.argv[1])
assert run.info.status == "FINISHED" and run.data.params["train.tokens_per_batch"] == "512"
for name in run.data.metrics:
    for one in client.get_metric_history(sys.argv[1], name):
        print(json.dumps([name, one.step, one.value]))
"""


@pytest.fixture(scope="module")
def offline():
    """Return a function that runs Python with the packages, without a network, and returns what it prints."""
    prefix = (
        NO_NETWORK
        if shutil.which("unshare") and not subprocess.run([*NO_NETWORK, "true"], capture_output=True).returncode
        else []
    )
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), str(PACKAGES)])

    def run(*words, **environment):
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
        done = subprocess.run([*prefix, sys.executable, *map(str, words)], env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def train_in_two_parts(offline, folder, logger, **environment):
    """Train with a logger, then resume for more steps; return the id of the run there."""
    if not (PACKAGES / logger).is_dir():
        pytest.skip(f"no {logger} in {PACKAGES}: make system installs it")
    (folder / "recipe.toml").write_text(tomli_w.dumps(RECIPE))
    words = ["-m", "regard", "train", folder / "recipe.toml", "--out", folder / "run", "--device", "cpu", "--no-evaluate"]
    offline(*words, "--log", logger, **environment)
    first = (folder / "run" / RUN_IDS).read_text()
    more = ["--resume", "--set", "train.steps=6", "--device", "cpu", "--no-evaluate"]
    offline("-m", "regard", "train", folder / "run", *more, **environment)
    assert (folder / "run" / RUN_IDS).read_text() == first, "a resumed run continues there"
    return json.loads(first)[logger]


def parse(output):
    return [json.loads(line) for line in output.splitlines()]


def test_wandb_offline_has_every_number_once_under_one_run_id(offline, numbers_of, numbers_in_log, tmp_path):
    run_id = train_in_two_parts(offline, tmp_path, "wandb", WANDB_MODE="offline")
    parts = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert {part.name for part in parts} == {f"run-{run_id}.wandb"}
    assert numbers_of(parse(offline("-c", READ_WANDB, *parts))) == numbers_in_log(tmp_path / "run")


def test_mlflow_in_a_local_store_has_every_number_once(offline, numbers_of, numbers_in_log, tmp_path):
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}"}
    run_id = train_in_two_parts(offline, tmp_path, "mlflow", **store)
    assert numbers_of(parse(offline("-c", READ_MLFLOW, run_id, **store))) == numbers_in_log(tmp_path / "run")
