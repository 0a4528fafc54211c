"""The house style of all figures: fonts, colours, sizes, placement in inches, and reproducible files.

Figures use matplotlib's object API; settings that only rcParams offers hold inside `house_style()`.
"""

import io
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure

from regard.errors import UserError
from regard.files import atomic_write, writing_into
from regard.show.figures.labels import clean

TEXT, MUTED, FAINT, PAPER = "#1d2330", "#646b78", "#d8dade", "#ffffff"
OUTLINE = "#d55e00"  # outlines: visible on light and dark cells, in colour and in grey
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe & Ito 2008
MARKERS = "osD^vP*"  # each series has its own marker, for readers who cannot rely on colour
SMALL, BODY, TITLE = 8.0, 9.0, 11.5  # points
MARGIN = 0.18  # inches around the figure

# DejaVu ships with matplotlib; the others cover scripts it lacks, where they are installed.
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
FORMATS: dict[str, dict[str, Any]] = {  # no dates or versions: the same figure gives the same bytes
    "svg": {"metadata": {"Date": None, "Creator": None, "Format": None, "Type": None}},
    "png": {"metadata": {"Software": None}, "dpi": 200},
    "pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}},
}
LOCK = threading.RLock()  # rcParams and warning filters are global to the process; the server draws in threads


@cache
def rc_settings() -> dict[Any, Any]:
    """Return the rcParams: `svg.fonttype` none keeps words as text, the hash salt makes ids reproducible."""
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
    """Draw and save in the house style inside the block, whatever the user's matplotlib settings are."""
    with LOCK, matplotlib.rc_context(rc_settings()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the SVG viewer may have the font: keep the text
        yield


@cache
def sequential_colormap() -> Colormap:
    """Return the colour map of weights, white to dark blue: monotone, and uniform to the eye (OKLab, Ottosson 2020)."""
    t = np.linspace(0, 1, 4001)
    lightness = 0.982 - 0.722 * t
    chroma = 0.004 + 0.078 * np.sin(np.pi * t**0.9) ** 1.2 + 0.05 * t
    hue = np.radians(235 + 32 * t)
    path = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1)
    arc = np.concatenate([[0], np.linalg.norm(np.diff(path, axis=0), axis=1).cumsum()])
    steps = np.interp(np.linspace(0, arc[-1], 256), arc, t)
    return ListedColormap(
        from_oklab(np.stack([np.interp(steps, t, path[:, i]) for i in range(3)], axis=1)), name="regard-sequential"
    )


@cache
def diverging_colormap() -> Colormap:
    """Return the colour map of signed values: orange below zero, white at zero, blue above, both ends equally dark."""
    t = np.linspace(-1, 1, 255)
    distance = np.abs(t)
    hue = np.radians(np.where(t < 0, 45, 250))
    chroma = 0.004 + 0.13 * np.sin(np.pi * distance * 0.62)
    return ListedColormap(
        from_oklab(np.stack([0.982 - 0.6 * distance, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1)),
        name="regard-diverging",
    )


def from_oklab(lab: np.ndarray) -> np.ndarray:
    """Convert OKLab (N, 3) to sRGB (N, 3) in 0..1, with Ottosson's matrices."""
    cones = lab @ np.array([[1, 1, 1], [0.3963377774, -0.1055613458, -0.0894841775], [0.2158037573, -0.0638541728, -1.291485548]])
    linear = cones**3 @ np.array(
        [
            [4.0767416621, -1.2684380046, -0.0041960863],
            [-3.3077115913, 2.6097574011, -0.7034186147],
            [0.2309699292, -0.3413193965, 1.707614701],
        ]
    )
    linear = linear.clip(0, 1)
    return np.asarray(np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055))


def text_widths(words: Sequence[str], points: float, weight: str = "normal") -> np.ndarray:
    """Return the width of each word in inches at this font size (call inside `house_style`)."""
    renderer = cast(Any, RendererAgg)(1, 1, 200)  # matplotlib has no types for it
    font = font_manager.FontProperties(size=points, weight=weight)
    return np.array([renderer.get_text_width_height_descent(word, font, False)[0] for word in words]) / 200


def wrap_text(text: str, points: float, inches: float) -> str:
    """Break a title at spaces so that no line is wider than `inches`, even in bold."""
    lines: list[str] = []
    for word in clean(text, keep="\n").split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_widths([longer], points, "bold")[0] > inches:
            lines.append(word)
        else:
            lines[-1:] = [longer]
    return "\n".join(lines)


def panel_title(axes: Axes, text: str) -> None:
    """Write a small bold title above the left edge of a panel."""
    axes.set_title(clean(text), loc="left", fontsize=BODY, fontweight="bold", color=TEXT, pad=7, parse_math=False)


