"""docs/your-data.md: its commands, on small files of the kinds it names."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "your-data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python)?\n(.*?)```", PAGE, flags=re.S)
WORDS = ["a", "film", "with", "good", "bad", "actors", "story", "that", "no", "one", "will", "forget"]
QUICK = ["train.steps=4", "train.evaluate_every=4", "train.save_every=4", "train.log_every=2"]


def text(i, number=8):
    return " ".join(WORDS[(i * 7 + j * (i % 5 + 1)) % len(WORDS)] for j in range(number)) + f" {i}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the page names."""
    folder = tmp_path_factory.mktemp("mine")
    rows = [{"review": text(i), "stars": i % 5 + 1, "topic": "abc"[i % 3]} for i in range(400)]

    def write(name, *lines):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))

    write("reviews.tsv", *(f"{['pos', 'neg'][i % 2]}\t{text(i)}" for i in range(400)))
    write("more.tsv", *(f"{['pos', 'neg'][i % 2]}\t{text(i)}" for i in range(400, 460)))
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    write("MRPC.tsv", header, *(f"{i % 2}\t{i}\t{i + 1}\t{text(i)}\t{text(i + 1)}" for i in range(80)))
    header = "index\tsentence1\tsentence2\tscore"
    write("STS-B.tsv", header, *(f"{i}\t{text(i)}\t{text(i + 1)}\t{i % 50 / 10}" for i in range(80)))
    write("reviews.jsonl", *map(json.dumps, rows))
    pd.DataFrame(rows).to_parquet(folder / "reviews.parquet")
    write("train.en", *(f"the dog {i}" for i in range(200)))
    write("train.de", *(f"der Hund {i}" for i in range(200)))
    write("opus.jsonl", *(json.dumps({"translation": {"en": f"the dog {i}", "de": f"der Hund {i}"}}) for i in range(80)))
    write("book.txt", *(f"{text(i, 30)}.\n" for i in range(80)))
    write("lines.jsonl", *(json.dumps({"id": i, "text": text(i)}) for i in range(80)))
    return folder


def run(folder, *words, stdout=None):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, stdout=stdout or subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def commands():
    lines = [line for kind, block in BLOCKS if not kind for line in block.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.startswith("regard ")]


@pytest.mark.system
def test_commands_of_the_page_run(folder):
    assert len(commands()) == 19
    for command in commands():
        words, _, target = command.partition(" > ")
        quick = [word for one in QUICK for word in ("--set", one)] if words.startswith("regard train") else []
        done = run(folder, "-m", *shlex.split(words), *quick)
        assert done.returncode == 0, (command, done.stderr)
        if target:
            (folder / target).write_text(done.stdout)
    assert "column 1 is the text, column 0 is the label: 2 labels (pos 50%, neg 50%)" in PAGE


@pytest.mark.system
def test_python_of_the_page_runs(folder):
    (script,) = [block for kind, block in BLOCKS if kind]
    short = script.replace(', out="runs', f', overrides={QUICK!r}, out="runs').replace("minutes=10", "minutes=1")
    done = run(folder, "-c", short)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2


def test_page_quotes_what_new_prints(folder):
    done = run(folder, "-m", "regard", "new", "classify", "--data", "reviews.tsv", "--minutes", "0")
    for line in done.stderr.splitlines()[:3]:
        assert line in PAGE
