"""Shared by the pages of the tour: figures as notebooks show them, and two models that are trained once."""

import io
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from regard.run.card import write_card
from regard.run.evaluate import evaluate
from regard.run.train import train
from regard.show.figures.figure_files import save_figure
from regard.studies.demo import run_demo

FOLDER = Path(__file__).parents[2] / "build" / "tour"
"""Where the models and the figures are written."""
CAPTIONER = Path(__file__).with_name("captioner.toml")


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


def figure(drawn: Figure, name: str) -> FigureFile:
    """Save a figure that a page drew beside those of the commands."""
    save_figure(drawn, FOLDER / name)
    return FigureFile(FOLDER / name, "drawn by this page")


def train_once(name: str, command: str, make: Callable[[Path], object], recipe: str = "") -> Path:
    """Return the run folder of a command, which `make` carries out once for all pages, and again if it or its recipe changes."""
    print(f"$ regard {command}")
    folder, stamp = FOLDER / name, FOLDER / f"{name}.made"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != command + recipe:
        shutil.rmtree(folder, ignore_errors=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        with redirect_stdout(io.StringIO()):
            make(folder)
        stamp.write_text(command + recipe, encoding="utf-8")
    return folder


def translator() -> Path:
    """Return the run folder of the demo, tested on fewer sentences."""
    return train_once("translator", "demo --out translator --set data.world.held_out=200", make_translator)


def make_translator(folder: Path) -> None:
    run_demo(folder, overrides=["data.world.held_out=200"])


def captioner() -> Path:
    """Return the run folder of captioner.toml."""
    recipe = CAPTIONER.read_text(encoding="utf-8")
    return train_once("captioner", "train captioner.toml --out captioner", make_captioner, recipe)


def make_captioner(folder: Path) -> None:
    run = train(CAPTIONER, folder)
    evaluate(run)
    write_card(run)
