"""Malformed input to the commands: a one-line error that names the file, the place and the cure, exit status 2, no traceback,
within seconds and bounded memory. Each case is a row of a table that replaces a file of the fixture `data_folder`.

Unusual input that must be accepted is at the end.
"""

import gzip
import io
import json
import lzma
import os
import re
import shutil
import signal
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

MAX_CPU_SECONDS = 5.0
"""CPU seconds that a command may take."""


@pytest.fixture
def regard(monkeypatch, capsys):
    """Return a function that runs a command in this process and returns its exit status and stderr."""

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        return status, capsys.readouterr().err

    return command


def assert_refused(result, message):
    status, err = result
    error_lines = [line for line in err.splitlines() if line.startswith("regard: ")]
    assert status == 2 and len(error_lines) == 1 and err.splitlines()[-1] == error_lines[0], err
    assert re.search(message, error_lines[0]), err
    assert "Traceback" not in err and len(error_lines[0]) < 2000


# texts: each case replaces a.en, the source side of twenty valid pairs


def twenty_lines(*some):
    """Return twenty lines that start with these."""
    return b"".join(line + b"\n" for line in (*some, *[b"one two"] * (20 - len(some))))


def make_fifo(path):
    os.mkfifo(path)


def unix_socket(path):
    here = Path.cwd()
    os.chdir(path.parent)  # socket paths have a length limit
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def gzip_bomb(line, times):
    """Return gzip data that expands to `times` MiB, compressed in parts to bound the memory of the test."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    part = line * (2**20 // len(line))
    return b"".join([*(compressor.compress(part) for _ in range(times)), compressor.flush()])


TEXTS = {
    "lone CR": (twenty_lines(b"one\rtwo"), r"a\.en:1 has a carriage return inside the line"),
    "CR line ends": (b"one two\r" * 20, r"a\.en:1 has a carriage return"),
    "two CR before LF": (twenty_lines(b"one", b"one two\r\r"), r"a\.en:2 has a carriage return"),
    "NUL": (twenty_lines(b"one", b"t\0wo"), r"a\.en:2 has a NUL byte"),
    "UTF-16 with BOM": ("one two\n".encode("utf-16") * 20, r"a\.en:1 is UTF-16; save the file as UTF-8"),
    "UTF-16, big-endian": (b"\xfe\xff" + "one two\n".encode("utf-16-be"), r"a\.en:1 is UTF-16"),
    "UTF-16 without BOM": ("one two\n".encode("utf-16-le"), r"a\.en:1 has a NUL byte; .* is UTF-16"),
    "UTF-32": ("one two\n".encode("utf-32-be"), r"a\.en:1 has a NUL byte"),
    "Latin-1": (twenty_lines(b"one", b"gr\xfcn"), r"a\.en:2 is not UTF-8 \(byte 3\)"),
    "half a character": (twenty_lines(b"one", b"gr\xc3"), r"a\.en:2 is not UTF-8 \(byte 3\)"),
    "half a character at the end": (b"one two\n" * 19 + b"gr\xc3", r"a\.en:20 is not UTF-8"),
    "an overlong slash": (twenty_lines(b"\xc0\xaf"), r"a\.en:1 is not UTF-8"),
    "a surrogate in UTF-8": (twenty_lines(b"\xed\xa0\x80"), r"a\.en:1 is not UTF-8"),
    "beyond Unicode": (twenty_lines(b"\xf5\x80\x80\x80"), r"a\.en:1 is not UTF-8"),
    "a line of 10 MB": (twenty_lines(b"one", b"o" * 10_000_000), r"a\.en:2 is longer than 4,194,304 bytes"),
    "10 MB and no end of line": (b"o" * 10_000_000, r"a\.en:1 is longer than"),
    "an empty line on one side": (twenty_lines(b"one", b""), r"a\.en:2 has an empty source side"),
    "only white space on one side": (twenty_lines(b"one", b" \t "), r"a\.en:2 has an empty source side"),
    "a line too many": (twenty_lines() + b"one more\n", r"a\.en has 21 lines but .*a\.de has 20"),
    "a line too few": (b"one two\n" * 19, r"a\.en has 19 lines but"),
    "empty": (b"", r"a\.en is empty"),
    "only a BOM": (b"\xef\xbb\xbf", r"a\.en has 1 lines but"),
    "only line ends": (b"\n" * 20, r"a\.en:1 has an empty source side"),
    "missing": (lambda path: None, r"no file .*a\.en; relative paths start at data\.root"),
    "a folder": (lambda path: path.mkdir(), r"a\.en is a folder; give a text file"),
    "a FIFO": (make_fifo, r"a\.en is not a regular file"),
    "a socket": (unix_socket, r"a\.en is not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), r"a\.en is not a regular file"),
    "a link to nowhere": (lambda path: path.symlink_to("nowhere"), r"no file .*a\.en"),
    "a link to itself": (lambda path: path.symlink_to(path), r"cannot read .*a\.en: Too many levels"),
}
COMPRESSED = {
    "not gzip": ("a.en.gz", b"one two\n" * 20, r"a\.en\.gz is not a whole \.gz file"),
    "gzip cut off": ("a.en.gz", gzip.compress(twenty_lines() * 100)[:-20], r"a\.en\.gz is not a whole \.gz file"),
    "gzip with a wrong checksum": (
        "a.en.gz",
        gzip.compress(twenty_lines())[:-8] + b"\0" * 8,
        r"a\.en\.gz is not a whole \.gz file",
    ),
    "gzip with trailing data": ("a.en.gz", gzip.compress(twenty_lines()) + b"more", r"a\.en\.gz is not a whole \.gz file"),
    "gzip of nothing": ("a.en.gz", gzip.compress(b""), r"a\.en\.gz is empty"),
    "an empty .gz": ("a.en.gz", b"", r"a\.en\.gz is empty"),
    "gzip bomb of one line": ("a.en.gz", lambda: gzip_bomb(b"o", 64), r"a\.en\.gz:1 is longer than 4,194,304 bytes"),
    "gzip bomb of many lines": (
        "a.en.gz",
        lambda: gzip_bomb(b"one two\n", 48),
        r"a\.en\.gz expands to more than 100 times its size",
    ),
    "not xz": ("a.en.xz", b"one two\n" * 20, r"a\.en\.xz is not a whole \.xz file"),
    "xz cut off": ("a.en.xz", lzma.compress(twenty_lines() * 100)[:-20], r"a\.en\.xz is not a whole \.xz file"),
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
def data_folder(tmp_path):
    """Return a folder of valid parallel files, one of which a test replaces."""
    for name, data in {"a.en": twenty_lines(), "a.de": b"eins zwei\n" * 20, "v.en": b"two\n", "v.de": b"zwei\n"}.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def write_content(path, content):
    """Replace a file by bytes, or call a function on its path."""
    if path.exists():
        path.unlink()
    content(path) if callable(content) else path.write_bytes(content)


def train(regard, folder, recipe=TRANSLATE, **names):
    (folder / "r.toml").write_text(recipe.format(root=folder, **{"source": "a.en", **names}))
    start_time = time.process_time()
    result = regard("train", folder / "r.toml", "--out", folder / "run", "--device", "cpu")
    assert time.process_time() - start_time < MAX_CPU_SECONDS and not (folder / "run").exists()
    return result


@pytest.mark.parametrize("name", TEXTS)
def test_malformed_text_is_refused(regard, data_folder, name):
    content, message = TEXTS[name]
    write_content(data_folder / "a.en", content)
    assert_refused(train(regard, data_folder), message)


@pytest.mark.parametrize("name", COMPRESSED)
def test_malformed_compressed_text_and_file_name_is_refused(regard, data_folder, name):
    file, content, message = COMPRESSED[name]
    if content is not None:
        (data_folder / file).write_bytes(content() if callable(content) else content)
    assert_refused(train(regard, data_folder, source=file), message)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root")
def test_unreadable_file_is_refused(regard, data_folder):
    (data_folder / "a.en").chmod(0)
    assert_refused(train(regard, data_folder), r"cannot read .*a\.en: Permission denied")


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
    "a field that is an object": ("a.jsonl", b'{"source": "one", "target": {}}\n', r"a\.jsonl:1 lacks a text field 'target'"),
    "a field that is NaN": ("a.jsonl", b'{"source": "one", "target": NaN}\n', r"a\.jsonl:1 lacks a text field 'target'"),
    "a field that is a list": ("a.jsonl", b'{"source": "one", "target": ["eins"]}\n', r"a\.jsonl:1 lacks a text field 'target'"),
    "a number of 5,000 digits": ("a.jsonl", b'{"source": ' + b"1" * 5000 + b', "target": "x"}\n', r"a\.jsonl:1 is not JSON"),
    "100,000 brackets": ("a.jsonl", b"[" * 100_000 + b"\n", r"a\.jsonl:1 is not JSON"),
    "half a character": ("a.jsonl", b'{"source": "\\ud83d", "target": "x"}\n', r"a\.jsonl:1 has a lone surrogate .* in 'source'"),
    "neither table nor two files": ("a.txt", b"one,eins\n", r"a\.txt: give two aligned files"),
    "an open quotation mark": ("a.csv", b'source,target\none,"eins\ntwo,zwei\n', r"a\.csv:2 is not CSV: .*quotation marks"),
    "not Parquet": ("a.parquet", b"one,eins\n", r"a\.parquet is not a whole \.parquet file"),
    "not Arrow": ("a.arrow", b"one,eins\n", r"a\.arrow is not a whole \.arrow file"),
}


@pytest.mark.parametrize("name", ROWS)
def test_malformed_table_is_refused(regard, data_folder, name):
    file, content, message = ROWS[name]
    (data_folder / file).write_bytes(content)
    assert_refused(train(regard, data_folder, TRANSLATE.replace('"{source}", "a.de"', f'"{file}"')), message)


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
SINGLE_TEXT = {
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


@pytest.mark.parametrize("name", SINGLE_TEXT)
def test_malformed_labels_tags_questions_and_lines_are_refused(regard, data_folder, name):
    recipe, file, content, message = SINGLE_TEXT[name]
    (data_folder / file).write_bytes(content)
    (data_folder / "v.tsv").write_bytes(b"fine\tgood\nbad\tpoor\n")
    assert_refused(train(regard, data_folder, recipe, source=file), message)


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
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(100), r"r\.toml is not UTF-8"),
    "a folder": (lambda path: path.mkdir(), r"r\.toml is a folder, not a recipe"),
    "a FIFO": (make_fifo, r"r\.toml is no file, not a recipe"),
    "missing": (lambda path: None, r"no recipe at .*r\.toml; write one with: regard new"),
    "NaN": (b"[train.optimizer]\nlearning_rate = nan\n" + DATA, r"train\.optimizer\.learning_rate = nan: "),
    "inf": (b"[train]\nclip_norm = inf\n" + DATA, r"train\.clip_norm = inf: "),
    "a text for a number": (b'[train]\nsteps = "many"\n' + DATA, r"train\.steps = 'many': .*integer"),
    "half a step": (b"[train]\nsteps = 1.5\n" + DATA, r"train\.steps = 1\.5: "),
    "no steps": (b"[train]\nsteps = 0\n" + DATA, r"train\.steps = 0: "),
    "negative steps": (b"[train]\nsteps = -3\n" + DATA, r"train\.steps = -3: "),
    "a table for a number": (b"[train.steps]\na = 1\n" + DATA, r"train\.steps = \{'a': 1\}: "),
    "a number for a table": (b"train = 3\n" + DATA, r"train = 3: "),
    "a list for a table": (b"train = [3]\n" + DATA, r"train = \[3\]: "),
    "an unknown task": (b'task = "fly"\n' + DATA, r"task = 'fly': should be answer or caption or"),
    "a task that is a number": (b"task = 3\n" + DATA, r"task = 3: should be answer or caption or"),
    "an unknown kind": (b'[model]\nkind = "oracle"\n' + DATA, r"model\.kind = 'oracle': "),
    "an unknown setting": (b"[train]\nstep = 3\n" + DATA, r"no setting 'step' in train; did you mean 'steps'\?"),
    "an unknown section": (b"[trian]\n" + DATA, r"no setting 'trian'; did you mean 'train'\?"),
    "a share above one": (b"[train.regularize]\ndropout = 1.5\n" + DATA, r"train\.regularize\.dropout = 1\.5: "),
    "heads that do not fit": (b'[model]\npreset = "tiny"\nheads = 3\n' + DATA, r"not divisible by heads 3"),
    "a value of a megabyte": (b'[train]\nsteps = "' + b"x" * 900_000 + b'"\n' + DATA, r"train\.steps = 'xxxx.*…: "),
    "no data": (b"seed = 1\n", r"data"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_malformed_recipe_is_refused(regard, tmp_path, name):
    content, message = RECIPES[name]
    write_content(tmp_path / "r.toml", content)
    start_time = time.process_time()
    assert_refused(regard("train", tmp_path / "r.toml", "--out", tmp_path / "run", "--device", "cpu"), message)
    assert time.process_time() - start_time < MAX_CPU_SECONDS and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "override, message",
    [
        ("train.steps", "is not of the form section.setting=value"),
        ("=3", "is not of the form"),
        ("train.steps.more=3", "is a value|steps"),
        ("train.optimizer.learning_rate=nan", "learning_rate = nan"),
        ("seed=" + "[" * 5000, "seed = "),
        ("train.stesp=3", "did you mean"),
    ],
)
def test_malformed_override_is_refused(regard, data_folder, override, message):
    (data_folder / "r.toml").write_text(TRANSLATE.format(root=data_folder, source="a.en"))
    assert_refused(regard("train", data_folder / "r.toml", "--out", data_folder / "run", "--set", override), message)


# tokenizers


def vocabulary(change):
    """Return a word-level tokenizer.json after `change`."""
    special_tokens = ["<pad>", "<s>", "</s>", "<unk>"]
    words = {word: number for number, word in enumerate([*special_tokens, "one", "two"])}
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
            for number, mark in enumerate(special_tokens)
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
    "missing special token": (vocabulary(lambda t: (t["model"]["vocab"].pop("</s>"), t["added_tokens"].pop(2))), r"t\.json"),
    "UTF-16": ("{}".encode("utf-16"), r"t\.json is not a usable tokenizer\.json"),
    "a folder": (lambda path: path.mkdir(), r"t\.json is not a regular file"),
    "a FIFO": (make_fifo, r"t\.json is not a regular file"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_malformed_tokenizer_is_refused(regard, data_folder, name):
    content, message = TOKENIZERS[name]
    write_content(data_folder / "t.json", content)
    recipe = TRANSLATE.replace("size = 60", 'file = "t.json"').format(root=data_folder, source="a.en")
    (data_folder / "r.toml").write_text(recipe)
    assert_refused(regard("train", data_folder / "r.toml", "--out", data_folder / "run", "--device", "cpu"), message)


# run folders


def remove_last_token(run):
    """Remove the last token, so that the model has one embedding more."""
    whole = json.loads((run / "tokenizer.json").read_text())
    last = max(whole["model"]["vocab"].items(), key=lambda item: item[1])[0]
    del whole["model"]["vocab"][last]
    whole["model"]["merges"] = [pair for pair in whole["model"]["merges"] if "".join(pair) != last]
    (run / "tokenizer.json").write_text(json.dumps(whole))


def change_recipe_width(run):
    path = run / "recipe.toml"
    path.write_text(path.read_text().replace("width = 32", "width = 48"))


def change_weights(change):
    def damage(run):
        path = run / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return damage


FOLDERS = {
    "no weights": (lambda run: (run / "model.safetensors").unlink(), r"has no model yet; finish its training with"),
    "weights cut off": (change_weights(lambda data: data[:-9]), r"is damaged: "),
    "weights that are empty": (change_weights(lambda data: b""), r"is damaged: "),
    "weights with a header length of 2⁶⁰": (change_weights(lambda data: (2**60).to_bytes(8, "little") + b"{}"), r"is damaged"),
    "weights that are an image": (change_weights(lambda data: b"\x89PNG\r\n\x1a\n" + bytes(64)), r"is damaged"),
    "a vocabulary of one token less": (remove_last_token, r"has shape \[500, 32\], the model needs \[499, 32\]"),
    "no tokenizer": (lambda run: (run / "tokenizer.json").unlink(), r"no tokenizer at .*tokenizer\.json"),
    "half a recipe": (lambda run: write_content(run / "recipe.toml", b"[mod"), r"recipe\.toml is not valid TOML"),
    "another model's recipe": (change_recipe_width, r"the model needs"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_damaged_run_folder_is_refused(regard, tiny_run, tmp_path, name):
    damage, message = FOLDERS[name]
    run = tmp_path / "run"
    shutil.copytree(tiny_run.folder, run, ignore=shutil.ignore_patterns("checkpoints"))
    damage(run)
    assert_refused(regard("translate", run, "one", "--device", "cpu"), message)


CHECKPOINTS = {
    "a flipped bit": (["--from", "60"], r"step-00000060 is damaged: model\.safetensors does not match its hash"),
    "missing": (["--from", "45"], r"no checkpoint .*step-00000045; available: step-00000030, step-00000060"),
    "not a step": (["--from", "best"], r"--from best: give a step"),
    "none before it to verify from": (["--verify", "20", "--from", "30"], r"no good checkpoint 20 steps before step 30"),
}


@pytest.mark.parametrize(
    "words", [["translate", "{run}", "one"], ["evaluate", "{run}"], ["train", "{run}", "--resume"], ["convert", "{run}", "out"]]
)
@pytest.mark.parametrize("name", ["data.json", "environment.json", "log.jsonl", "checkpoints/state.json"])
def test_pipe_in_a_run_folder_is_refused_and_not_waited_for(regard, tiny_run, tmp_path, words, name):
    run = tmp_path / "run"
    shutil.copytree(tiny_run.folder, run, ignore=shutil.ignore_patterns("step-*"))
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("waits for a pipe"))
    signal.alarm(30)
    try:
        assert_refused(regard(*(word.format(run=run) for word in words)), r"is not a regular file; remove it")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def damaged_run(tiny_run, tmp_path):
    """Return a copy of a run whose newest checkpoint has a flipped bit."""
    shutil.copytree(tiny_run.folder, tmp_path / "run")
    weights_file = tmp_path / "run" / "checkpoints" / "step-00000060" / "model.safetensors"
    data = bytearray(weights_file.read_bytes())
    data[-1] ^= 1
    weights_file.write_bytes(data)
    return tmp_path / "run"


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_resume_from_damaged_or_missing_checkpoint_is_refused(regard, damaged_run, name):
    words, message = CHECKPOINTS[name]
    assert_refused(regard("train", damaged_run, "--resume", "--device", "cpu", "--no-evaluate", *words), message)


def test_resume_skips_the_damaged_checkpoint_and_names_it(regard, damaged_run, tiny_run):
    status, err = regard("train", damaged_run, "--resume", "--device", "cpu", "--no-evaluate", "--verify", "30")
    assert status == 0, err
    assert "step-00000060 is damaged (model.safetensors does not match its hash); using the one before it" in err
    assert "running steps 1 to 30 again" in err and "bit-exact" in err and "resuming from step 30" in err
    assert (damaged_run / "model.safetensors").read_bytes() == (tiny_run.folder / "model.safetensors").read_bytes()
    assert [path.name for path in (damaged_run / "checkpoints" / "archive").iterdir()] == ["step-00000060"]


def test_resume_without_an_intact_checkpoint_is_refused(regard, damaged_run):
    (damaged_run / "checkpoints" / "step-00000030" / "state.json").unlink()
    assert_refused(
        regard("train", damaged_run, "--resume", "--device", "cpu"), r"no checkpoint in .*checkpoints is intact; to start again"
    )


def test_verify_and_resume_need_a_run_folder(regard, data_folder):
    (data_folder / "r.toml").write_text(TRANSLATE.format(root=data_folder, source="a.en"))
    assert_refused(regard("train", data_folder / "r.toml", "--verify", "3"), r"--verify is about a run's checkpoints: .*--resume")
    assert_refused(regard("train", data_folder, "--resume"), r"is not a run folder \(it has no recipe\.toml\)")


# images


def png(size=(12, 12), **options):
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((*size, 3), np.uint8)).save(buffer, "PNG", **options)
    return buffer.getvalue()


def png_with_header_size(width, height):
    """Return a PNG whose header claims this size."""
    head = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    return png()[:8] + (13).to_bytes(4, "big") + head + zlib.crc32(head).to_bytes(4, "big") + png()[33:]


IMAGES = {
    "empty": (b"", r"is not a PNG, JPEG or WebP image"),
    "text": (b"a picture\n", r"is not a PNG, JPEG or WebP image"),
    "a GIF": (b"GIF89a" + bytes(30), r"is not a PNG, JPEG or WebP image"),
    "cut off": (png((60, 60))[:-40], r"is damaged"),
    "only its header": (png()[:33], r"is damaged|is not a PNG"),
    "a wrong bit": (png()[:50] + bytes([png()[50] ^ 255]) + png()[51:], r"is damaged"),
    "decompression bomb": (png_with_header_size(50_000, 50_000), r"has more than 89,478,485 pixels, as a decompression bomb"),
    "no pixels": (png_with_header_size(0, 0), r"is damaged|is not a PNG"),
    "a JPEG's first bytes": (b"\xff\xd8\xff\xe0" + bytes(20), r"is not a PNG|is damaged"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_malformed_image_is_refused(name):
    data, message = IMAGES[name]
    with pytest.raises(UserError, match=message) as error:
        decode_image(data, "a.png")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "make, message",
    [(lambda path: path.mkdir(), "is a folder"), (make_fifo, "is not a regular file"), (lambda path: None, "no image")],
    ids=["folder", "FIFO", "missing"],
)
def test_image_path_that_is_no_regular_file_is_refused(tmp_path, make, message):
    make(tmp_path / "a.png")
    with pytest.raises(UserError, match=message):
        ImageFile(tmp_path / "a.png").read()


def shard(path, broken=False):
    with tarfile.open(path, "w") as file:
        entry = tarfile.TarInfo("a.png")
        entry.size = len(png())
        file.addfile(entry, io.BytesIO(png()))
    if broken:
        path.write_bytes(path.read_bytes()[:600])


IMAGE_SETS = {
    "a shard cut off": ("a.tar", lambda path: shard(path, broken=True), r"a\.tar is truncated|is not a complete tar shard"),
    "a shard that is none": ("a.tar", b"nothing" * 200, r"a\.tar is not a complete tar shard"),
    "no label": ("a.tar", shard, r"a\.png has no label"),
    "a missing image": ("a.tsv", b"nowhere.png\tcat\n", r"a\.tsv:1 names an image that does not exist"),
    "an index that leads too far": ("a.index.tsv", b"x\t0\t99999999\tcat\n", r"a\.index\.tsv:1 says that an image begins"),
    "an index without images": ("b.index.tsv", b"x\t0\t9\tcat\n", r"needs its images beside it"),
    "a compressed shard": ("a.tar.gz", b"", r"is a compressed shard"),
    "an empty folder": ("pictures", lambda path: path.mkdir(), r"has no images"),
    "no image set": ("a.doc", b"", r"give a folder with one folder per label"),
}


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_malformed_image_set_is_refused(regard, data_folder, name):
    file, content, message = IMAGE_SETS[name]
    (data_folder / "a.jpgs").write_bytes(png())
    write_content(data_folder / file, content)
    recipe = CLASSIFY.replace("[train]", 'size = 12\n[model]\nkind = "vit"\npatch_size = 4\n[train]').replace("v.tsv", file)
    assert_refused(train(regard, data_folder, recipe, source=file), message)


def test_missing_weights_and_fifo_are_refused(tmp_path):
    make_fifo(tmp_path / "w.safetensors")
    for name in ("w.safetensors", "nothing.safetensors"):
        with pytest.raises(UserError, match="no weights at"):
            read_weights(tmp_path / name)


# memory limit


@pytest.mark.system
def test_gzip_bomb_does_not_fill_the_memory(data_folder):
    """Run the command with a memory limit of 400 MiB above what its imports take."""
    (data_folder / "a.en.gz").write_bytes(gzip_bomb(b"one two\n", 192))
    (data_folder / "r.toml").write_text(TRANSLATE.format(root=data_folder, source="a.en.gz"))
    code = (
        "import resource, sys, torch, regard.run.train, regard.cli\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 400 * 2**20,) * 2)\n"
        f"sys.argv = ['regard', 'train', {str(data_folder / 'r.toml')!r}, '--out', {str(data_folder / 'run')!r}]\n"
        "sys.argv += ['--device', 'cpu']\n"
        "regard.cli.main()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert_refused((run.returncode, run.stderr), r"expands to more than 100 times its size")


# accepted input

ACCEPTED = {
    "BOM": b"\xef\xbb\xbf" + twenty_lines(),
    "CRLF": twenty_lines().replace(b"\n", b"\r\n"),
    "BOM and CRLF": b"\xef\xbb\xbf" + twenty_lines().replace(b"\n", b"\r\n"),
    "no last newline": twenty_lines().rstrip(b"\n"),
    "U+2028": twenty_lines("one\u2028two".encode()),
    "U+0085": twenty_lines("one\u0085two".encode()),
    "a form feed": twenty_lines(b"one\x0ctwo"),
    "emoji, combining marks, right to left": twenty_lines("👩‍👩‍👧 e\u0301 שלום".encode()),
    "tabs": twenty_lines(b"one\ttwo"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_unusual_but_valid_text_is_accepted(name, data_folder):
    from regard.corpus.text_files import read_pairs

    (data_folder / "a.en").write_bytes(ACCEPTED[name])
    found = read_pairs([data_folder / "a.en", data_folder / "a.de"])
    assert len(found) == 20 and found.source[-1] == "one two"
    first = ACCEPTED[name].removeprefix(b"\xef\xbb\xbf").split(b"\n")[0].decode().rstrip("\r").strip()
    assert found.source[0] == first
