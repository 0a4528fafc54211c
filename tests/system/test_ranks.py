"""torchrun itself: a job on 2, 1 and 4 ranks; ranks that are killed, frozen, that raise or exit; restarts; shared verbs."""

import json
import shutil
import signal
import subprocess
import time
from functools import partial

import pytest

from regard.run.load import load
from regard.run.train import train
from regard.training import checkpoint
from regard.worlds import bilingual

pytestmark = pytest.mark.system
INJECT = """
import os, signal, sys
from regard import distributed
from regard.training.loop import Trainer
step = Trainer.step
def harmed(self, batches):
    harm, at = os.environ.get("HARM", ""), int(os.environ.get("AT", "0"))
    if self.state.step == at and distributed.rank() == 1 and not distributed.is_restarted():
        if harm == "raise":
            raise ValueError("rank 1 had enough")
        if harm == "exit":
            sys.exit(3)
        if harm == "leave":
            os._exit(0)
        if harm:
            os.kill(os.getpid(), getattr(signal, harm))
    return step(self, batches)
Trainer.step = harmed
from regard.cli import main
main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory, write_job):
    folder = tmp_path_factory.mktemp("job")
    for name, steps in (("job.toml", 20), ("long.toml", 100_000)):
        write_job(
            folder / name,
            steps=steps,
            evaluate_every=steps,
            save_every=5,
            keep_checkpoints=100,
            log_every=1,
            regularize={"dropout": 0.0},
        )
    (folder / "harm.py").write_text(INJECT)
    return folder


@pytest.fixture(scope="module")
def start(torchrun, place):
    return partial(torchrun, place)


def finish(process, seconds=120, text=None):
    out, err = process.communicate(text, timeout=seconds)
    return process.returncode, out, err


def losses(folder):
    found = {}
    for line in (folder / "log.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "loss" in record:
            found[record["step"]] = record["loss"]
    return found


def same_bits(one, other, step):
    return all(
        file.read_bytes() == (other / "checkpoints" / f"step-{step:08d}" / file.name).read_bytes()
        for file in (one / "checkpoints" / f"step-{step:08d}").glob("*.safetensors")
    )


@pytest.fixture(scope="module")
def whole(place, start):
    """The job on two ranks, undisturbed, with FSDP."""
    status, out, err = finish(start(2, "train", "job.toml", "--out", "whole", "--set", "train.parallel=fsdp"))
    assert status == 0, err
    assert out.count("bleu") == 1  # said once
    return place / "whole"


def test_restarts_go_on_to_the_same_bits(place, start, whole):
    job = start(
        2,
        "train",
        "job.toml",
        "--out",
        "again",
        "--set",
        "train.parallel=fsdp",
        options=["--max-restarts", "2"],
        script="harm.py",
        HARM="SIGKILL",
        AT="12",
    )
    status, _, err = finish(job)
    assert status == 0, err
    assert "going on from step 10" in err and same_bits(whole, place / "again", 20)
    assert (place / "again" / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_two_ranks_then_one_then_four(place, start, whole):
    """Each goes on from the same place of the data, and without dropout with the same curve."""
    moved = place / "moved"
    shutil.copytree(whole, moved)
    for path in checkpoint.list_checkpoints(moved / "checkpoints"):
        if path.name > "step-00000005":
            shutil.rmtree(path)
    (moved / "log.jsonl").unlink()
    train(moved, resume=True, overrides=["train.steps=10"], device="cpu")
    status, _, err = finish(start(4, "train", "moved", "--resume", "--set", "train.steps=20", "--no-evaluate"))
    assert status == 0 and "going on from step 10" in err, err
    found, straight = losses(moved), losses(whole)
    assert sorted(found) == list(range(6, 21))
    assert max(abs(found[step] - straight[step]) for step in found) < 1e-3
    assert len(list((moved / "checkpoints" / "step-00000020").glob("model*"))) == 4
    one, other = (json.loads((folder / "checkpoints" / "step-00000020" / "state.json").read_text()) for folder in (moved, whole))
    assert (one["epoch"], one["index"]) == (other["epoch"], other["index"])


@pytest.mark.parametrize(
    "harm, seconds, said",
    [
        ("SIGKILL", 10, "lost the connection to another rank"),
        ("raise", 10, "rank 1 failed: ValueError: rank 1 had enough"),
        ("exit", 10, "lost the connection to another rank"),
        ("leave", 10, "lost the connection to another rank"),
        ("SIGSTOP", 60, "rank 1 has sent no heartbeat"),
    ],
)
def test_one_rank_down_ends_all_with_one_cause_first(start, harm, seconds, said, tmp_path):
    job = start(2, "train", "long.toml", "--out", tmp_path / "run", script="harm.py", HARM=harm, AT="12")
    log = tmp_path / "run" / "log.jsonl"
    while not (log.exists() and log.read_text().count("loss") >= 12):
        assert job.poll() is None, job.stderr.read()
        time.sleep(0.05)
    begun = time.monotonic()
    status, _, err = finish(job)
    took = time.monotonic() - begun
    assert status != 0 and took < seconds, took
    causes = [line for line in err.splitlines() if line.startswith("regard: ")]
    assert len(causes) == 1 and said in causes[0], err
    assert "Traceback" not in err[: err.index("regard: ")]
    path, notes = checkpoint.latest_intact(tmp_path / "run" / "checkpoints")
    assert path.name == "step-00000010" and not notes
    print(f"{harm}: {took:.1f} s")


def test_a_signal_to_one_rank_or_to_torchrun_leaves_a_good_checkpoint(start, tmp_path):
    job = start(2, "train", "long.toml", "--out", tmp_path / "run")
    log = tmp_path / "run" / "log.jsonl"
    while not (log.exists() and log.read_text().count("loss") >= 8):
        assert job.poll() is None, job.stderr.read()
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    status, _, err = finish(job)
    assert status != 0 and time.monotonic() - begun < 10
    path, notes = checkpoint.latest_intact(tmp_path / "run" / "checkpoints")
    last = max(losses(tmp_path / "run"))
    assert not notes and int(path.name[5:]) == last, (path, last)
    assert err.count("interrupted; everything is saved") == 1


def test_a_mistake_is_said_once(place, start):
    status, _, err = finish(start(2, "train", "job.toml", "--set", "train.parallel=none", "--out", "never"))
    assert status != 0 and err.count("regard: train.parallel = 'none'") == 1 and not (place / "never").exists()


def test_translate_and_evaluate_are_shared_and_said_once(start, whole):
    lines = [pair.source for pair in bilingual.generate(50, 9, level=1)]
    text, expected = "\n".join(lines), "".join(f"{best.text}\n" for best in load(whole, device="cpu")._best(lines))
    job = start(2, "translate", whole, stdin=subprocess.PIPE)
    status, out, err = finish(job, text=text)
    assert status == 0 and out == expected and out.count("\n") == 50, err
    before = json.loads((whole / "scores.json").read_text())
    status, out, err = finish(start(2, "evaluate", "whole", "--json"))
    assert status == 0, err
    said = [json.loads(line) for line in out.splitlines()]
    assert {line["metric"]: line["score"] for line in said} == {name: score["score"] for name, score in before["test"].items()}