def titled_figure(title: str | None, width: float, body: float, *, gap: float = 0.08) -> tuple[Figure, float]:
    """Return a figure with a title in its top left corner, and the inches from its top edge to the body below the title."""
    lines = wrap_text(title, TITLE, width - 2 * MARGIN) if title else ""
    top = MARGIN + (0.2 * (lines.count("\n") + 1) + gap if lines else 0)
    figure = Figure(figsize=(width, top + body + MARGIN))
    draw_title(figure, lines)
    return figure, top


def colour_bar(axes: Axes, scale: Normalize, colours: Colormap, pad: float = 3, **settings: Any) -> Colorbar:
    """Fill the axes with the colour bar of a scale."""
    bar = axes.figure.colorbar(ScalarMappable(scale, colours), cax=axes, **settings)
    bar.outline.set(edgecolor=FAINT, linewidth=0.6)
    axes.tick_params(labelsize=SMALL - 0.5, length=0, pad=pad)
    return bar


def draw_text(figure: Figure, left: float, top: float, text: str, **settings: Any) -> None:
    """Write text at inches from the figure's left and top edges."""
    width, height = figure.get_size_inches()
    figure.text(left / width, 1 - top / height, text, parse_math=False, **{"va": "center_baseline", **settings})


def draw_title(figure: Figure, lines: str) -> None:
    """Write the figure's title in its top left corner."""
    if lines:
        draw_text(figure, MARGIN, MARGIN, lines, fontsize=TITLE, fontweight="bold", va="top", linespacing=1.25)


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes at inches from the figure's left and top edges."""
    across, down = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))


def draw_signed(axes: Axes, values: np.ndarray, reach: float, **settings: Any) -> None:
    """Draw values from -reach to reach with the diverging colour map."""
    axes.imshow(values, cmap=diverging_colormap(), vmin=-reach, vmax=reach, interpolation="none", **settings)


def draw_bars(axes: Axes, values: Sequence[float] | np.ndarray, height: float) -> None:
    """Draw values in 0..1 as horizontal bars, one per row."""
    axes.barh(np.arange(len(values)) + 0.5, values, height=height, color=sequential_colormap()(0.82))
    axes.set(xlim=(0, 1), ylim=(len(values), 0), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.spines["left"].set_visible(True)


def render(figure: Figure, kind: str, background: str = PAPER) -> bytes:
    """Return the figure as the bytes of an "svg", "png" or "pdf" file."""
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(buffer, format=kind, facecolor=background, **FORMATS[kind])
    return buffer.getvalue()


def to_svg(figure: Figure, name: str = "") -> str:
    """Return the figure as an <svg> to inline in a page; `name` prefixes every id, so that several figures can share a page."""
    root = ElementTree.fromstring(render(figure, "svg", background="none"))  # the background of the page shows through
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}style", "}metadata")):  # an inlined style would apply to the whole page
                parent.remove(child)
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]  # HTML needs no namespace for <svg>
        node.attrib = {key.rpartition("}")[2]: prefix_ids(key, value, name) for key, value in node.attrib.items()}
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    return ElementTree.tostring(root, encoding="unicode")


def prefix_ids(key: str, value: str, name: str) -> str:
    """Return the attribute with `name` before each id that it defines or refers to."""
    prefix = f"{name}-" if name else ""
    if key == "id":
        return prefix + value
    return f"#{prefix}{value[1:]}" if value.startswith("#") and key.endswith("href") else value.replace("url(#", f"url(#{prefix}")


def figure_format(path: Path, *, pages: bool = False) -> str:
    """Return the format that the file name ends in, .html among them if `pages`; raise a UserError for any other."""
    kind = path.suffix.lower()[1:]
    if kind not in FORMATS and not (pages and kind == "html"):
        wrong = f"{path.suffix} is not a supported format" if kind else "the file name has no extension"
        raise UserError(f"--out {path}: {wrong}; use {'.svg, .png, .pdf or .html' if pages else '.svg, .png or .pdf'}")
    return kind


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format that the file name ends in."""
    write_file(path, render(figure, figure_format(path)))


def write_view(out: Path | None, figure: Callable[[], Figure], page: Callable[[], str]) -> None:
    """Write a figure, or where the file name ends in .html a page; nothing without a file."""
    if out is not None:
        kind = figure_format(out, pages=True)
        write_file(out, page().encode() if kind == "html" else render(figure(), kind))


def write_file(path: Path, content: bytes) -> None:
    """Write a figure or page; missing folders are made."""
    with writing_into(path.parent):
        atomic_write(path, content)
