"""Longer training runs: other architectures learn; compiled training equals eager; a killed run resumes bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from regard.run.evaluate import evaluate
from regard.run.train import train

pytestmark = pytest.mark.system

WORLD = {
    "data": {"world": {"number": 20_000, "held_out": 200}},
    "tokens": {"size": 1000},
    "model": {"preset": "tiny", "max_length": 64},
    "train": {
        "steps": 250,
        "tokens_per_batch": 1024,
        "evaluate_every": 250,
        "save_every": 250,
        "optimizer": {"learning_rate": 3e-3},
        "schedule": {"warmup_steps": 50},
        "regularize": {"dropout": 0.0},
    },
}
VARIANTS = {
    "as published": {
        "train": {"optimizer": {"kind": "adam", "learning_rate": 2e-3}, "schedule": {"kind": "inverse-sqrt", "warmup_steps": 100}}
    },
    "rotary, RMS, SwiGLU, grouped heads": {
        "model": {
            "positions": {"kind": "rotary"},
            "norm": "rms",
            "norm_first": True,
            "activation": "swiglu",
            "key_value_heads": 2,
        }
    },
    "relative bias, muon, trapezoid": {
        "model": {"positions": {"kind": "relative"}, "norm_first": True},
        "train": {"optimizer": {"kind": "muon"}, "schedule": {"kind": "trapezoid"}},
    },
    "ALiBi, learned widths, unigram": {
        "model": {"positions": {"kind": "alibi"}, "encoder_widths": [96, 128], "norm_first": True},
        "tokens": {"kind": "unigram"},
        "train": {"tokens_per_batch": 2048},
    },
    "separate vocabularies, R-Drop, BPE-dropout, EMA": {
        "model": {"positions": {"kind": "learned"}, "tie": "target", "norm_first": True},
        "tokens": {"joint": False, "size": 600},
        "train": {
            "ema_decay": 0.98,
            "regularize": {"dropout": 0.05, "r_drop": 1.0, "bpe_dropout": 0.05},
        },
    },
}


def merge(base, change):
    return {
        **base,
        **{key: merge(base.get(key, {}), value) if isinstance(value, dict) else value for key, value in change.items()},
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_transformer_variants_learn(name, tmp_path):
    run = train(merge(WORLD, VARIANTS[name]), tmp_path / "run", device="cpu")
    (result,) = evaluate(run, save=False)
    print(name, result.scores["bleu"])
    assert result.scores["bleu"].score > 20


def test_compiled_training_equals_eager_training(tmp_path):
    shallow = {"encoder_layers": 1, "decoder_layers": 1}
    short = merge(WORLD, {"model": shallow, "train": {"steps": 20, "evaluate_every": 20, "save_every": 20, "log_every": 1}})
    curves = []
    for compiled in (False, True):
        run = train(merge(short, {"train": {"compile": compiled}}), tmp_path / str(compiled), device="cpu")
        lines = (run.folder / "log.jsonl").read_text().splitlines()
        curves.append([json.loads(line)["loss"] for line in lines if '"loss"' in line])
    assert len(curves[0]) == 20
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), atol=2e-3, rtol=2e-3)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return the folder of an uninterrupted run."""
    settings = merge(
        WORLD,
        {"data": {"world": {"number": 2000, "held_out": 50}}, "train": {"steps": 60, "save_every": 5, "evaluate_every": 20}},
    )
    return train(settings, tmp_path_factory.mktemp("uninterrupted") / "run", device="cpu").folder


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_run_resumes_bit_for_bit(uninterrupted, number, tmp_path):
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "regard", "train", "--device", "cpu"]
    env = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # bits depend on the number of threads
    child = subprocess.Popen(
        [*command, str(uninterrupted / "recipe.toml"), "--out", str(folder)], stderr=subprocess.PIPE, env=env
    )
    while not list((folder / "checkpoints").glob("step-*")):
        time.sleep(0.05)
        assert child.poll() is None
    time.sleep(0.5)
    child.send_signal(number)
    status = child.wait(60)
    assert status == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    assert subprocess.run([*command, str(folder), "--resume"], stderr=subprocess.PIPE, env=env).returncode == 0
    assert (folder / "model.safetensors").read_bytes() == (uninterrupted / "model.safetensors").read_bytes()
