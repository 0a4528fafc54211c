"""Arbitrary bytes and corrupted files: every reader returns a result or raises a one-line UserError."""

import gzip
import io
import json
import lzma
import tarfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from PIL import Image
from safetensors.numpy import save as tensors_as_bytes

from regard.corpus.decode_image import decode_image
from regard.corpus.image_files import read_images
from regard.corpus.questions import read_questions
from regard.corpus.text_files import read_labelled, read_pairs, read_tagged, read_text, read_word_vectors
from regard.errors import UserError
from regard.tasks import read_recipe
from regard.tokens.tokenizer import load_any_tokenizer
from regard.training import checkpoint


def image_bytes(kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(buffer, kind)
    return buffer.getvalue()


def shard_bytes():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for name, data in (
            ("a.png", image_bytes()),
            ("a.cls", b"cat"),
            ("b.png", image_bytes()),
            ("b.json", b'{"label": "dog"}'),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def tokenizer_bytes():
    special_tokens = ["<pad>", "<s>", "</s>", "<unk>"]
    words = {word: number for number, word in enumerate([*special_tokens, "one", "two"])}
    return json.dumps(
        {
            "version": "1.0",
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "added_tokens": [],
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
        }
    ).encode()


def read_named(path):
    return read_labelled([path], text="text", label="label")


def check_checkpoint(path):
    checkpoint.find_damage(path.parent)


WORDS = b"one two\nthree\nfour five six\n"
SQUAD = {"question": "who?", "context": "Ann left.", "answers": [{"text": "Ann", "answer_start": 0}]}
RECIPE = (
    b'[data]\nroot = "."\ntrain = ["a", "b"]\nvalid = ["a", "b"]\n[model]\npreset = "tiny"\nheads = 4\n'
    b"[train]\nsteps = 3\n[train.optimizer]\nlearning_rate = 1e-3\n"
)
PAIRS = b'{"source": "one", "target": "eins"}\n{"source": "two", "target": "zwei"}\n'
READERS = {
    "lines": ("a.txt", WORDS, lambda path: read_text([path])),
    "lines, gzip": ("a.gz", gzip.compress(WORDS), lambda path: read_text([path])),
    "lines, xz": ("a.xz", lzma.compress(WORDS), lambda path: read_text([path])),
    "pairs": ("a.en", WORDS, lambda path: read_pairs([path, path])),
    "pairs, tsv": ("a.tsv", b"one\teins\ntwo\tzwei\n", lambda path: read_pairs([path])),
    "pairs, jsonl": ("a.jsonl", PAIRS, lambda path: read_pairs([path])),
    "labelled, tsv": ("a.tsv", b"text\tlabel\nfine\tgood\nbad\tpoor\n", read_named),
    "labelled, jsonl": ("a.jsonl", b'{"text": "fine", "label": 1}\n', read_named),
    "tagged": ("a.conll", b"Ann\tNAME\nleft\tO\n\n# 2\nParis PLACE\n", lambda path: read_tagged([path])),
    "questions, json": (
        "a.json",
        json.dumps({"data": [{"paragraphs": [{"context": "Ann left.", "qas": [SQUAD]}]}]}).encode(),
        lambda path: read_questions([path]),
    ),
    "questions, jsonl": ("a.jsonl", json.dumps(SQUAD).encode() + b"\n", lambda path: read_questions([path])),
    "vectors": ("a.txt", b"2 3\none 0.1 0.2 0.3\ntwo 1 2 3\n", lambda path: read_word_vectors(path, {"one", "two"}, width=3)),
    "recipe": ("r.toml", RECIPE, read_recipe),
    "tokenizer": ("t.json", tokenizer_bytes(), load_any_tokenizer),
    "PNG": ("a.png", image_bytes(), lambda path: decode_image(path.read_bytes(), "a.png").load()),
    "JPEG": ("a.jpg", image_bytes("JPEG"), lambda path: decode_image(path.read_bytes(), "a.jpg").load()),
    "WebP": ("a.webp", image_bytes("WEBP"), lambda path: decode_image(path.read_bytes(), "a.webp").load()),
    "images, shard": ("a.tar", shard_bytes(), lambda path: read_images([path], label="label")),
    "images, table": ("a.tsv", b"b.png\tcat\nb.png\tdog\n", lambda path: read_images([path], label=1)),
    "images, index": ("a.index.tsv", b"x\t0\t9\tcat\ny\t9\t9\tdog\n", lambda path: read_images([path], label=3)),
    "weights": ("w.safetensors", tensors_as_bytes({"a": np.ones((2, 3)), "b": np.arange(4)}), checkpoint.read_weights),
    "checkpoint, hashes": ("hashes.json", b'{"state.json": "0123"}', check_checkpoint),
}


def read_or_user_error(read, path, data):
    path.write_bytes(data)
    try:
        read(path)
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000, error


@pytest.mark.parametrize("examples", [12, pytest.param(1000, marks=pytest.mark.torture)])
@pytest.mark.parametrize("name", READERS)
def test_reader_of_corrupted_bytes_returns_or_raises_a_one_line_user_error(tmp_path, corrupted_bytes, name, examples):
    file, good, read = READERS[name]
    for other, data in (("a.jpgs", image_bytes()), ("b.png", image_bytes()), ("state.json", b"{}")):
        (tmp_path / other).write_bytes(data)
    read_or_user_error(read, tmp_path / file, good)

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    @given(data=corrupted_bytes(good))
    def check(data):
        read_or_user_error(read, tmp_path / file, data)

    check()


@pytest.mark.parametrize("name", READERS)
def test_reader_accepts_the_file_before_corruption(tmp_path, name):
    """The uncorrupted files must be valid for the corruption test to mean anything."""
    file, good, read = READERS[name]
    for other, data in (("a.jpgs", image_bytes()), ("b.png", image_bytes()), ("state.json", b"{}")):
        (tmp_path / other).write_bytes(data)
    (tmp_path / file).write_bytes(good)
    read(tmp_path / file)
