"""What the pages share: commands typed as a user types them, pictures as notebooks show them, two models trained once."""

import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from matplotlib.figure import Figure

from regard.show.figures.style import save_figure

FOLDER = Path(__file__).parents[2] / "build" / "tour"
"""Where commands run and pictures go."""


@dataclass(frozen=True)
class Picture:
    """A file that a notebook, and the site, shows as a cell's value."""

    path: Path
    made_by: str

    def _repr_svg_(self) -> str | None:
        return self.path.read_text(encoding="utf-8") if self.path.suffix == ".svg" else None

    def _repr_png_(self) -> bytes | None:
        return self.path.read_bytes() if self.path.suffix == ".png" else None

    def __repr__(self) -> str:
        return f"{self.path.name}, {self.made_by}"


def regard(command: str) -> Picture | None:
    """Type `regard …` and print what it says; the picture that it wrote."""
    print(f"$ regard {command}\n{typed(command)}", end="")
    words = shlex.split(command)
    out = next((Path(after) for word, after in pairwise(words) if word == "--out"), Path())
    return Picture(FOLDER / out, f"made by regard {command}") if out.suffix in (".svg", ".png") else None


def typed(command: str) -> str:
    """What a command prints."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "regard", *shlex.split(command)], cwd=FOLDER, capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode:
        raise RuntimeError(f"regard {command}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def picture(figure: Figure, name: str) -> Picture:
    """A figure drawn in a page, kept beside those that commands drew."""
    save_figure(figure, FOLDER / name)
    return Picture(FOLDER / name, "drawn by this page")


def once(name: str, command: str, recipe: str = "") -> Path:
    """The run folder that a command makes, made once for all pages; anew where the command or its recipe has changed."""
    print(f"$ regard {command}")
    made, noted = FOLDER / name, FOLDER / f"{name}.made"
    if not noted.exists() or noted.read_text(encoding="utf-8") != command + recipe:
        shutil.rmtree(made, ignore_errors=True)
        typed(command)
        noted.write_text(command + recipe, encoding="utf-8")
    return made


def translator() -> Path:
    """The demonstration's, tested on fewer sentences."""
    return once("translator", "demo --out translator --set data.world.held_out=200")


def captioner() -> Path:
    recipe = Path(__file__).with_name("captioner.toml").read_text(encoding="utf-8")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "captioner.toml").write_text(recipe, encoding="utf-8")
    return once("captioner", "train captioner.toml --out captioner", recipe)
