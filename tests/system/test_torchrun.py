"""torchrun: a job on 2, 1 and 4 ranks; killed, frozen, failing ranks; restarts; distributed translate and evaluate."""

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
FAULT_SCRIPT = """
import os, signal, sys
from regard import distributed
from regard.training.loop import TrainingLoop
step = TrainingLoop.step
def step_with_fault(self, batches):
    fault, at = os.environ.get("FAULT", ""), int(os.environ.get("AT", "0"))
    if self.state.step == at and distributed.rank() == 1 and not distributed.is_restarted():
        if fault == "raise":
            raise ValueError("injected fault")
        if fault == "exit":
            sys.exit(3)
        if fault == "os-exit":
            os._exit(0)
        if fault:
            os.kill(os.getpid(), getattr(signal, fault))
    return step(self, batches)
TrainingLoop.step = step_with_fault
from regard.cli import main
main()
"""


@pytest.fixture(scope="module")
def job_folder(tmp_path_factory, write_job):
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
    (folder / "fault.py").write_text(FAULT_SCRIPT)
    return folder


@pytest.fixture(scope="module")
def start(torchrun, job_folder):
    return partial(torchrun, job_folder)


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


def same_checkpoint(one, other, step):
    return all(
        file.read_bytes() == (other / "checkpoints" / f"step-{step:08d}" / file.name).read_bytes()
        for file in (one / "checkpoints" / f"step-{step:08d}").glob("*.safetensors")
    )


@pytest.fixture(scope="module")
def uninterrupted(job_folder, start):
    """Return the folder of an uninterrupted job on two ranks, with FSDP."""
    status, out, err = finish(start(2, "train", "job.toml", "--out", "whole", "--set", "train.parallel=fsdp"))
    assert status == 0, err
    assert out.count("bleu") == 1  # printed once
    return job_folder / "whole"


def test_restarted_job_resumes_bit_for_bit(job_folder, start, uninterrupted):
    job = start(
        2,
        "train",
        "job.toml",
        "--out",
        "again",
        "--set",
        "train.parallel=fsdp",
        options=["--max-restarts", "2"],
        script="fault.py",
        FAULT="SIGKILL",
        AT="12",
    )
    status, _, err = finish(job)
    assert status == 0, err
    assert "resuming from step 10" in err and same_checkpoint(uninterrupted, job_folder / "again", 20)
    assert (job_folder / "again" / "model.safetensors").read_bytes() == (uninterrupted / "model.safetensors").read_bytes()


def test_job_resumes_on_one_and_four_ranks(job_folder, start, uninterrupted):
    """From the same position in the data, and without dropout with the same losses."""
    moved = job_folder / "moved"
    shutil.copytree(uninterrupted, moved)
    for path in checkpoint.list_checkpoints(moved / "checkpoints"):
        if path.name > "step-00000005":
            shutil.rmtree(path)
    (moved / "log.jsonl").unlink()
    train(moved, resume=True, overrides=["train.steps=10"], device="cpu")
    status, _, err = finish(start(4, "train", "moved", "--resume", "--set", "train.steps=20", "--no-evaluate"))
    assert status == 0 and "resuming from step 10" in err, err
    found, straight = losses(moved), losses(uninterrupted)
    assert sorted(found) == list(range(6, 21))
    assert max(abs(found[step] - straight[step]) for step in found) < 1e-3
    assert len(list((moved / "checkpoints" / "step-00000020").glob("model*"))) == 4
    one, other = (
        json.loads((folder / "checkpoints" / "step-00000020" / "state.json").read_text()) for folder in (moved, uninterrupted)
    )
    assert (one["epoch"], one["index"]) == (other["epoch"], other["index"])


@pytest.mark.parametrize(
    "fault, seconds, message",
    [
        ("SIGKILL", 10, "lost the connection to another rank"),
        ("raise", 10, "rank 1 failed: ValueError: injected fault"),
        ("exit", 10, "lost the connection to another rank"),
        ("os-exit", 10, "lost the connection to another rank"),
        ("SIGSTOP", 60, "rank 1 has sent no heartbeat"),
    ],
)
def test_failure_of_one_rank_ends_the_job_with_one_message(start, fault, seconds, message, tmp_path):
    job = start(2, "train", "long.toml", "--out", tmp_path / "run", script="fault.py", FAULT=fault, AT="12")
    log = tmp_path / "run" / "log.jsonl"
    while not (log.exists() and log.read_text().count("loss") >= 12):
        assert job.poll() is None, job.stderr.read()
        time.sleep(0.05)
    start_time = time.monotonic()
    status, _, err = finish(job)
    took = time.monotonic() - start_time
    assert status != 0 and took < seconds, took
    causes = [line for line in err.splitlines() if line.startswith("regard: ")]
    assert len(causes) == 1 and message in causes[0], err
    assert "Traceback" not in err[: err.index("regard: ")]
    path, notes = checkpoint.latest_intact(tmp_path / "run" / "checkpoints")
    assert path.name == "step-00000010" and not notes
    print(f"{fault}: {took:.1f} s")


def test_sigterm_to_torchrun_leaves_an_intact_checkpoint(start, tmp_path):
    job = start(2, "train", "long.toml", "--out", tmp_path / "run")
    log = tmp_path / "run" / "log.jsonl"
    while not (log.exists() and log.read_text().count("loss") >= 8):
        assert job.poll() is None, job.stderr.read()
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    start_time = time.monotonic()
    status, _, err = finish(job)
    assert status != 0 and time.monotonic() - start_time < 10
    path, notes = checkpoint.latest_intact(tmp_path / "run" / "checkpoints")
    last = max(losses(tmp_path / "run"))
    assert not notes and int(path.name[5:]) == last, (path, last)
    assert err.count("interrupted; everything is saved") == 1


def test_user_error_is_printed_once(job_folder, start):
    status, _, err = finish(start(2, "train", "job.toml", "--set", "train.parallel=none", "--out", "never"))
    assert status != 0 and err.count("regard: train.parallel = 'none'") == 1 and not (job_folder / "never").exists()


def test_translate_and_evaluate_are_distributed_and_printed_once(start, uninterrupted):
    lines = [pair.source for pair in bilingual.generate(50, 9, level=1)]
    text, expected = "\n".join(lines), "".join(f"{best.text}\n" for best in load(uninterrupted, device="cpu")._best(lines))
    job = start(2, "translate", uninterrupted, stdin=subprocess.PIPE)
    status, out, err = finish(job, text=text)
    assert status == 0 and out == expected and out.count("\n") == 50, err
    before = json.loads((uninterrupted / "scores.json").read_text())
    status, out, err = finish(start(2, "evaluate", "whole", "--json"))
    assert status == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert {line["metric"]: line["score"] for line in lines} == {name: score["score"] for name, score in before["test"].items()}
