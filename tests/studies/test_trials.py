"""Trials side by side: their order, their errors, the time limit, and what is left after a kill."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from regard.errors import Interrupted, UserError
from regard.files import lock_folder
from regard.studies import trials
from regard.studies.trials import STOPPED, Trial, run_trials, visible_devices
from regard.training.checkpoint import checkpoint_step, list_checkpoints

ENDLESS = ("train.steps=1000000", "train.evaluate_every=1000000", "train.save_every=1000000")


@pytest.fixture
def fork(monkeypatch):
    """Fork the processes, which is faster than to spawn them."""
    monkeypatch.setattr(trials, "get_context", lambda method: multiprocessing.get_context("fork"))


def is_alive(pid):
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.05)


def pretend(trial, device):
    """Stand in for a training: fail, or write the files of a finished run."""
    print("training", trial.folder.name, flush=True)
    if "bad" in trial.overrides:
        raise UserError("data.train: no such file")
    time.sleep(0.2)
    for name in ("model.safetensors", "README.md"):
        trial.folder.mkdir(exist_ok=True)
        (trial.folder / name).touch()


def test_trials_share_the_devices_and_each_has_its_log(recipe, tmp_path, fork, monkeypatch):
    monkeypatch.setattr(trials, "run_trial", pretend)
    work = [Trial(recipe, tmp_path / name) for name in "abc"]
    at_once = []
    states = run_trials(work, ["cpu", "cpu"], on_change=lambda states: at_once.append(sum(one.is_running for one in states)))
    assert [state.status for state in states] == ["finished"] * 3
    assert max(at_once) == 2 and at_once[-1] == 0
    assert all(one.log.is_file() for one in work)
    assert all(state.seconds is None for state in run_trials(work, ["cpu", "cpu"])), "finished ones are kept"


def test_a_trial_waits_for_the_one_it_starts_from_and_fails_with_it(recipe, tmp_path, fork, monkeypatch):
    monkeypatch.setattr(trials, "run_trial", pretend)
    first, bad = Trial(recipe, tmp_path / "first"), Trial(recipe, tmp_path / "fails", ("bad",))
    second, orphan = (Trial(recipe, tmp_path / name, after=(one.folder,)) for name, one in (("second", first), ("orphan", bad)))
    order = []

    def keep_order(states):
        order.extend(one.trial.folder.name for one in states if one.is_running and one.trial.folder.name not in order)

    states = run_trials([second, orphan, first, bad], ["cpu", "cpu"], on_change=keep_order)
    assert [state.status == "finished" for state in states] == [True, False, True, False]
    assert order == ["first", "fails", "second"]
    assert states[3].error == "data.train: no such file" and str(bad.folder) in states[1].error


def test_interrupted_trials_write_a_checkpoint_and_the_next_call_resumes(recipe, tmp_path, fork, monkeypatch):
    monkeypatch.setattr(trials, "TICK_SECONDS", 0.1)
    trial = Trial(recipe, tmp_path / "long", (*ENDLESS, "train.log_every=1"))
    checkpoints = [0]

    def events():
        text = (trial.folder / "log.jsonl").read_text() if (trial.folder / "log.jsonl").is_file() else ""
        return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]

    def interrupt_after_a_step(states):
        if states[0].is_running and max((event.get("step", 0) for event in events()), default=0) > checkpoints[-1]:
            raise Interrupted(signal.SIGTERM)

    for _ in range(2):
        with pytest.raises(Interrupted):
            run_trials([trial], ["cpu"], seconds=100, on_change=interrupt_after_a_step)
        checkpoints.append(checkpoint_step(list_checkpoints(trial.folder / "checkpoints")[-1]))
    assert 0 < checkpoints[1] < checkpoints[2]
    assert [event["step"] for event in events() if event.get("event") == "resume"] == [checkpoints[1]]


def _start_child_and_hang(trial, device):
    """Stand in for a training that ignores SIGTERM and has started a process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    trial.folder.mkdir()
    (trial.folder / "pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")
def test_a_trial_that_ignores_the_time_limit_is_killed_with_all_that_it_started(recipe, tmp_path, fork, monkeypatch):
    monkeypatch.setattr(trials, "run_trial", _start_child_and_hang)
    monkeypatch.setattr(trials, "GRACE_SECONDS", 0.5)
    (state,) = run_trials([Trial(recipe, tmp_path / "hung")], ["cpu"], seconds=3)
    assert state.status == STOPPED
    pids = [int(pid) for pid in (tmp_path / "hung" / "pids").read_text().split()]
    wait_until(lambda: not any(map(is_alive, pids)), 5)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")
def test_trials_end_with_a_parent_that_was_killed(recipe, tmp_path):
    """And none of them holds its folder: the same call can resume at once."""
    trial = Trial(recipe, tmp_path / "run", (*ENDLESS, "train.save_every=1"))
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
        from pathlib import Path, PosixPath
        from regard.studies.trials import Trial, run_trials
        if __name__ == "__main__":
            run_trials([{trial!r}], ["cpu", "cpu"])
        """)
    )
    parent = subprocess.Popen([sys.executable, str(script)])
    wait_until(lambda: list_checkpoints(trial.folder / "checkpoints"))
    children = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
    parent.kill()
    parent.wait()
    assert children
    wait_until(lambda: not any(map(is_alive, children)), 10)
    with lock_folder(trial.folder):
        pass


def test_each_device_is_listed_as_often_as_it_has_jobs():
    assert visible_devices("cpu", 3) == ["cpu"] * 3
