"""Tiny runs of every task behind a server: in the same thread, or listening on loopback."""

import base64
import contextlib
import socket
import threading
import time
from io import BytesIO

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from regard.run.train import train
from regard.server.app import create_app
from regard.server.connections import bind_socket, create_server
from regard.server.settings import ServerSettings

STACK = {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 32, "width": 16, "max_length": 64}
TRAIN_TEXT = {"steps": 3, "tokens_per_batch": 512, "evaluate_every": 3, "save_every": 3, "log_every": 3}
TRAIN_IMAGES = {"steps": 3, "images_per_batch": 8, "evaluate_every": 3, "save_every": 3, "log_every": 3}
TOWER = {"layers": 1, "width": 16, "heads": 2, "feed_forward": 32}
WORLD = {"world": {"number": 200, "held_out": 10}}
SHAPES = {"size": 32, "world": {"kind": "shapes", "number": 40, "held_out": 8, "shapes": [1, 2]}}
RECIPES = {
    "gpt": {
        "task": "language",
        "data": {**WORLD, "language": "target"},
        "tokens": {"size": 300},
        "model": STACK,
        "train": TRAIN_TEXT,
    },
    "masked": {"task": "masked", "data": WORLD, "tokens": {"size": 300}, "model": STACK, "train": TRAIN_TEXT},
    "classify": {"task": "classify", "data": WORLD, "tokens": {"kind": "words"}, "model": STACK, "train": TRAIN_TEXT},
    "tag": {"task": "tag", "data": WORLD, "tokens": {"size": 300}, "model": STACK, "train": TRAIN_TEXT},
    "kinds": {
        "task": "classify",
        "data": {**SHAPES, "label_attribute": "kind"},
        "model": {"kind": "vit", "patch_size": 8, **TOWER},
        "train": TRAIN_IMAGES,
    },
    "clip": {
        "task": "contrastive",
        "data": SHAPES,
        "tokens": {"kind": "words"},
        "train": TRAIN_IMAGES,
        "model": {"projection_width": 8, "image": {"patch_size": 8, **TOWER}, "text": {**TOWER, "max_length": 32}},
    },
    "caption": {
        "task": "caption",
        "data": SHAPES,
        "tokens": {"kind": "words"},
        "train": TRAIN_IMAGES,
        "model": {
            "encoder": {"kind": "patches", "patch_size": 8, "pool": "class", **TOWER},
            "decoder": {"kind": "transformer", **TOWER},
            "max_length": 20,
        },
    },
}
CODES = {
    "task": "image-codes",
    "data": SHAPES,
    "model": {"codebook_size": 8, "code_width": 8, "width": 8, "layers": 1},
    "train": TRAIN_IMAGES,
}
DRAW = {
    "task": "text-to-image",
    "data": SHAPES,
    "tokens": {"kind": "words"},
    "train": TRAIN_IMAGES,
    "model": {**TOWER, "text_length": 20, "attention": ["row"]},
}
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="session")
def runs(tmp_path_factory, tiny_run):
    """Return a run of every task, trained for three steps; only the translator is trained further."""
    folder = tmp_path_factory.mktemp("served")
    trained = {"en-de": tiny_run, **{name: train(recipe, folder / name, device="cpu") for name, recipe in RECIPES.items()}}
    codes = train(CODES, folder / "codes", device="cpu")
    drawing = {**DRAW, "model": {**DRAW["model"], "image_codes": {"run": str(codes.folder)}}}
    (trained["gpt"].folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return {**trained, "draw": train(drawing, folder / "draw", device="cpu")}


@pytest.fixture(scope="session")
def client(runs):
    with TestClient(create_app(runs), base_url="http://localhost", raise_server_exceptions=True) as test_client:
        yield test_client


@pytest.fixture(scope="session")
def image():
    pixels = np.full((40, 50, 3), 255, np.uint8)
    pixels[10:25, 5:20] = (220, 30, 30)
    return Image.fromarray(pixels)


@pytest.fixture(scope="session")
def encode_image():
    """Return a function that encodes an image in base64."""

    def encode(image, file_format="PNG"):
        buffer = BytesIO()
        image.save(buffer, file_format)
        return base64.b64encode(buffer.getvalue()).decode()

    return encode


class ListeningServer:
    """A server that listens on loopback, in a thread."""

    def __init__(self, runs, **settings):
        self.settings = ServerSettings(port=0, **settings)
        self.socket = bind_socket(self.settings)
        self.port = self.socket.getsockname()[1]
        self.server = create_server(runs, self.settings)
        self.app = self.server.config.app
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        self.thread.start()
        deadline = time.monotonic() + 20
        while not self.server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.server.started
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self.thread.join(15)
        assert not self.thread.is_alive()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


@pytest.fixture(scope="session")
def listening():
    return ListeningServer


@pytest.fixture
def gated(runs):
    """Return a context manager in which a model's decoding steps wait for a semaphore; yields that and the batch sizes so far."""

    @contextlib.contextmanager
    def gate(name):
        model, step = runs[name].model, runs[name].model.step
        permits, batch_sizes = threading.Semaphore(0), []

        def gated_step(tokens, state):
            assert permits.acquire(timeout=20), "no permit for the next step"
            batch_sizes.append(len(tokens))
            return step(tokens, state)

        model.step = gated_step
        try:
            yield permits, batch_sizes
        finally:
            permits.release(100_000)
            del model.step

    return gate
