"""Runs that read pictures, shared by those that explain them and those that show what they attend to."""

import copy

import pytest
from PIL import Image

from regard.run.train import train
from regard.worlds import shapes

TOWER = {"layers": 1, "width": 16, "heads": 2, "feed_forward": 32}
MODELS = {
    "classify": {"kind": "vit", "patch_size": 8, **TOWER},
    "contrastive": {"projection_width": 8, "image": {"patch_size": 8, **TOWER}, "text": {**TOWER, "max_length": 32}},
    "caption": {
        "encoder": {"kind": "patches", "patch_size": 8, "pool": "class", **TOWER},
        "decoder": {"kind": "transformer", **TOWER},
        "max_length": 40,
    },
    "lstm": {
        "encoder": {"kind": "cnn", "widths": [8, 8, 8], "strides": [2, 2, 2]},
        "decoder": {"kind": "lstm", "width": 16},
        "max_length": 40,
    },
}


@pytest.fixture(scope="session")
def sighted(tmp_path_factory):
    """Untaught: what they say is poor, how it is explained is not."""
    folder = tmp_path_factory.mktemp("sighted")
    found = {}
    world = {"kind": "shapes", "number": 60, "held_out": 12, "shapes": [1, 2]}
    short = {"steps": 6, "images_per_batch": 12, "evaluate_every": 6, "save_every": 6, "log_every": 6}
    for name, model in MODELS.items():
        task = "caption" if name == "lstm" else name
        more = {"data": {"label_attribute": "kind"}} if task == "classify" else {"data": {}, "tokens": {"kind": "words"}}
        more["data"] |= {"size": 32, "world": world}
        found[name] = train({"task": task, "model": copy.deepcopy(model), "train": short, **more}, folder / name, device="cpu")
    return found


@pytest.fixture(scope="session")
def picture(tmp_path_factory):
    """A red circle and a blue star."""
    path = tmp_path_factory.mktemp("pictures") / "picture.png"
    scene = shapes.generate(1, 5, split="valid", shapes=(2, 2))[0]
    Image.fromarray(scene.pixels()).save(path)
    return str(path)
