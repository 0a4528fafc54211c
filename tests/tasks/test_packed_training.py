"""Training with sequence packing: learning, bit-exact resuming and refused settings."""

import copy
import json
import shutil

import pytest

import regard
from regard.errors import UserError
from regard.run.evaluate import evaluate
from regard.run.train import train
from regard.tasks import build_recipe

BASE = {
    "data": {"world": {"number": 400, "held_out": 40}, "pack": True, "too_long": "split"},
    "tokens": {"size": 300},
    "model": {"kind": "transformer", "layers": 1, "heads": 4, "feed_forward": 96, "width": 48, "max_length": 40},
    "train": {
        "steps": 80,
        "tokens_per_batch": 640,
        "evaluate_every": 40,
        "save_every": 40,
        "optimizer": {"learning_rate": 1e-2},
        "schedule": {"warmup_steps": 10},
        "regularize": {"dropout": 0.1, "label_smoothing": 0.0},
    },
}


def settings(task, **changes):
    merged = {"task": task, **copy.deepcopy(BASE)}
    for part, change in changes.items():
        merged[part] = {**merged.get(part, {}), **change}
    return merged


@pytest.mark.parametrize(
    "task, more",
    [
        ("language", {"train": {"regularize": {"bpe_dropout": 0.2, "dropout": 0.1, "r_drop": 1.0}}}),
        ("masked", {"masking": {"whole_words": True}, "model": {"segments": 2, "max_length": 16}}),
    ],
    ids=["language", "masked"],
)
def test_packed_training_learns_and_resumes_bit_for_bit(task, more, tmp_path):
    config = settings(task, **more)
    run = train(config, tmp_path / "run", device="cpu")
    first_record = json.loads((run.folder / "log.jsonl").read_text().splitlines()[0])
    assert first_record["padding_fraction"] < 0.05 and (first_record["too_long"] > 0) == (task == "masked")
    (result,) = evaluate(run)
    assert result.scores["perplexity"].high < run.tokenizers[0].size / 2
    whole = (run.folder / "model.safetensors").read_bytes()
    shutil.rmtree(run.folder / "checkpoints" / "step-00000080")
    (run.folder / "model.safetensors").unlink()
    again = train(run.folder, resume=True, device="cpu")
    assert (again.folder / "model.safetensors").read_bytes() == whole
    assert regard.load(run.folder, device="cpu").recipe.data.pack


@pytest.mark.parametrize(
    "task, changes, message",
    [
        ("language", {"model": {"kind": "recurrent"}}, "data.pack: a model of kind 'recurrent' would read on from one line"),
        ("language", {"data": {"stream": True}}, "data.pack packs lines, and a stream has none"),
        (
            "masked",
            {"model": {"segments": 2}, "masking": {"next_sentence": True}},
            "data.pack: masking.next_sentence reads pairs of whole lines",
        ),
        (
            "masked",
            {"model": {"segments": 2}, "masking": {"next_sentence": True}, "data": {"pack": False}},
            "too_long = .split.: ",
        ),
        ("span-corruption", {}, "data.pack: only the tasks language and masked"),
        (
            "span-corruption",
            {"data": {"pack": False}, "train": {"regularize": {"bpe_dropout": 0.1}}},
            "cuts every line at the same places",
        ),
        ("translate", {}, "no setting 'pack' in data"),
    ],
)
def test_unsupported_packing_settings_are_refused(task, changes, message):
    config = settings(task, **changes)
    if task in ("span-corruption", "translate") or changes.get("model", {}).get("kind") == "recurrent":
        config["model"] = changes.get("model", {})
    if task == "translate":
        config["data"]["too_long"] = "drop"
    with pytest.raises(UserError, match=message):
        build_recipe(config)
