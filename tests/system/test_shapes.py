"""Image models on a small world of shapes, about a minute each; the full results and recipes are in RESULTS.md."""

import pytest

from regard.run.evaluate import evaluate
from regard.run.train import train

pytestmark = pytest.mark.system


def world(number):
    return {"size": 32, "world": {"kind": "shapes", "number": number, "shapes": [1, 1]}}


def training(number, images=64, **options):
    return {
        "steps": number,
        "images_per_batch": images,
        "evaluate_every": number,
        "save_every": number,
        "optimizer": {"kind": "muon", "learning_rate": 1e-3, "weight_decay": 0.05},
        "schedule": {"warmup_steps": 30},
        "regularize": {"dropout": 0.0, "label_smoothing": 0.0},
        **options,
    }


def train_and_evaluate(recipe, folder):
    run = train({"seed": 1, **recipe}, folder, device="cpu")
    scores = {result.name: {name: score.score for name, score in result.scores.items()} for result in evaluate(run, save=False)}
    print(folder.name, scores)
    return scores


def test_vit_classifies_shapes(tmp_path):
    scores = train_and_evaluate(
        {
            "task": "classify",
            "data": {**world(6000), "label_attribute": "kind"},
            "model": {"kind": "vit", "layers": 3, "width": 64, "heads": 4, "feed_forward": 128, "patch_size": 4},
            "train": training(500, augment={"crop_padding": 2, "flip": True}),
        },
        tmp_path / "vit",
    )
    assert scores["test"]["accuracy"] > 70  # chance: 17


def test_captions_are_true_and_attend_to_what_they_name(tmp_path):
    scores = train_and_evaluate(
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
            "train": training(500, optimizer={"learning_rate": 4e-3, "weight_decay": 0.02}),
            "decode": {"beam": 1},
        },
        tmp_path / "caption",
    )
    assert scores["test"]["true"] > 30
    assert scores["test"]["attention_inside"] > 3 * scores["test"]["inside_by_chance"]


def test_clip_ranks_the_true_caption_first(tmp_path):
    tower = {"layers": 2, "width": 64, "heads": 4, "feed_forward": 128}
    scores = train_and_evaluate(
        {
            "task": "contrastive",
            "data": world(6000),
            "tokens": {"kind": "words"},
            "model": {"projection_width": 64, "image": {**tower, "patch_size": 4}, "text": {**tower, "max_length": 32}},
            "train": training(400, 96, augment={"crop_padding": 2}),
        },
        tmp_path / "clip",
    )
    assert scores["test"]["true_of_100"] > 35  # chance: 1
    assert scores["composition"]["true_of_100"] > 35


def test_generated_images_match_their_captions(tmp_path):
    train_and_evaluate(
        {
            "task": "image-codes",
            "data": world(4000),
            "model": {"quantizer": "vq", "codebook_size": 64, "code_width": 32, "width": 32, "layers": 1},
            "train": training(900, optimizer={"learning_rate": 3e-3}),
        },
        tmp_path / "codes",
    )
    scores = train_and_evaluate(
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
            "train": training(600),
        },
        tmp_path / "draw",
    )
    assert scores["test"]["right_rebuilt"] > 25  # the upper bound with so few codes
    assert scores["test"]["right"] > 10
