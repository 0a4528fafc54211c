"""What a tired person feeds it: one line that names the file, the place and the cure, status 2, no traceback, soon, and without
filling the memory. A case is a line of a table; add yours.

`good` files are what a case spoils. What must work in spite of its looks is at the end.
"""

import gzip
import io
import json
import lzma
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard import cli
from regard.corpus.decode_image import decode_image
from regard.corpus.examples import ImageFile
from regard.errors import UserError
from regard.training.checkpoint import read_weights

SOONEST = 5.0
"""Seconds of the processor that any of them may take."""


@pytest.fixture
def regard(monkeypatch, capsys):
    """Run a command in this process; its exit status and what it says."""

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        return status, capsys.readouterr().err

    return command


def refused(answer, said):
    status, err = answer
    lines = [line for line in err.splitlines() if line.startswith("regard: ")]
    assert status == 2 and len(lines) == 1 and err.splitlines()[-1] == lines[0], err
    assert re.search(said, lines[0]), err
    assert "Traceback" not in err and len(lines[0]) < 2000


# texts: each case replaces a.en, the source side of twenty good pairs


def lines(*some):
    """Twenty lines, of which these are the first."""
    return b"".join(line + b"\n" for line in (*some, *[b"one two"] * (20 - len(some))))


def fifo(path):
    os.mkfifo(path)


