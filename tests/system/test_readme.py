"""The commands of the README run as printed, on files of an embedded world."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCK = re.search(r"## With your own parallel text\n\n```\n(.*?)```", README, re.S).group(1)
COMMANDS = [line.split("  #")[0].strip() for line in BLOCK.splitlines()]


def test_readme_commands_run_in_order(tmp_path):
    """As printed, except for fewer training steps."""

    def shell(command):
        command = command.replace("regard ", f"{sys.executable} -m regard ", 1)
        return subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)

    assert len(COMMANDS) >= 7
    assert shell("regard world bilingual --number 400 --level 1 --out .").returncode == 0
    (tmp_path / "test.en").rename(tmp_path / "news.en")
    for command in COMMANDS:
        fewer_steps = "--set train.steps=6 --set train.evaluate_every=3 --set train.save_every=3"
        command = re.sub(r"regard (train|ladder) mine.toml", rf"regard \1 mine.toml {fewer_steps}", command)
        done = shell(command.replace("runs/other", "runs/mine"))
        assert done.returncode == 0, (command, done.stderr)
    assert len((tmp_path / "news.de").read_text().splitlines()) == len((tmp_path / "news.en").read_text().splitlines())
    assert (tmp_path / "attention.svg").exists() and (tmp_path / "runs" / "mine" / "scores.json").exists()


def test_readme_python_example_runs(tmp_path):
    """As printed, on a run with fewer training steps."""
    code = re.search(r"```python\n(.*?)```", README, re.S).group(1)
    smaller = "--set train.steps=4 --set data.world.number=2000 --set data.world.held_out=20 --set decode.max_tokens=8"
    done = subprocess.run(
        [sys.executable, "-m", "regard", "demo", "--out", "runs/demo", *smaller.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and re.search(r"^\(2, 4, \d+, 14\)$", done.stdout, re.MULTILINE), (done.stdout, done.stderr)
