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
SHORT = {"steps": 3, "tokens_per_batch": 512, "evaluate_every": 3, "save_every": 3, "log_every": 3}
SEEN = {"steps": 3, "images_per_batch": 8, "evaluate_every": 3, "save_every": 3, "log_every": 3}
TOWER = {"layers": 1, "width": 16, "heads": 2, "feed_forward": 32}
WORLD = {"world": {"number": 200, "held_out": 10}}
SHAPES = {"size": 32, "world": {"kind": "shapes", "number": 40, "held_out": 8, "shapes": [1, 2]}}
RECIPES = {
    "gpt": {"task": "language", "data": {**WORLD, "language": "target"}, "tokens": {"size": 300}, "model": STACK, "train": SHORT},
    "masked": {"task": "masked", "data": WORLD, "tokens": {"size": 300}, "model": STACK, "train": SHORT},
    "classify": {"task": "classify", "data": WORLD, "tokens": {"kind": "words"}, "model": STACK, "train": SHORT},
    "tag": {"task": "tag", "data": WORLD, "tokens": {"size": 300}, "model": STACK, "train": SHORT},
    "kinds": {
        "task": "classify",
        "data": {**SHAPES, "label_attribute": "kind"},
        "model": {"kind": "vit", "patch_size": 8, **TOWER},
        "train": SEEN,
    },
    "clip": {
        "task": "contrastive",
        "data": SHAPES,
        "tokens": {"kind": "words"},
        "train": SEEN,
        "model": {"projection_width": 8, "image": {"patch_size": 8, **TOWER}, "text": {**TOWER, "max_length": 32}},
    },
    "caption": {
        "task": "caption",
        "data": SHAPES,
        "tokens": {"kind": "words"},
        "train": SEEN,
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
    "train": SEEN,
}
DRAW = {
    "task": "text-to-image",
    "data": SHAPES,
    "tokens": {"kind": "words"},
    "train": SEEN,
    "model": {**TOWER, "text_length": 20, "attention": ["row"]},
}
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="session")
def runs(tmp_path_factory, tiny_run):
    """Untaught, but for the translator: what they say is poor, how it is served is not."""
    folder = tmp_path_factory.mktemp("served")
    found = {"en-de": tiny_run, **{name: train(recipe, folder / name, device="cpu") for name, recipe in RECIPES.items()}}
    codes = train(CODES, folder / "codes", device="cpu")
    drawing = {**DRAW, "model": {**DRAW["model"], "image_codes": {"run": str(codes.folder)}}}
    (found["gpt"].folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return {**found, "draw": train(drawing, folder / "draw", device="cpu")}


@pytest.fixture(scope="session")
def client(runs):
    with TestClient(create_app(runs), base_url="http://localhost", raise_server_exceptions=True) as found:
        yield found


@pytest.fixture(scope="session")
def picture():
    pixels = np.full((40, 50, 3), 255, np.uint8)
    pixels[10:25, 5:20] = (220, 30, 30)
    return Image.fromarray(pixels)


@pytest.fixture(scope="session")
def encoded():
    def encode(picture, form="PNG"):
        kept = BytesIO()
        picture.save(kept, form)
        return base64.b64encode(kept.getvalue()).decode()

    return encode


class Listening:
    """A server on loopback, in a thread."""

    def __init__(self, runs, **settings):
        self.settings = ServerSettings(port=0, **settings)
        self.taken = bind_socket(self.settings)
        self.port = self.taken.getsockname()[1]
        self.server = create_server(runs, self.settings)
        self.app = self.server.config.app
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.taken]}, daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        self.thread.start()
        until = time.monotonic() + 20
        while not self.server.started and time.monotonic() < until:
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
    return Listening


@pytest.fixture
def gated(runs):
    """Makes a model take its steps one by one, when it is let."""

    @contextlib.contextmanager
    def gate(name):
        model, step = runs[name].model, runs[name].model.step
        free, taken = threading.Semaphore(0), []

        def waits(tokens, state):
            assert free.acquire(timeout=20), "nobody let it go on"
            taken.append(len(tokens))
            return step(tokens, state)

        model.step = waits
        try:
            yield free, taken
        finally:
            free.release(100_000)
            del model.step

    return gate
