"""Kernels compiled ahead in a second process: it evaluates and scores, changes nothing, and ends with its parent."""

import hashlib
import subprocess
import sys
import time

import pytest
import torch

from regard.run.train import train
from regard.tasks.shared import warm_up
from regard.tasks.translate import TranslateRun

CPU = torch.device("cpu")
SLEEP = (sys.executable, "-c", "import sys; open(sys.argv[1] + '/started', 'w'); sys.stdin.buffer.read()")
"""Stands in for the second process: says that it has started, and ends when its pipe closes."""


def contents(folder):
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.rglob("*") if path.is_file()}


def test_the_warm_up_validates_in_the_precision_of_training_scores_in_float32_and_writes_nothing(tiny_run, monkeypatch):
    seen = []

    def record(name):
        real = getattr(TranslateRun, name)

        def call(run, *args):
            seen.append((name, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()))
            return real(run, *args)

        monkeypatch.setattr(TranslateRun, name, call)

    record("_validate")
    record("_score")
    monkeypatch.setattr(warm_up, "choose_precision", lambda *_: "bf16")
    before = contents(tiny_run.folder)
    warm_up.warm_up(tiny_run.folder, CPU)
    assert seen == [("_validate", True, False), ("_score", False, True)]
    assert contents(tiny_run.folder) == before


def test_nothing_is_compiled_ahead_without_a_gpu(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setattr(warm_up, "COMMAND", SLEEP)
    with warm_up.compile_ahead(tiny_run.recipe, tmp_path, CPU):
        time.sleep(0.2)
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [({}, True), ({"steps": 999}, False), ({"memory": 39 * 2**30}, False), ({"ranks": 2}, False), ({"marked": True}, False)],
)
def test_kernels_are_compiled_ahead_in_long_runs_with_memory_to_spare_and_once(
    tiny_run, tmp_path, monkeypatch, changed, expected
):
    case = {"steps": 1000, "memory": 40 * 2**30, "ranks": 1, "marked": False, **changed}
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(warm_up, "HAS_TRITON", True)
    monkeypatch.setattr(warm_up, "hardware", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (case["memory"], 2 * case["memory"]))
    monkeypatch.setattr(warm_up.distributed, "world_size", lambda: case["ranks"])
    settings = tiny_run.recipe.model_copy(update={"train": tiny_run.recipe.train.model_copy(update={"steps": case["steps"]})})
    device = torch.device("cuda")
    if case["marked"]:
        warm_up.marker(settings, device).touch()
    assert warm_up.is_worthwhile(settings, device) == expected


def test_the_second_process_runs_while_a_model_is_trained_and_not_after(tiny_settings, tmp_path, monkeypatch):
    processes, popen = [], subprocess.Popen

    def start(*args, **options):
        processes.append(popen(*args, **options))
        return processes[-1]

    monkeypatch.setattr(warm_up, "COMMAND", SLEEP)
    monkeypatch.setattr(warm_up, "is_worthwhile", lambda *_: True)
    monkeypatch.setattr(warm_up.subprocess, "Popen", start)
    tiny_settings["train"].update(steps=2, evaluate_every=2)
    train(tiny_settings, tmp_path / "run", device="cpu")
    (process,) = [one for one in processes if one.args[0] == sys.executable]
    assert process.poll() is not None


@pytest.mark.system
def test_the_second_process_evaluates_and_scores_and_then_writes_its_marker(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(warm_up, "is_worthwhile", lambda *_: True)
    before, marker, until = contents(tiny_run.folder), warm_up.marker(tiny_run.recipe, CPU), time.monotonic() + 120
    with warm_up.compile_ahead(tiny_run.recipe, tiny_run.folder, CPU):
        while not marker.exists() and time.monotonic() < until:
            time.sleep(0.2)
    assert marker.exists() and contents(tiny_run.folder) == before


def test_the_second_process_ends_when_its_parent_is_killed(tiny_run, tmp_path):
    """The parent here holds the pipe alone; without it the process would go on compiling for a run that is gone."""
    code = "import sys, threading, time; from regard.tasks.shared.warm_up import end_with_parent; "
    code += "threading.Thread(target=end_with_parent, daemon=True).start(); print('ready', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    child.stdin.close()  # what the kernel does to a killed parent's pipe
    assert child.wait(timeout=20) == 1
