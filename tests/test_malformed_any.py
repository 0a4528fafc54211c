"""Any bytes at all, and good files with something wrong in them: every reader gives what it read, or one line."""

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
from regard.corpus.text_files import read_labelled, read_pairs, read_tagged, read_text
from regard.corpus.word_vectors import read_word_vectors
from regard.errors import UserError
from regard.tasks import read_recipe
from regard.tokens.tokenizer import load_any_tokenizer
from regard.training import checkpoint


def picture(kind="PNG"):
    made = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(made, kind)
    return made.getvalue()


def shard():
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as file:
        for name, data in (("a.png", picture()), ("a.cls", b"cat"), ("b.png", picture()), ("b.json", b'{"label": "dog"}')):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    return made.getvalue()


def tokenizer():
    marks = ["<pad>", "<s>", "</s>", "<unk>"]
    words = {word: number for number, word in enumerate([*marks, "one", "two"])}
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


def whole_checkpoint(path):
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
    "vocabulary": ("t.json", tokenizer(), load_any_tokenizer),
    "PNG": ("a.png", picture(), lambda path: decode_image(path.read_bytes(), "a.png").load()),
    "JPEG": ("a.jpg", picture("JPEG"), lambda path: decode_image(path.read_bytes(), "a.jpg").load()),
    "WebP": ("a.webp", picture("WEBP"), lambda path: decode_image(path.read_bytes(), "a.webp").load()),
    "pictures, shard": ("a.tar", shard(), lambda path: read_images([path], label="label")),
    "pictures, table": ("a.tsv", b"b.png\tcat\nb.png\tdog\n", lambda path: read_images([path], label=1)),
    "pictures, index": ("a.index.tsv", b"x\t0\t9\tcat\ny\t9\t9\tdog\n", lambda path: read_images([path], label=3)),
    "weights": ("w.safetensors", tensors_as_bytes({"a": np.ones((2, 3)), "b": np.arange(4)}), checkpoint.read_weights),
    "checkpoint, hashes": ("hashes.json", b'{"state.json": "0123"}', whole_checkpoint),
}


def gives_or_refuses(read, path, data):
    path.write_bytes(data)
    try:
        read(path)
    except UserError as mistake:
        assert "\n" not in str(mistake) and len(str(mistake)) < 2000, mistake


@pytest.mark.parametrize("examples", [12, pytest.param(1000, marks=pytest.mark.torture)])
@pytest.mark.parametrize("name", READERS)
def test_every_reader_gives_what_it_read_or_one_line(tmp_path, spoilt, name, examples):
    file, good, read = READERS[name]
    for other, data in (("a.jpgs", picture()), ("b.png", picture()), ("state.json", b"{}")):
        (tmp_path / other).write_bytes(data)
    gives_or_refuses(read, tmp_path / file, good)

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    @given(data=spoilt(good))
    def law(data):
        gives_or_refuses(read, tmp_path / file, data)

    law()


@pytest.mark.parametrize("name", READERS)
def test_what_is_spoilt_is_good_before(tmp_path, name):
    """Else nothing would be learned from spoiling it."""
    file, good, read = READERS[name]
    for other, data in (("a.jpgs", picture()), ("b.png", picture()), ("state.json", b"{}")):
        (tmp_path / other).write_bytes(data)
    (tmp_path / file).write_bytes(good)
    read(tmp_path / file)
