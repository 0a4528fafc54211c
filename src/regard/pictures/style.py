"""The house look, and how a figure becomes a file: the same bytes every time, text as text."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from regard.errors import Mistake

INK = "#1b2a41"
FAINT = "#d9dde3"
SERIES = ["#1f4e79", "#c8553d", "#4b7f52", "#8e6c8a", "#b8860b", "#5f6b7a"]
WEIGHTS = LinearSegmentedColormap.from_list("weights", ["#ffffff", "#dbe7f1", "#9dbfd9", "#4f86b0", "#1f4e79", "#0f2942"])
"""From paper to ink, evenly darker, so that it prints in grey."""

LOOK: Any = {
    "font.family": ["DejaVu Sans"], "font.size": 9.0, "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "axes.titlecolor": INK,
    "xtick.color": INK, "ytick.color": INK, "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9.5,
    "axes.prop_cycle": cycler(color=SERIES), "figure.facecolor": "white", "svg.fonttype": "none", "svg.hashsalt": "regard",
    "pdf.fonttype": 42, "text.parse_math": False, "legend.frameon": False,
}
FORMATS = {".svg": "svg", ".png": "png", ".pdf": "pdf"}
NO_DATE = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}, "pdf": {"CreationDate": None, "Producer": None, "Creator": None}}


@contextmanager
def look() -> Iterator[None]:
    """The house settings, for making or saving a figure."""
    with matplotlib.rc_context(LOOK):
        yield


def save(figure: Figure, path: Path) -> None:
    """Write a figure as .svg, .png or .pdf."""
    if path.suffix not in FORMATS:
        raise Mistake(f"picture {path}: {path.suffix or 'no ending'} is not a format; use .svg, .png or .pdf")
    data = rendered(figure, FORMATS[path.suffix])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise Mistake(f"cannot write the picture {path}: {error.strerror or error}") from None


def rendered(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    with look(), warnings.catch_warnings():
        if kind == "svg":                             # its text is text: whoever opens it has the fonts for it
            warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(buffer, format=kind, metadata=NO_DATE[kind], bbox_inches="tight", pad_inches=0.08, dpi=200)
    return buffer.getvalue()


def svg_text(figure: Figure, prefix: str) -> str:
    """The figure as an <svg> element for a page; ids begin with `prefix`, so that several can stand on one page."""
    text = rendered(figure, "svg").decode("utf-8")
    text = text[text.index("<svg"):]
    for mark in ('id="', 'href="#', "url(#"):
        text = text.replace(mark, f"{mark}{prefix}-")
    return text