def unix_socket(path):
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def bomb(line, times):
    """Gigabytes, in a megabyte: written in parts, so that the test has them nowhere either."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    part = line * (2**20 // len(line))
    return b"".join([*(packer.compress(part) for _ in range(times)), packer.flush()])


TEXTS = {
    "lone CR": (lines(b"one\rtwo"), r"a\.en:1 has a carriage return inside the line"),
    "line ends of an old Mac": (b"one two\r" * 20, r"a\.en:1 has a carriage return"),
    "two CR before LF": (lines(b"one", b"one two\r\r"), r"a\.en:2 has a carriage return"),
    "NUL": (lines(b"one", b"t\0wo"), r"a\.en:2 has a NUL byte"),
    "UTF-16 with its mark": ("one two\n".encode("utf-16") * 20, r"a\.en:1 is UTF-16; save the file as UTF-8"),
    "UTF-16, big end first": (b"\xfe\xff" + "one two\n".encode("utf-16-be"), r"a\.en:1 is UTF-16"),
    "UTF-16 without a mark": ("one two\n".encode("utf-16-le"), r"a\.en:1 has a NUL byte; .* is UTF-16"),
    "UTF-32": ("one two\n".encode("utf-32-be"), r"a\.en:1 has a NUL byte"),
    "Latin-1": (lines(b"one", b"gr\xfcn"), r"a\.en:2 is not UTF-8 \(byte 3\)"),
    "half a character": (lines(b"one", b"gr\xc3"), r"a\.en:2 is not UTF-8 \(byte 3\)"),
    "half a character at the end": (b"one two\n" * 19 + b"gr\xc3", r"a\.en:20 is not UTF-8"),
    "an overlong slash": (lines(b"\xc0\xaf"), r"a\.en:1 is not UTF-8"),
    "a surrogate in UTF-8": (lines(b"\xed\xa0\x80"), r"a\.en:1 is not UTF-8"),
    "beyond Unicode": (lines(b"\xf5\x80\x80\x80"), r"a\.en:1 is not UTF-8"),
    "a line of 10 MB": (lines(b"one", b"o" * 10_000_000), r"a\.en:2 is longer than 4,194,304 bytes"),
    "10 MB and no end of line": (b"o" * 10_000_000, r"a\.en:1 is longer than"),
    "an empty line on one side": (lines(b"one", b""), r"a\.en:2 has an empty source side"),
    "only white space on one side": (lines(b"one", b" \t "), r"a\.en:2 has an empty source side"),
    "a line too many": (lines() + b"one more\n", r"a\.en has 21 lines but .*a\.de has 20"),
    "a line too few": (b"one two\n" * 19, r"a\.en has 19 lines but"),
    "empty": (b"", r"a\.en is empty"),
    "only a BOM": (b"\xef\xbb\xbf", r"a\.en has 1 lines but"),
    "only line ends": (b"\n" * 20, r"a\.en:1 has an empty source side"),
    "missing": (lambda path: None, r"no file .*a\.en; relative paths start at data\.root"),
    "a folder": (lambda path: path.mkdir(), r"a\.en is a folder; give a text file"),
    "a FIFO": (fifo, r"a\.en is not a regular file"),
    "a socket": (unix_socket, r"a\.en is not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), r"a\.en is not a regular file"),
    "a link to nowhere": (lambda path: path.symlink_to("nowhere"), r"no file .*a\.en"),
    "a link to itself": (lambda path: path.symlink_to(path), r"cannot read .*a\.en: Too many levels"),
}
PACKED = {
    "not gzip": ("a.en.gz", b"one two\n" * 20, r"a\.en\.gz is not a whole \.gz file"),
    "gzip cut off": ("a.en.gz", gzip.compress(lines() * 100)[:-20], r"a\.en\.gz is not a whole \.gz file"),
    "gzip of which a bit is wrong": ("a.en.gz", gzip.compress(lines())[:-8] + b"\0" * 8, r"a\.en\.gz is not a whole \.gz file"),
    "gzip with something behind it": ("a.en.gz", gzip.compress(lines()) + b"more", r"a\.en\.gz is not a whole \.gz file"),
    "gzip of nothing": ("a.en.gz", gzip.compress(b""), r"a\.en\.gz is empty"),
    "an empty .gz": ("a.en.gz", b"", r"a\.en\.gz is empty"),
    "a bomb of one line": ("a.en.gz", lambda: bomb(b"o", 64), r"a\.en\.gz:1 is longer than 4,194,304 bytes"),
    "a bomb of many lines": ("a.en.gz", lambda: bomb(b"one two\n", 48), r"a\.en\.gz expands to more than 100 times its size"),
    "not xz": ("a.en.xz", b"one two\n" * 20, r"a\.en\.xz is not a whole \.xz file"),
    "xz cut off": ("a.en.xz", lzma.compress(lines() * 100)[:-20], r"a\.en\.xz is not a whole \.xz file"),
    "a name too long": ("a" * 300, None, r"cannot read .*: File name too long"),
    "a name with NUL": ("a\\u0000b", None, r"is not the name of a file"),
}
TRANSLATE = """
[data]
root = "{root}"
train = ["{source}", "a.de"]
valid = ["v.en", "v.de"]
[tokens]
size = 60
[model]
preset = "tiny"
width = 16
heads = 2
max_length = 32
[train]
steps = 1
tokens_per_batch = 64
"""


@pytest.fixture
def good(tmp_path):
    """A folder of files that a case spoils."""
    for name, data in {"a.en": lines(), "a.de": b"eins zwei\n" * 20, "v.en": b"two\n", "v.de": b"zwei\n"}.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def put(path, content):
    """Replace a file by bytes, or by what a function makes."""
    if path.exists():
        path.unlink()
    content(path) if callable(content) else path.write_bytes(content)


def train(regard, folder, recipe=TRANSLATE, **names):
    (folder / "r.toml").write_text(recipe.format(root=folder, **{"source": "a.en", **names}))
    begun = time.process_time()
    answer = regard("train", folder / "r.toml", "--out", folder / "run", "--device", "cpu")
    assert time.process_time() - begun < SOONEST and not (folder / "run").exists()
    return answer


@pytest.mark.parametrize("name", TEXTS)
def test_texts(regard, good, name):
    content, said = TEXTS[name]
    put(good / "a.en", content)
    refused(train(regard, good), said)


@pytest.mark.parametrize("name", PACKED)
def test_packed_texts_and_odd_names(regard, good, name):
    file, content, said = PACKED[name]
    if content is not None:
        (good / file).write_bytes(content() if callable(content) else content)
    refused(train(regard, good, source=file), said)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root")
def test_unreadable(regard, good):
    (good / "a.en").chmod(0)
    refused(train(regard, good), r"cannot read .*a\.en: Permission denied")


# tables

ROWS = {
    "too few columns": ("a.tsv", b"one\teins\ntwo\n", r"a\.tsv:2 has 1 columns; data\.columns = \[0, 1\] needs 2"),
    "an empty cell": ("a.tsv", b"one\teins\ntwo\t\n", r"a\.tsv:2 has an empty target side"),
    "not JSON": ("a.jsonl", b'{"source": "one", "target": "eins"}\nsource: one\n', r"a\.jsonl:2 is not JSON"),
    "half an object": ("a.jsonl", b'{"source": "one", "tar', r"a\.jsonl:1 is not JSON"),
    "an array": ("a.jsonl", b'["one", "eins"]\n', r"a\.jsonl:1 lacks a text field 'source'; name yours in data\.fields"),
    "a text": ("a.jsonl", b'"one"\n', r"a\.jsonl:1 lacks a text field 'source'"),
    "a field missing": ("a.jsonl", b'{"source": "one"}\n', r"a\.jsonl:1 lacks a text field 'target'"),
    "a field that is null": ("a.jsonl", b'{"source": "one", "target": null}\n', r"a\.jsonl:1 lacks a text field 'target'"),
    "a field that is true": ("a.jsonl", b'{"source": "one", "target": true}\n', r"a\.jsonl:1 lacks a text field 'target'"),
    "a field that is NaN": ("a.jsonl", b'{"source": "one", "target": NaN}\n', r"a\.jsonl:1 lacks a text field 'target'"),
    "a field that is a list": ("a.jsonl", b'{"source": "one", "target": ["eins"]}\n', r"a\.jsonl:1 lacks a text field 'target'"),
    "a number of 5,000 digits": ("a.jsonl", b'{"source": ' + b"1" * 5000 + b', "target": "x"}\n', r"a\.jsonl:1 is not JSON"),
    "100,000 brackets": ("a.jsonl", b"[" * 100_000 + b"\n", r"a\.jsonl:1 is not JSON"),
    "half a character": ("a.jsonl", b'{"source": "\\ud83d", "target": "x"}\n', r"a\.jsonl:1 has a lone surrogate .* in 'source'"),
    "neither table nor two files": ("a.csv", b"one,eins\n", r"a\.csv: give two aligned files"),
}


@pytest.mark.parametrize("name", ROWS)
def test_tables(regard, good, name):
    file, content, said = ROWS[name]
    (good / file).write_bytes(content)
    refused(train(regard, good, TRANSLATE.replace('"{source}", "a.de"', f'"{file}"')), said)


CLASSIFY = """
task = "classify"
[data]
root = "{root}"
train = ["{source}"]
valid = ["v.tsv"]
[train]
steps = 1
"""
TAG = CLASSIFY.replace("classify", "tag").replace("v.tsv", "v.conll")
ANSWER = CLASSIFY.replace("classify", "answer").replace("v.tsv", "v.json")
LANGUAGE = CLASSIFY.replace("classify", "language").replace("v.tsv", "v.txt")
ONE_TEXT = {
    "a label missing": (CLASSIFY, "a.tsv", b"fine\tgood\nbad\t\n", r"a\.tsv:2 has an empty label"),
    "a text missing": (CLASSIFY, "a.tsv", b"fine\tgood\n\tbad\n", r"a\.tsv:2 has an empty text"),
    "no labelled texts": (CLASSIFY, "a.tsv", b"\n\n", r"has no labelled texts"),
    "a column that the first line does not name": (
        CLASSIFY.replace("[train]", 'label = "stars"\n[train]'),
        "a.tsv",
        b"text\tlabel\nfine\tgood\n",
        r"a\.tsv:1 names no column 'stars'",
    ),
    "a word without a tag": (TAG, "a.conll", b"Paris\tPLACE\nis\n\n", r"a\.conll:2 has 1 columns; a word"),
    "no sentences": (TAG, "a.conll", b"# nothing\n\n", r"has no tagged sentences"),
    "questions that are not JSON": (ANSWER, "a.json", b"{", r"a\.json is not JSON"),
    "questions that are a list": (ANSWER, "a.json", b"[]", r"a\.json lacks 'data'"),
    "an answer one character off": (
        ANSWER,
        "a.jsonl",
        b'{"question": "who?", "context": "Ann left.", "answers": [{"text": "Ann", "start": 1}]}\n',
        r":1: the answer 'Ann' should be at start = 1",
    ),
    "an answer at a place that is no number": (
        ANSWER,
        "a.jsonl",
        b'{"question": "who?", "context": "Ann left.", "answers": [{"text": "Ann", "start": true}]}\n',
        r"lacks 'answer_start'",
    ),
    "no text": (LANGUAGE, "a.txt", b" \n\n", r"a\.txt has no text"),
}


@pytest.mark.parametrize("name", ONE_TEXT)
def test_labels_tags_questions_and_lines(regard, good, name):
    recipe, file, content, said = ONE_TEXT[name]
    (good / file).write_bytes(content)
    (good / "v.tsv").write_bytes(b"fine\tgood\nbad\tpoor\n")
    refused(train(regard, good, recipe, source=file), said)


# recipes

DATA = b'[data]\ntrain = ["a.en", "a.de"]\nvalid = ["v.en", "v.de"]\n'
RECIPES = {
    "not TOML": (b"steps: 3\n", r"r\.toml is not valid TOML"),
    "half a table": (b"[train\n", r"r\.toml is not valid TOML"),
    "a key twice": (b"seed = 1\nseed = 2\n", r"r\.toml is not valid TOML"),
    "a number of 5,000 digits": (b"seed = " + b"1" * 5000, r"r\.toml is not valid TOML|seed = "),
    "100,000 brackets": (b"seed = " + b"[" * 100_000, r"r\.toml is not valid TOML"),
    "2 MB": (b"# " + b"x" * 2_000_000, r"r\.toml has more than 1,048,576 bytes; that is not a recipe"),
    "UTF-16": ("seed = 1\n".encode("utf-16"), r"r\.toml is not UTF-8 \(byte 1\)"),
    "bytes": (bytes(range(128, 256)), r"r\.toml is not UTF-8"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(100), r"r\.toml is not UTF-8"),
    "a folder": (lambda path: path.mkdir(), r"r\.toml is a folder, not a recipe"),
    "a FIFO": (fifo, r"r\.toml is no file, not a recipe"),
    "missing": (lambda path: None, r"no recipe at .*r\.toml; write one with: regard new"),
    "NaN": (b"[train.optimizer]\nlearning_rate = nan\n" + DATA, r"train\.optimizer\.learning_rate = nan: "),
    "inf": (b"[train]\nclip_norm = inf\n" + DATA, r"train\.clip_norm = inf: "),
    "a text for a number": (b'[train]\nsteps = "many"\n' + DATA, r"train\.steps = 'many': .*integer"),
    "half a step": (b"[train]\nsteps = 1.5\n" + DATA, r"train\.steps = 1\.5: "),
    "no steps": (b"[train]\nsteps = 0\n" + DATA, r"train\.steps = 0: "),
    "steps backwards": (b"[train]\nsteps = -3\n" + DATA, r"train\.steps = -3: "),
    "a table for a number": (b"[train.steps]\na = 1\n" + DATA, r"train\.steps = \{'a': 1\}: "),
    "a number for a table": (b"train = 3\n" + DATA, r"train = 3: "),
    "a list for a table": (b"train = [3]\n" + DATA, r"train = \[3\]: "),
    "a task that there is not": (b'task = "fly"\n' + DATA, r"task = 'fly': should be answer or caption or"),
    "a task that is a number": (b"task = 3\n" + DATA, r"task = 3: should be answer or caption or"),
    "a kind that there is not": (b'[model]\nkind = "oracle"\n' + DATA, r"model\.kind = 'oracle': "),
    "a setting that there is not": (b"[train]\nstep = 3\n" + DATA, r"no setting 'step' in train; did you mean 'steps'\?"),
    "a part that there is not": (b"[trian]\n" + DATA, r"no setting 'trian'; did you mean 'train'\?"),
    "a share above one": (b"[train.regularize]\ndropout = 1.5\n" + DATA, r"train\.regularize\.dropout = 1\.5: "),
    "heads that do not fit": (b'[model]\npreset = "tiny"\nheads = 3\n' + DATA, r"not divisible by heads 3"),
    "a value of a megabyte": (b'[train]\nsteps = "' + b"x" * 900_000 + b'"\n' + DATA, r"train\.steps = 'xxxx.*…: "),
    "no data": (b"seed = 1\n", r"data"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes(regard, tmp_path, name):
    content, said = RECIPES[name]
    put(tmp_path / "r.toml", content)
    begun = time.process_time()
    refused(regard("train", tmp_path / "r.toml", "--out", tmp_path / "run", "--device", "cpu"), said)
    assert time.process_time() - begun < SOONEST and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "override, said",
    [
        ("train.steps", "is not of the form section.setting=value"),
        ("=3", "is not of the form"),
        ("train.steps.more=3", "is a value|steps"),
        ("train.optimizer.learning_rate=nan", "learning_rate = nan"),
        ("seed=" + "[" * 5000, "seed = "),
        ("train.stesp=3", "did you mean"),
    ],
)
def test_overrides(regard, good, override, said):
    (good / "r.toml").write_text(TRANSLATE.format(root=good, source="a.en"))
    refused(regard("train", good / "r.toml", "--out", good / "run", "--set", override), said)


# vocabularies


def vocabulary(change):
    """A tokenizer of words, changed."""
    marks = ["<pad>", "<s>", "</s>", "<unk>"]
    words = {word: number for number, word in enumerate([*marks, "one", "two"])}
    plain = {
        "version": "1.0",
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
        "added_tokens": [
            {
                "id": number,
                "content": mark,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, mark in enumerate(marks)
        ],
    }
    change(plain)
    return json.dumps(plain).encode()


TOKENIZERS = {
    "missing": (lambda path: None, r"no tokenizer at .*t\.json"),
    "empty": (b"", r"t\.json is not a usable tokenizer\.json"),
    "not JSON": (b"{", r"t\.json is not a usable tokenizer\.json"),
    "a list": (b"[]", r"t\.json is not a usable tokenizer\.json"),
    "of no kind": (vocabulary(lambda t: t["model"].update(type="Oracle")), r"t\.json is not a usable tokenizer\.json"),
    "a token for a number": (vocabulary(lambda t: t["model"].update(vocab={"one": "1"})), r"t\.json is not a usable"),
    "no vocabulary": (vocabulary(lambda t: t["model"].pop("vocab")), r"t\.json is not a usable tokenizer\.json"),
    "a token twice": (vocabulary(lambda t: t["model"]["vocab"].update(two=4)), r"t\.json: 'one' and 'two' are both token 4"),
    "a number left out": (vocabulary(lambda t: t["model"]["vocab"].update(two=9)), r"t\.json: no token has the id 5"),
    "other marks": (vocabulary(lambda t: (t["model"]["vocab"].pop("</s>"), t["added_tokens"].pop(2))), r"t\.json"),
    "UTF-16": ("{}".encode("utf-16"), r"t\.json is not a usable tokenizer\.json"),
    "a folder": (lambda path: path.mkdir(), r"t\.json is not a regular file"),
    "a FIFO": (fifo, r"t\.json is not a regular file"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(regard, good, name):
    content, said = TOKENIZERS[name]
    put(good / "t.json", content)
    recipe = TRANSLATE.replace("size = 60", 'file = "t.json"').format(root=good, source="a.en")
    (good / "r.toml").write_text(recipe)
    refused(regard("train", good / "r.toml", "--out", good / "run", "--device", "cpu"), said)


# run folders


def spoil_tokenizer(run):
    """One token fewer than the model has vectors for."""
    whole = json.loads((run / "tokenizer.json").read_text())
    last = max(whole["model"]["vocab"].items(), key=lambda item: item[1])[0]
    del whole["model"]["vocab"][last]
    whole["model"]["merges"] = [pair for pair in whole["model"]["merges"] if "".join(pair) != last]
    (run / "tokenizer.json").write_text(json.dumps(whole))


def spoil_recipe(run):
    path = run / "recipe.toml"
    path.write_text(path.read_text().replace("width = 32", "width = 48"))


def weights(change):
    def spoil(run):
        path = run / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return spoil


FOLDERS = {
    "no weights": (lambda run: (run / "model.safetensors").unlink(), r"has no model yet; finish its training with"),
    "weights cut off": (weights(lambda data: data[:-9]), r"is damaged: "),
    "weights that are empty": (weights(lambda data: b""), r"is damaged: "),
    "weights of 2⁶⁰ bytes, it says": (weights(lambda data: (2**60).to_bytes(8, "little") + b"{}"), r"is damaged"),
    "weights that are a picture": (weights(lambda data: b"\x89PNG\r\n\x1a\n" + bytes(64)), r"is damaged"),
    "a vocabulary off by one": (spoil_tokenizer, r"has shape \[500, 32\], the model needs \[499, 32\]"),
    "no tokenizer": (lambda run: (run / "tokenizer.json").unlink(), r"no tokenizer at .*tokenizer\.json"),
    "half a recipe": (lambda run: put(run / "recipe.toml", b"[mod"), r"recipe\.toml is not valid TOML"),
    "another model's recipe": (spoil_recipe, r"the model needs"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_run_folders(regard, tiny_run, tmp_path, name):
    spoil, said = FOLDERS[name]
    run = tmp_path / "run"
    shutil.copytree(tiny_run.folder, run, ignore=shutil.ignore_patterns("checkpoints"))
    spoil(run)
    refused(regard("translate", run, "one", "--device", "cpu"), said)


RESUMED = {
    "one of which a bit is wrong": (["--from", "60"], r"step-00000060 is damaged: model\.safetensors does not match its hash"),
    "one that is not there": (["--from", "45"], r"no checkpoint .*step-00000045; available: step-00000030, step-00000060"),
    "one by no name": (["--from", "best"], r"--from best: give a step"),
    "one that has none before it": (["--verify", "20", "--from", "30"], r"no good checkpoint 20 steps before step 30"),
}


@pytest.fixture
def hurt(tiny_run, tmp_path):
    """A run whose newest checkpoint has a wrong bit."""
    shutil.copytree(tiny_run.folder, tmp_path / "run")
    victim = tmp_path / "run" / "checkpoints" / "step-00000060" / "model.safetensors"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    return tmp_path / "run"


@pytest.mark.parametrize("name", RESUMED)
def test_checkpoints_by_name(regard, hurt, name):
    words, said = RESUMED[name]
    refused(regard("train", hurt, "--resume", "--device", "cpu", "--no-evaluate", *words), said)


def test_the_newest_good_checkpoint_is_taken_and_the_damaged_one_named(regard, hurt, tiny_run):
    status, err = regard("train", hurt, "--resume", "--device", "cpu", "--no-evaluate", "--verify", "30")
    assert status == 0, err
    assert "step-00000060 is damaged (model.safetensors does not match its hash); using the one before it" in err
    assert "running steps 1 to 30 again" in err and "bit-exact" in err and "resuming from step 30" in err
    assert (hurt / "model.safetensors").read_bytes() == (tiny_run.folder / "model.safetensors").read_bytes()
    assert [path.name for path in (hurt / "checkpoints" / "archive").iterdir()] == ["step-00000060"]


def test_where_no_checkpoint_is_whole_nothing_is_begun_silently(regard, hurt):
    (hurt / "checkpoints" / "step-00000030" / "state.json").unlink()
    refused(regard("train", hurt, "--resume", "--device", "cpu"), r"no checkpoint in .*checkpoints is intact; to start again")


def test_from_and_verify_are_about_runs(regard, good):
    (good / "r.toml").write_text(TRANSLATE.format(root=good, source="a.en"))
    refused(regard("train", good / "r.toml", "--verify", "3"), r"--verify is about a run's checkpoints: .*--resume")
    refused(regard("train", good, "--resume"), r"is not a run folder \(it has no recipe\.toml\)")


# pictures


def png(size=(12, 12), **options):
    made = io.BytesIO()
    Image.fromarray(np.zeros((*size, 3), np.uint8)).save(made, "PNG", **options)
    return made.getvalue()


def png_of(width, height):
    """A header that promises so many pixels."""
    head = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    return png()[:8] + (13).to_bytes(4, "big") + head + zlib.crc32(head).to_bytes(4, "big") + png()[33:]


PICTURES = {
    "empty": (b"", r"is not a PNG, JPEG or WebP image"),
    "text": (b"a picture\n", r"is not a PNG, JPEG or WebP image"),
    "a GIF": (b"GIF89a" + bytes(30), r"is not a PNG, JPEG or WebP image"),
    "cut off": (png((60, 60))[:-40], r"is damaged"),
    "only its header": (png()[:33], r"is damaged|is not a PNG"),
    "a wrong bit": (png()[:50] + bytes([png()[50] ^ 255]) + png()[51:], r"is damaged"),
    "a bomb": (png_of(50_000, 50_000), r"has more than 89,478,485 pixels, as a decompression bomb"),
    "no pixels": (png_of(0, 0), r"is damaged|is not a PNG"),
    "a JPEG's first bytes": (b"\xff\xd8\xff\xe0" + bytes(20), r"is not a PNG|is damaged"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures(name):
    data, said = PICTURES[name]
    with pytest.raises(UserError, match=said) as mistake:
        decode_image(data, "a.png")
    assert "\n" not in str(mistake.value)


@pytest.mark.parametrize(
    "make, said",
    [(lambda path: path.mkdir(), "is a folder"), (fifo, "is not a regular file"), (lambda path: None, "no image")],
    ids=["folder", "FIFO", "missing"],
)
def test_pictures_that_are_no_files(tmp_path, make, said):
    make(tmp_path / "a.png")
    with pytest.raises(UserError, match=said):
        ImageFile(tmp_path / "a.png").read()


def shard(path, broken=False):
    with tarfile.open(path, "w") as file:
        entry = tarfile.TarInfo("a.png")
        entry.size = len(png())
        file.addfile(entry, io.BytesIO(png()))
    if broken:
        path.write_bytes(path.read_bytes()[:600])


GALLERIES = {
    "a shard cut off": ("a.tar", lambda path: shard(path, broken=True), r"a\.tar is truncated|is not a complete tar shard"),
    "a shard that is none": ("a.tar", b"nothing" * 200, r"a\.tar is not a complete tar shard"),
    "no label": ("a.tar", shard, r"a\.png has no label"),
    "a picture that is not there": ("a.tsv", b"nowhere.png\tcat\n", r"a\.tsv:1 names an image that does not exist"),
    "an index that leads too far": ("a.index.tsv", b"x\t0\t99999999\tcat\n", r"a\.index\.tsv:1 says that an image begins"),
    "an index without pictures": ("b.index.tsv", b"x\t0\t9\tcat\n", r"needs its images beside it"),
    "a compressed shard": ("a.tar.gz", b"", r"is a compressed shard"),
    "an empty folder": ("pictures", lambda path: path.mkdir(), r"has no images"),
    "no gallery": ("a.doc", b"", r"give a folder with one folder per label"),
}


@pytest.mark.parametrize("name", GALLERIES)
def test_galleries(regard, good, name):
    file, content, said = GALLERIES[name]
    (good / "a.jpgs").write_bytes(png())
    put(good / file, content)
    recipe = CLASSIFY.replace("[train]", 'size = 12\n[model]\nkind = "vit"\npatch_size = 4\n[train]').replace("v.tsv", file)
    refused(train(regard, good, recipe, source=file), said)


def test_weights_that_are_not_there_or_no_file(tmp_path):
    fifo(tmp_path / "w.safetensors")
    for name in ("w.safetensors", "nothing.safetensors"):
        with pytest.raises(UserError, match="no weights at"):
            read_weights(tmp_path / name)


# how much, and from where


@pytest.mark.system
def test_a_bomb_does_not_fill_the_memory(good):
    """The real command, with 400 MB more than it takes to be imported."""
    (good / "a.en.gz").write_bytes(bomb(b"one two\n", 192))
    (good / "r.toml").write_text(TRANSLATE.format(root=good, source="a.en.gz"))
    code = (
        "import resource, sys, torch, regard.run.train, regard.cli\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 400 * 2**20,) * 2)\n"
        f"sys.argv = ['regard', 'train', {str(good / 'r.toml')!r}, '--out', {str(good / 'run')!r}, '--device', 'cpu']\n"
        "regard.cli.main()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    refused((run.returncode, run.stderr), r"expands to more than 100 times its size")


# what must work

WORKS = {
    "BOM": b"\xef\xbb\xbf" + lines(),
    "CRLF": lines().replace(b"\n", b"\r\n"),
    "BOM and CRLF": b"\xef\xbb\xbf" + lines().replace(b"\n", b"\r\n"),
    "no last newline": lines().rstrip(b"\n"),
    "U+2028": lines("one\u2028two".encode()),
    "U+0085": lines("one\u0085two".encode()),
    "a form feed": lines(b"one\x0ctwo"),
    "emoji, combining marks, right to left": lines("👩‍👩‍👧 e\u0301 שלום".encode()),
    "tabs": lines(b"one\ttwo"),
}


@pytest.mark.parametrize("name", WORKS)
def test_what_must_work(name, good):
    from regard.corpus.text_files import read_pairs

    (good / "a.en").write_bytes(WORKS[name])
    found = read_pairs([good / "a.en", good / "a.de"])
    assert len(found) == 20 and found.source[-1] == "one two"
    first = WORKS[name].removeprefix(b"\xef\xbb\xbf").split(b"\n")[0].decode().rstrip("\r").strip()
    assert found.source[0] == first
