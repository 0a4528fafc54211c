"""Shared by the pages of the tour: shell commands, figures as notebooks show them, two models that are trained once."""

import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from matplotlib.figure import Figure

from regard.show.figures.figure_files import save_figure

FOLDER = Path(__file__).parents[2] / "build" / "tour"
"""Where the commands run and the figures are written."""


@dataclass(frozen=True)
class FigureFile:
    """A figure that a notebook, and the site, shows as the value of a cell."""

    path: Path
    origin: str

    def _repr_svg_(self) -> str | None:
        return self.path.read_text(encoding="utf-8") if self.path.suffix == ".svg" else None

    def _repr_png_(self) -> bytes | None:
        return self.path.read_bytes() if self.path.suffix == ".png" else None

    def __repr__(self) -> str:
        return f"{self.path.name}, {self.origin}"


def regard(command: str) -> FigureFile | None:
    """Run `regard …` and print its output; return the figure that it wrote."""
    print(f"$ regard {command}\n{run_command(command)}", end="")
    words = shlex.split(command)
    out = next((Path(value) for option, value in pairwise(words) if option == "--out"), Path())
    return FigureFile(FOLDER / out, f"made by regard {command}") if out.suffix in (".svg", ".png") else None


def run_command(command: str) -> str:
    """Run `regard …` in the folder of the tour and return what it prints."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "regard", *shlex.split(command)], cwd=FOLDER, capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode:
        raise RuntimeError(f"regard {command}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def figure(drawn: Figure, name: str) -> FigureFile:
    """Save a figure that a page drew beside those of the commands."""
    save_figure(drawn, FOLDER / name)
    return FigureFile(FOLDER / name, "drawn by this page")


def train_once(name: str, command: str, recipe: str = "") -> Path:
    """Return the run folder of a command, which runs once for all pages, and again if the command or its recipe changes."""
    print(f"$ regard {command}")
    folder, stamp = FOLDER / name, FOLDER / f"{name}.made"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != command + recipe:
        shutil.rmtree(folder, ignore_errors=True)
        run_command(command)
        stamp.write_text(command + recipe, encoding="utf-8")
    return folder


def translator() -> Path:
    """Return the run folder of the demo, tested on fewer sentences."""
    return train_once("translator", "demo --out translator --set data.world.held_out=200")


def captioner() -> Path:
    """Return the run folder of captioner.toml."""
    recipe = Path(__file__).with_name("captioner.toml").read_text(encoding="utf-8")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "captioner.toml").write_text(recipe, encoding="utf-8")
    return train_once("captioner", "train captioner.toml --out captioner", recipe)
