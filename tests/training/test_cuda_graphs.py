"""Steps replayed from CUDA graphs equal eager steps."""

import pytest
import torch

from regard.run.train import read_data, train
from regard.studies.ladder_plan import time_step
from regard.tasks import build_recipe
from regard.training import cuda_graphs

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
WORLD = {
    "task": "translate",
    "data": {"world": {"kind": "bilingual", "number": 400}},
    "tokens": {"kind": "words"},
    "model": {"encoder_layers": 1, "decoder_layers": 1, "width": 32, "heads": 2, "feed_forward": 64},
    "train": {
        "steps": 40,
        "tokens_per_batch": 512,
        "evaluate_every": 40,
        "save_every": 40,
        "log_every": 10,
        "regularize": {"dropout": 0.1},
    },
}

BAHDANAU = {
    **WORLD,
    "model": {"kind": "recurrent", "cell": "gru", "width": 16, "attention": "additive", "decoder": "bahdanau"},
}
UNIVERSAL = {**WORLD, "model": {**WORLD["model"], "kind": "universal"}}
IMAGES = {
    "task": "classify",
    "data": {"size": 32, "label_attribute": "kind", "world": {"kind": "shapes", "number": 400, "shapes": [1, 1]}},
    "model": {"kind": "vit", "layers": 1, "width": 32, "heads": 2, "feed_forward": 64, "patch_size": 8},
    "train": {
        "steps": 40,
        "images_per_batch": 48,
        "evaluate_every": 40,
        "save_every": 40,
        "log_every": 10,
        "augment": {"crop_padding": 2, "flip": True, "mixup": 0.5},
    },
}

HYBRID = {**IMAGES, "model": {**IMAGES["model"], "stem": "residual"}}


def train_run(folder, recipe=WORLD, **more):
    settings = {**recipe, "train": {**recipe["train"], **more}}
    return train(settings, folder, device="cuda" if torch.cuda.is_available() else "cpu")


@cuda
@pytest.mark.parametrize(
    "recipe, more",
    [
        (WORLD, {}),
        (WORLD, {"optimizer": {"kind": "muon"}}),
        (WORLD, {"ema_decay": 0.9}),
        (WORLD, {"gradient_accumulation_steps": 2}),
        (UNIVERSAL, {}),
        (BAHDANAU, {}),
        (IMAGES, {}),
        (HYBRID, {}),
    ],
)
def test_replayed_steps_equal_eager_steps(tmp_path, monkeypatch, recipe, more):
    """With dropout, changing learning rates and many shapes, captured and eager steps give the same weights."""
    one = train_run(tmp_path / "captured", recipe, cuda_graphs=True, **more)
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 0)
    other = train_run(tmp_path / "eager", recipe, cuda_graphs=True, **more)
    for p, q in zip(one.model.parameters(), other.model.parameters()):
        torch.testing.assert_close(p, q, atol=2e-4, rtol=1e-3)


@cuda
@pytest.mark.parametrize("norm_first", [False, True])
def test_captured_steps_with_dropout_run_again_to_the_bit(tmp_path, norm_first):
    recipe = {**WORLD, "model": {**WORLD["model"], "norm_first": norm_first}}
    regularize = {"dropout": 0.1, "activation_dropout": 0.1, "r_drop": 1.0}
    train_run(tmp_path / "run", recipe, cuda_graphs=True, save_every=20, keep_checkpoints=2, regularize=regularize)
    train(tmp_path / "run", resume=True, verify=20, device="cuda" if torch.cuda.is_available() else "cpu")


@cuda
def test_steps_are_captured_outside_of_a_training_too():
    """The ladder times them on the default stream, which cannot be captured itself."""
    settings = build_recipe({**WORLD, "train": {**WORLD["train"], "cuda_graphs": True, "steps": 400}})
    assert 0 < time_step(settings, read_data(settings), "cuda") < 0.1


@cuda
def test_an_lstm_encoder_trains_without_graphs_and_says_so(tmp_path, capsys):
    """The host reads the lengths in every step, which cannot be captured."""
    recurrent = {**WORLD, "model": {"kind": "recurrent", "cell": "lstm", "width": 16}}
    train_run(tmp_path / "run", recurrent, cuda_graphs=True)
    assert "training without CUDA graphs" in " ".join(capsys.readouterr().err.split())


@cuda
def test_by_default_a_long_enough_training_is_captured_and_says_so(tmp_path, capsys):
    images = {**IMAGES, "train": {**IMAGES["train"], "steps": 300, "evaluate_every": 300, "save_every": 300}}
    train_run(tmp_path / "run", images)
    said = " ".join(capsys.readouterr().err.split())
    assert "steps: CUDA graphs (for 99% of 300 steps), not compiled" in said and "without CUDA graphs" not in said


def test_cuda_graphs_without_a_gpu_only_change_the_padding(tmp_path):
    run = train_run(tmp_path / "run", cuda_graphs=True, steps=2, evaluate_every=2, save_every=2)
    assert run.recipe.train.cuda_graphs
