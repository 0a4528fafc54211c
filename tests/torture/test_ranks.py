"""Ranks killed or sent signals at random moments, several times a job: bit-exact results. Every kind of model on two ranks."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from regard.run.train import train

pytestmark = pytest.mark.torture


def workers(job):
    """Return the pids of a job's ranks, which are the children of torchrun."""
    try:
        return [int(pid) for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def bits(folder):
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    return {file.name: file.read_bytes() for file in [*last.glob("*.safetensors"), folder / "model.safetensors"]}


@pytest.mark.parametrize("kind, ranks", [("ddp", 2), ("fsdp", 2), ("ddp", 3), ("fsdp", 3)])
def test_killing_any_rank_at_any_moment_is_bit_exact(torchrun, write_job, tmp_path, kind, ranks):
    def start(out, restarts):
        return torchrun(
            tmp_path,
            ranks,
            "train",
            "job.toml",
            "--out",
            out,
            "--set",
            f"train.parallel={kind}",
            "--no-evaluate",
            options=["--max-restarts", str(restarts)],
        )

    chance = random.Random(f"{kind} {ranks}")
    write_job(tmp_path / "job.toml", steps=300, evaluate_every=100, save_every=20, log_every=20, ema_decay=0.9)
    whole = start("whole", 0)
    _, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err
    job, kills = start("run", 50), 0
    log = tmp_path / "run" / "log.jsonl"
    while kills < 4 and job.poll() is None:
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
    _, err = job.communicate(timeout=600)
    assert job.returncode == 0 and kills >= 3, err
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")
    print(f"{kind} on {ranks} ranks: {kills} kills, bit-exact")


@pytest.mark.parametrize("kind, ranks", [("ddp", 2), ("fsdp", 2), ("ddp", 3), ("fsdp", 3)])
def test_a_signal_to_any_process_at_any_moment_is_bit_exact(torchrun, write_job, tmp_path, kind, ranks):
    """Most of the time is spent in evaluations, which are interrupted and repeated."""
    write_job(tmp_path / "job.toml", steps=60, evaluate_every=4, save_every=60, log_every=1, evaluate_sentences=24)
    more = ["--set", f"train.parallel={kind}", "--no-evaluate"]
    whole = torchrun(tmp_path, ranks, "train", "job.toml", "--out", "whole", *more)
    _, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err
    chance, log, slowest, signals = random.Random(f"{kind} {ranks}"), tmp_path / "run" / "log.jsonl", 0.0, 0
    job = torchrun(tmp_path, ranks, "train", "job.toml", "--out", "run", *more)
    while signals < 8:
        seen = len(losses(log))
        while job.poll() is None and len(losses(log)) == seen:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.5))
        found = workers(job)
        if job.poll() is not None or not found:
            break
        begun = time.monotonic()
        os.kill(chance.choice([job.pid, *found]), signal.SIGTERM)
        _, err = job.communicate(timeout=60)
        slowest, signals = max(slowest, time.monotonic() - begun), signals + 1
        assert err.count("interrupted; everything is saved") == 1 and "regard: rank" not in err, err
        job = torchrun(tmp_path, ranks, "train", "run", "--resume", "--no-evaluate")
    _, err = job.communicate(timeout=600)
    assert job.returncode == 0 and signals >= 5 and slowest < 15, err
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")
    print(f"{kind} on {ranks} ranks: {signals} signals, the slowest exited after {slowest:.1f} s, bit-exact")


def losses(log):
    return [line for line in log.read_text().splitlines() if '"loss"' in line] if log.exists() else []


SENTENCES = {"data": {"world": {"number": 120, "held_out": 12}}, "tokens": {"size": 400}}
SHAPES = {"data": {"size": 32, "world": {"kind": "shapes", "number": 25, "held_out": 8, "shapes": [1, 2]}}}
WORDS = {**SHAPES, "tokens": {"kind": "words"}}
BLOCK = {"layers": 2, "width": 16, "heads": 2, "feed_forward": 32}
BOTH = {"width": 16, "heads": 2, "feed_forward": 32, "max_length": 64}
KINDS = {
    "without attention": {**SENTENCES, "model": {"kind": "recurrent", "attention": "none", "width": 16, "max_length": 64}},
    "Bahdanau": {**SENTENCES, "model": {"kind": "recurrent", "width": 16, "max_length": 64}},
    "Universal Transformer": {**SENTENCES, "model": {"kind": "universal", "encoder_layers": 2, "decoder_layers": 2, **BOTH}},
    "T5": {**SENTENCES, "model": {"preset": "tiny", **BOTH, "positions": {"kind": "relative"}}},
    "BERT": {"task": "masked", **SENTENCES, "model": {"kind": "transformer", **BLOCK, "max_length": 64}},
    "tagger": {"task": "tag", **SENTENCES, "model": {"kind": "transformer", **BLOCK, "max_length": 64}},
    "ELMo": {"task": "language", **SENTENCES, "model": {"kind": "elmo", "width": 16}},
    "ViT": {
        "task": "classify",
        "data": {**SHAPES["data"], "label_attribute": "kind"},
        "model": {"kind": "vit", "patch_size": 8, **BLOCK},
    },
    "CLIP": {
        "task": "contrastive",
        **WORDS,
        "model": {"projection_width": 8, "image": {"patch_size": 8, **BLOCK}, "text": {**BLOCK, "max_length": 32}},
    },
    "captioner": {
        "task": "caption",
        **WORDS,
        "model": {
            "encoder": {"kind": "patches", "patch_size": 8, **BLOCK},
            "max_length": 40,
            "decoder": {"kind": "transformer", **BLOCK},
        },
    },
    "Show, Attend and Tell": {
        "task": "caption",
        **WORDS,
        "model": {
            "encoder": {"kind": "cnn", "widths": [8, 8, 8], "strides": [2, 2, 2]},
            "decoder": {"kind": "lstm", "width": 16},
            "max_length": 40,
        },
    },
}


def learn(recipe, folder):
    train(recipe, folder, device="cpu")


def curve(folder):
    return [record["loss"] for record in map(json.loads, (folder / "log.jsonl").read_text().splitlines()) if "loss" in record]


@pytest.mark.parametrize("name", KINDS)
def test_every_model_kind_has_the_loss_curve_of_one_process(name, on_ranks, tmp_path):
    batch = {"images_per_batch": 8} if "size" in KINDS[name]["data"] else {"tokens_per_batch": 400}
    short = {"steps": 6, "evaluate_every": 6, "save_every": 6, "log_every": 1, "regularize": {"dropout": 0.0}, **batch}
    on_ranks(1, learn, {**KINDS[name], "train": short}, tmp_path / "one")
    for kind in ("ddp", "fsdp"):
        on_ranks(2, learn, {**KINDS[name], "train": {**short, "parallel": kind}}, tmp_path / kind)
        assert len(curve(tmp_path / kind)) == 6
        assert curve(tmp_path / kind) == pytest.approx(curve(tmp_path / "one"), rel=1e-4, abs=3e-4)
