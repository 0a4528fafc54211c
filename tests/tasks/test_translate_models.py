"""Every kind of translation model: training, resuming, scoring, init_from and alignment figures."""

import shutil

import pytest

import regard
from regard.errors import UserError
from regard.run.evaluate import evaluate
from regard.run.train import train
from regard.show.attention import show_alignment
from regard.show.selection import ViewSelection

KINDS = {
    "without attention": {"kind": "recurrent", "cell": "gru", "attention": "none", "width": 16, "max_length": 48},
    "Bahdanau": {"kind": "recurrent", "width": 16, "max_length": 48},
    "Luong": {
        "kind": "recurrent",
        "cell": "lstm",
        "attention": "general",
        "decoder": "luong",
        "width": 16,
        "tie": "all",
        "max_length": 48,
    },
    "universal": {
        "kind": "universal",
        "encoder_layers": 3,
        "decoder_layers": 3,
        "width": 16,
        "heads": 2,
        "feed_forward": 32,
        "max_length": 48,
    },
}


@pytest.fixture
def short_settings(tiny_settings):
    tiny_settings["train"].update(steps=6, evaluate_every=3, save_every=3, log_every=2, evaluate_sentences=4)
    tiny_settings["data"]["world"].update(number=300, held_out=20)
    return tiny_settings


@pytest.mark.parametrize("name", KINDS)
def test_translation_model_trains_evaluates_loads_and_shows_alignment(name, short_settings, tmp_path):
    run = train({**short_settings, "model": KINDS[name]}, tmp_path / "run", device="cpu")
    (result,) = evaluate(run)
    text = run.data.valid.source[0]
    assert regard.load(run.folder, device="cpu")._best([text]) == run._best([text])
    if name == "without attention":
        assert "alignment_error" not in result.scores
        with pytest.raises(UserError, match="has nothing to show"):
            show_alignment(run, text, ViewSelection())
    else:
        assert 0 <= result.scores["alignment_error"].score <= 1
        show_alignment(run, text, ViewSelection()).save(tmp_path / "a.svg")
        assert (tmp_path / "a.svg").exists()


@pytest.mark.parametrize("name", KINDS)
def test_resumed_translation_model_equals_uninterrupted_bit_for_bit(name, short_settings, tmp_path):
    short_settings["train"]["regularize"] = {"dropout": 0.1}
    whole = train({**short_settings, "model": KINDS[name]}, tmp_path / "whole", device="cpu")
    part = shutil.copytree(whole.folder, tmp_path / "part")
    shutil.rmtree(part / "checkpoints" / "step-00000006")
    (part / "model.safetensors").unlink()
    again = train(part, resume=True, device="cpu")
    assert (again.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


def test_init_from_loads_selected_modules(short_settings, tmp_path):
    first = train({**short_settings, "model": KINDS["Bahdanau"]}, tmp_path / "first", device="cpu")
    init_from = {"run": str(first.folder), "modules": ["encoder."]}
    frozen = {
        **short_settings["train"],
        "init_from": init_from,
        "steps": 1,
        "evaluate_every": 1,
        "optimizer": {"learning_rate": 1e-30},
    }
    second = train({**short_settings, "seed": 7, "model": KINDS["Bahdanau"], "train": frozen}, tmp_path / "second", device="cpu")
    theirs, mine = dict(first.model.named_parameters()), dict(second.model.named_parameters())
    for name, weights in mine.items():
        assert name.startswith("encoder.") == bool((weights == theirs[name]).all()) or weights.std() == 0
    with pytest.raises(UserError, match="has no weights named so; it has bridge, decoder"):
        missing_module = {**frozen, "init_from": {**init_from, "modules": ["nose"]}}
        train({**short_settings, "model": KINDS["Bahdanau"], "train": missing_module}, tmp_path / "third")


def test_reverse_swaps_source_and_target(short_settings, tmp_path):
    forward = train(short_settings, tmp_path / "forward", device="cpu")
    short_settings["data"]["reverse"] = True
    backward = train(short_settings, tmp_path / "backward", device="cpu")
    assert backward.data.valid.source == forward.data.valid.target and backward.data.valid.gold is None
