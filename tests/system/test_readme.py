"""The commands of the README, typed as they stand there, on files of a world."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCK = re.search(r"## With your own parallel text\n\n```\n(.*?)```", README, re.S).group(1)
COMMANDS = [line.split("  #")[0].strip() for line in BLOCK.splitlines()]


def test_the_readmes_commands_work_in_their_order(tmp_path):
    """As printed, but for fewer training steps."""

    def shell(command):
        command = command.replace("regard ", f"{sys.executable} -m regard ", 1)
        return subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)

    assert len(COMMANDS) >= 7
    assert shell("regard world bilingual --number 400 --level 1 --out .").returncode == 0
    (tmp_path / "test.en").rename(tmp_path / "news.en")
    for command in COMMANDS:
        fewer = "--set train.steps=6 --set train.evaluate_every=3 --set train.save_every=3"
        command = re.sub(r"regard (train|ladder) mine.toml", rf"regard \1 mine.toml {fewer}", command)
        done = shell(command.replace("runs/other", "runs/mine"))
        assert done.returncode == 0, (command, done.stderr)
    assert len((tmp_path / "news.de").read_text().splitlines()) == len((tmp_path / "news.en").read_text().splitlines())
    assert (tmp_path / "attention.svg").exists() and (tmp_path / "runs" / "mine" / "scores.json").exists()
