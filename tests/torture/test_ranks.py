"""Ranks killed at random moments, several times a job, with restarts: the same bits in the end."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.torture
RECIPE = """
[data]
world = {number = 400, held_out = 24}
[tokens]
size = 300
[model]
preset = "tiny"
width = 16
heads = 2
feed_forward = 32
max_length = 48
[train]
steps = 600
tokens_per_batch = 512
evaluate_every = 100
save_every = 20
log_every = 20
ema = 0.9
"""


def start(place, ranks, kind, out, restarts):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "--max-restarts",
               str(restarts), "-m", "regard", "train", "job.toml", "--out", out, "--set", f"train.parallel={kind}",
               "--no-evaluate"]
    known = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(place / "cache"),
             "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=known, cwd=place)


def workers(job):
    """The ranks of a job, which are the children of torchrun."""
    try:
        return [int(pid) for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def bits(folder):
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    return {file.name: file.read_bytes() for file in [*last.glob("*.safetensors"), folder / "model.safetensors"]}


@pytest.mark.parametrize("kind, ranks", [("ddp", 2), ("fsdp", 2), ("ddp", 3), ("fsdp", 3)])
def test_any_rank_killed_at_any_moment(tmp_path, kind, ranks):
    chance = random.Random(f"{kind} {ranks}")
    (tmp_path / "job.toml").write_text(RECIPE)
    whole = start(tmp_path, ranks, kind, "whole", 0)
    _, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err
    job, kills = start(tmp_path, ranks, kind, "run", 50), 0
    log = tmp_path / "run" / "log.jsonl"
    while kills < 5 and job.poll() is None:
        seen = log.read_text().count("loss") if log.exists() else 0
        while job.poll() is None and (log.read_text().count("loss") if log.exists() else 0) < seen + 2:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1.0))
        if found := workers(job):
            try:
                os.kill(chance.choice(found), signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                continue
    _, err = job.communicate(timeout=300)
    assert job.returncode == 0 and kills >= 3, err
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")
    print(f"{kind} on {ranks} ranks: {kills} kills, the same bits")
