"""The world of shapes in small: each of the picture models learns what it should, in about a minute; the full figures are in
RESULTS.md, with their recipes."""

import pytest

from regard.run.evaluate import evaluate
from regard.run.train import train

pytestmark = pytest.mark.system


def world(number):
    return {"size": 32, "world": {"kind": "shapes", "number": number, "shapes": [1, 1]}}


def steps(number, pictures=64, **more):
    return {
        "steps": number,
        "images_per_batch": pictures,
        "evaluate_every": number,
        "save_every": number,
        "optimizer": {"kind": "muon", "learning_rate": 1e-3, "weight_decay": 0.05},
        "schedule": {"warmup_steps": 30},
        "regularize": {"dropout": 0.0, "label_smoothing": 0.0},
        **more,
    }


def scored(recipe, folder):
    run = train({"seed": 1, **recipe}, folder, device="cpu")
    found = {result.name: {name: score.score for name, score in result.scores.items()} for result in evaluate(run, save=False)}
    print(folder.name, found)
    return run, found


def test_a_vision_transformer_names_shapes(tmp_path):
    _, found = scored(
        {
            "task": "classify",
            "data": {**world(6000), "label_attribute": "kind"},
            "model": {"kind": "vit", "layers": 3, "width": 64, "heads": 4, "feed_forward": 128, "patch_size": 4},
            "train": steps(500, augment={"crop_padding": 2, "flip": True}),
        },
        tmp_path / "vit",
    )
    assert found["test"]["accuracy"] > 70  # chance: 17


def test_captions_are_true_and_look_at_what_they_name(tmp_path):
    _, found = scored(
        {
            "task": "caption",
            "data": world(6000),
            "tokens": {"kind": "words"},
            "model": {
                "max_length": 40,
                "encoder": {"kind": "cnn", "widths": [32, 64], "strides": [2, 2]},
                "decoder": {
                    "kind": "lstm",
                    "width": 96,
                    "embedding_width": 64,
                    "attention_width": 64,
                    "query_with_word": True,
                    "doubly_stochastic_weight": 0.0,
                },
            },
            "train": steps(500, optimizer={"learning_rate": 4e-3, "weight_decay": 0.02}),
            "decode": {"beam": 1},
        },
        tmp_path / "caption",
    )
    assert found["test"]["true"] > 30
    assert found["test"]["attention_inside"] > 3 * found["test"]["inside_by_chance"]


def test_a_text_is_told_from_those_that_are_false(tmp_path):
    tower = {"layers": 2, "width": 64, "heads": 4, "feed_forward": 128}
    _, found = scored(
        {
            "task": "contrastive",
            "data": world(6000),
            "tokens": {"kind": "words"},
            "model": {"projection_width": 64, "image": {**tower, "patch_size": 4}, "text": {**tower, "max_length": 32}},
            "train": steps(400, 96, augment={"crop_padding": 2}),
        },
        tmp_path / "clip",
    )
    assert found["test"]["true_of_100"] > 35  # chance: 1
    assert found["composition"]["true_of_100"] > 35


def test_pictures_are_drawn_as_they_are_described(tmp_path):
    scored(
        {
            "task": "image-codes",
            "data": world(4000),
            "model": {"quantizer": "vq", "codebook_size": 64, "code_width": 32, "width": 32, "layers": 1},
            "train": steps(600, optimizer={"learning_rate": 3e-3}),
        },
        tmp_path / "codes",
    )
    _, found = scored(
        {
            "task": "text-to-image",
            "data": world(4000),
            "tokens": {"kind": "words"},
            "model": {
                "image_codes": {"run": str(tmp_path / "codes")},
                "layers": 3,
                "width": 96,
                "heads": 4,
                "feed_forward": 192,
                "text_length": 16,
            },
            "train": steps(400),
        },
        tmp_path / "draw",
    )
    assert found["test"]["right_rebuilt"] > 14  # the most that these few codes allow
    assert found["test"]["right"] > 5
