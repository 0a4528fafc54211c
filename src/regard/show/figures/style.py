"""The house look in one place: fonts, colours, sizes, and how a figure becomes a file with the same bytes every time.

Figures are made with matplotlib's object API; the few settings that have no other door are set for the length of a `look()`.
"""

import io
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure

from regard.errors import UserError
from regard.show.figures.labels import clean

TEXT, MUTED, FAINT, PAPER = "#1d2330", "#646b78", "#d8dade", "#ffffff"
OUTLINE = "#d55e00"  # outlines: stands out on paper and on ink, in colour and in grey
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe & Ito 2008
MARKERS = "osD^vP*"  # a series is told by its marker too, not by colour alone
SMALL, BODY, TITLE = 8.0, 9.0, 11.5  # points

# DejaVu comes with matplotlib; the others serve scripts it lacks, where the machine has them.
FALLBACKS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans",
    "Noto Sans Arabic",
    "Noto Sans Devanagari",
    "Noto Sans Hebrew",
    "Noto Sans Thai",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Segoe UI",
    "Arial Unicode MS",
    "WenQuanYi Zen Hei",
)
FORMATS: dict[str, dict[str, Any]] = {  # no dates, no versions: the same figure gives the same bytes
    "svg": {"metadata": {"Date": None, "Creator": None, "Format": None, "Type": None}},
    "png": {"metadata": {"Software": None}, "dpi": 200},
    "pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}},
}
LOCK = threading.RLock()  # rcParams and warning filters belong to the process, the server has threads


@cache
def settings() -> dict[Any, Any]:
    """The rcParams of a look; `svg.fonttype` none keeps words as text, the hash salt keeps ids the same from call to call."""
    installed = set(font_manager.get_font_names())
    return dict(matplotlib.rcParamsDefault) | {
        "font.family": ["DejaVu Sans", *(name for name in FALLBACKS if name in installed), "sans-serif"],
        "font.size": BODY,
        "text.color": TEXT,
        "axes.labelcolor": MUTED,
        "axes.labelsize": BODY,
        "axes.edgecolor": FAINT,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "grid.color": FAINT,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.fontsize": BODY,
        "lines.linewidth": 1.6,
        "lines.solid_capstyle": "round",
        "figure.facecolor": PAPER,
        "savefig.facecolor": PAPER,
        "svg.fonttype": "none",
        "svg.hashsalt": "regard",
        "pdf.fonttype": 42,
        "text.usetex": False,
        "text.parse_math": False,
    }


@contextmanager
def house_style() -> Iterator[None]:
    """Everything drawn or saved inside has the house look, whatever the user's own matplotlib settings are."""
    with LOCK, matplotlib.rc_context(settings()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # an SVG viewer has other fonts: keep the text
        yield


@cache
def sequential_colormap() -> Colormap:
    """Paper to ink, equal steps of weight being equal steps to the eye: equidistant in OKLab (Ottosson 2020), ever darker."""
    t = np.linspace(0, 1, 4001)
    lightness = 0.982 - 0.722 * t
    chroma = 0.004 + 0.078 * np.sin(np.pi * t**0.9) ** 1.2 + 0.05 * t
    hue = np.radians(235 + 32 * t)
    path = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1)
    walked = np.concatenate([[0], np.linalg.norm(np.diff(path, axis=0), axis=1).cumsum()])
    even = np.interp(np.linspace(0, walked[-1], 256), walked, t)
    return ListedColormap(from_oklab(np.stack([np.interp(even, t, path[:, i]) for i in range(3)], axis=1)), name="regard-ink")


@cache
def diverging_colormap() -> Colormap:
    """Two-sided: rust below zero, paper at zero, ink above, both ends equally dark."""
    t = np.linspace(-1, 1, 255)
    side = np.abs(t)
    hue = np.radians(np.where(t < 0, 45, 250))
    chroma = 0.004 + 0.13 * np.sin(np.pi * side * 0.62)
    return ListedColormap(
        from_oklab(np.stack([0.982 - 0.6 * side, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1)), name="regard-ink-and-rust"
    )


def from_oklab(lab: np.ndarray) -> np.ndarray:
    """(N, 3) OKLab -> (N, 3) sRGB in 0..1; the matrices are Ottosson's."""
    cones = lab @ np.array([[1, 1, 1], [0.3963377774, -0.1055613458, -0.0894841775], [0.2158037573, -0.0638541728, -1.291485548]])
    linear = cones**3 @ np.array(
        [
            [4.0767416621, -1.2684380046, -0.0041960863],
            [-3.3077115913, 2.6097574011, -0.7034186147],
            [0.2309699292, -0.3413193965, 1.707614701],
        ]
    )
    linear = linear.clip(0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def text_widths(words: Sequence[str], points: float, weight: str = "normal") -> np.ndarray:
    """Inches each word takes at this size in the house font (call inside a look)."""
    renderer, font = RendererAgg(1, 1, 200), font_manager.FontProperties(size=points, weight=weight)
    return np.array([renderer.get_text_width_height_descent(word, font, False)[0] for word in words]) / 200


def wrap_text(text: str, points: float, inches: float) -> str:
    """Break a title at its spaces so that no line is wider than `inches`, even in bold."""
    lines: list[str] = []
    for word in clean(text, keep="\n").split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_widths([longer], points, "bold")[0] > inches:
            lines.append(word)
        else:
            lines[-1:] = [longer]
    return "\n".join(lines)


def panel_title(axes: Axes, text: str) -> None:
    """A panel's name: small, bold, at the left edge, over the panel."""
    axes.set_title(clean(text), loc="left", fontsize=BODY, fontweight="bold", color=TEXT, pad=7, parse_math=False)


def render(figure: Figure, kind: str, ground: str = PAPER) -> bytes:
    """The figure as the bytes of an "svg", "png" or "pdf" file."""
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(buffer, format=kind, facecolor=ground, **FORMATS[kind])
    return buffer.getvalue()


def to_svg(figure: Figure, name: str = "") -> str:
    """The figure as an <svg> to inline in a page; `name` goes before every id, so that several figures share the page."""
    root = ElementTree.fromstring(render(figure, "svg", ground="none"))  # the page's card shows through
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}style", "}metadata")):  # a style inside would hold for the whole page
                parent.remove(child)
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]  # HTML knows <svg> without its namespace
        node.attrib = {key.rpartition("}")[2]: prefix_ids(key, value, name) for key, value in node.attrib.items()}
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    return ElementTree.tostring(root, encoding="unicode")


def prefix_ids(key: str, value: str, name: str) -> str:
    """An attribute with the figure's name before each id it gives or refers to."""
    prefix = f"{name}-" if name else ""
    if key == "id":
        return prefix + value
    return f"#{prefix}{value[1:]}" if value.startswith("#") and key.endswith("href") else value.replace("url(#", f"url(#{prefix}")


def figure_format(path: str | Path, *, pages: bool = False) -> str:
    """The format a picture's name ends in, .html among them where there are `pages`; or the user's mistake."""
    path = Path(path)
    kind = path.suffix.lower()[1:]
    if kind not in FORMATS and not (pages and kind == "html"):
        wrong = f"{path.suffix} is not a format" if kind else "the name has no ending to tell the format"
        raise UserError(f"picture {path}: {wrong}; use {'.svg, .png, .pdf or .html' if pages else '.svg, .png or .pdf'}")
    return kind


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write the figure in the format its name ends in; a missing folder is made."""
    write_file(path, render(figure, figure_format(path)))


def write_file(path: str | Path, drawn: bytes) -> None:
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(drawn)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"{path}: cannot write the picture ({reason}); choose another path") from error
