"""The wheel in an empty environment: the README's commands, run from another folder."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
QUICK = ["train.steps=4", "train.evaluate_every=4", "train.save_every=4", "tokens.size=200", "model.width=16"]


@pytest.mark.system
def test_wheel_runs_the_commands_of_the_readme_from_another_folder(tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path / "dist"), str(ROOT)]
    subprocess.run(pip, check=True, timeout=300)
    (wheel,) = (tmp_path / "dist").glob("regard-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True, timeout=300)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")  # torch and the others, not regard
    (tmp_path / "mine").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}

    def run(*words):
        command = [tmp_path / "env" / "bin" / "regard", *words]
        done = subprocess.run(command, cwd=tmp_path / "mine", env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    for side, words in {"en": "the dog", "de": "der Hund"}.items():
        (tmp_path / "mine" / f"train.{side}").write_text("".join(f"{words} {i}\n" for i in range(200)))
    found = run("new", "translate", "--source", "train.en", "--target", "train.de", "--minutes", "0")
    (tmp_path / "mine" / "mine.toml").write_text(found)
    run("train", "mine.toml", "--out", "runs/mine", *(word for one in QUICK for word in ("--set", one)))
    assert run("translate", "runs/mine", "the dog 7").endswith("\n")
    assert "bleu" in run("evaluate", "runs/mine")
    run("show", "runs/mine", "the dog 7", "--out", "attention.svg")
    assert (tmp_path / "mine" / "attention.svg").stat().st_size > 1000
    assert "parameters" in run("plan", "mine.toml")
