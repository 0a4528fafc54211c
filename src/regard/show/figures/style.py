"""The house style of all figures: fonts, colours, sizes, placement in inches.

Figures use matplotlib's object API; settings that only rcParams offers hold inside `house_style()`.
"""

import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

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
from regard.show.figures.labels import clean


@dataclass(frozen=True)
class Theme:
    """The colours of a figure."""

    name: str
    text: str
    muted: str
    faint: str
    paper: str
    outline: str
    """Visible on light and dark cells, in colour and in grey."""
    series: tuple[str, ...]


THEMES = {
    "light": Theme(
        "light",
        *("#1d2330", "#646b78", "#d8dade", "#ffffff", "#d55e00"),
        ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"),  # Okabe & Ito 2008
    ),
    "dark": Theme(
        "dark",
        *("#e4e8ee", "#9fabba", "#3a4454", "#191e27", "#f0803c"),
        ("#4aa3df", "#f0803c", "#2fbf97", "#e39ac4", "#f2bd4b", "#8fd0f5", "#e4e8ee"),
    ),
}
MARKERS = "osD^vP*"  # each series has its own marker, for readers who cannot rely on colour
SMALL, BODY, TITLE = 8.0, 9.0, 11.5  # points
MARGIN = 0.18  # inches around the figure
PER_INCH = {"px": 96.0, "in": 1.0, "cm": 2.54, "mm": 25.4}

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
MISSING_GLYPH = r"Glyph (\d+) .*missing from"
LOCK = threading.RLock()  # rcParams and warning filters are global to the process; the server draws in threads


@dataclass(frozen=True)
class FigureLook:
    """How a figure looks, whatever it shows."""

    theme: str | None = None
    """"light" or "dark"; None is light for an image, and as the reader's system for a page."""
    title: str | None = None
    """In place of the figure's own."""
    width: str | None = None
    """Such as 800px, 6in, 15cm, 84mm; type and lines grow with it."""
    transparent: bool = False
    contours: bool = False
    """Weights over an image as contour lines, which leave it as it is."""

    def __post_init__(self) -> None:
        if self.theme is not None and self.theme not in THEMES:
            raise UserError(f"--theme {self.theme}: no such theme; use {' or '.join(THEMES)}")
        if self.width is not None:
            parse_width(self.width)


DEFAULT_OPTIONS = FigureLook()
OPTIONS: ContextVar[FigureLook] = ContextVar("OPTIONS", default=DEFAULT_OPTIONS)


def options() -> FigureLook:
    return OPTIONS.get()


def theme() -> Theme:
    """Return the colours to draw with."""
    return THEMES[options().theme or "light"]


@contextmanager
def use_options(chosen: FigureLook) -> Iterator[None]:
    """Draw with these options inside the block."""
    token = OPTIONS.set(chosen)
    try:
        yield
    finally:
        OPTIONS.reset(token)


def parse_width(width: str) -> tuple[float, str]:
    """Return a width in inches, and its unit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(px|in|cm|mm)?", width)
    inches = float(found[1]) / PER_INCH[found[2] or "px"] if found else 0.0
    if found is None or not 0.5 <= inches <= 100:
        raise UserError(f"--width {width}: not a width from 0.5 to 100 inches; write 800px, 6in, 15cm or 84mm")
    return inches, found[2] or "px"


@cache
def rc_settings(colours: Theme) -> dict[Any, Any]:
    """Return the rcParams: `svg.fonttype` none keeps words as text, the hash salt makes ids reproducible."""
    installed = set(font_manager.get_font_names())
    noto = sorted(name for name in installed if name.startswith(("Noto Sans", "Noto Emoji")))
    return dict(matplotlib.rcParamsDefault) | {
        "font.family": [*dict.fromkeys(["DejaVu Sans", *(name for name in FALLBACKS if name in installed), *noto]), "sans-serif"],
        "font.size": BODY,
        "text.color": colours.text,
        "axes.labelcolor": colours.muted,
        "axes.labelsize": BODY,
        "axes.edgecolor": colours.faint,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "xtick.color": colours.muted,
        "ytick.color": colours.muted,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "grid.color": colours.faint,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.fontsize": BODY,
        "axes.facecolor": "none",
        "lines.linewidth": 1.6,
        "lines.solid_capstyle": "round",
        "figure.facecolor": colours.paper,
        "savefig.facecolor": colours.paper,
        "svg.fonttype": "none",
        "svg.hashsalt": "regard",
        "pdf.fonttype": 42,
        "text.usetex": False,
        "text.parse_math": False,
    }


@contextmanager
def house_style() -> Iterator[None]:
    """Draw and save in the house style inside the block, whatever the user's matplotlib settings are."""
    with LOCK, matplotlib.rc_context(rc_settings(theme())), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=MISSING_GLYPH)  # reported once, for files that draw the glyphs
        yield


def sequential_colormap() -> Colormap:
    """Return the colour map of weights, from the paper to blue: monotone, and uniform to the eye (OKLab, Ottosson 2020)."""
    return build_sequential(theme().name == "dark")


@cache
def build_sequential(dark: bool) -> Colormap:
    t = np.linspace(0, 1, 4001)
    lightness = 0.265 + 0.65 * t if dark else 0.982 - 0.722 * t
    chroma = (0.016 if dark else 0.004) + 0.078 * np.sin(np.pi * t**0.9) ** 1.2 + (0.02 if dark else 0.05) * t
    hue = np.radians(260 - 12 * t if dark else 235 + 32 * t)
    path = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1)
    arc = np.concatenate([[0], np.linalg.norm(np.diff(path, axis=0), axis=1).cumsum()])
    steps = np.interp(np.linspace(0, arc[-1], 256), arc, t)
    return ListedColormap(
        from_oklab(np.stack([np.interp(steps, t, path[:, i]) for i in range(3)], axis=1)), name="regard-sequential"
    )


def diverging_colormap() -> Colormap:
    """Return the colour map of signed values: orange below zero, the paper at zero, blue above, both ends equally strong."""
    return build_diverging(theme().name == "dark")


@cache
def build_diverging(dark: bool) -> Colormap:
    t = np.linspace(-1, 1, 255)
    distance = np.abs(t)
    hue = np.radians(np.where(t < 0, 45, 250))
    chroma = 0.004 + 0.13 * np.sin(np.pi * distance * 0.62)
    return ListedColormap(
        from_oklab(
            np.stack(
                [0.265 + 0.52 * distance if dark else 0.982 - 0.6 * distance, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1
            )
        ),
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


def scale_end(largest: float) -> float:
    """Return the end of a scale from 0: the smallest round number that no value exceeds, at most 1."""
    if not largest > 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(largest) + 1e-9)
    step = next(step for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if largest <= step * power * (1 + 1e-6))
    return float(min(1.0, round(step * power, 12)))


def format_weight(weight: float) -> str:
    """Return a weight for a legend or a list: two digits after the point, or of small ones two that are not 0."""
    return "0" if weight == 0 else f"{weight:.2f}".rstrip("0").rstrip(".") if weight >= 0.1 else f"{weight:.2g}"


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
    axes.set_title(clean(text), loc="left", fontsize=BODY, fontweight="bold", color=theme().text, pad=7, parse_math=False)


def titled_figure(title: str | None, width: float, body: float, *, gap: float = 0.08) -> tuple[Figure, float]:
    """Return a figure with a title in its top left corner, and the inches from its top edge to the body below the title."""
    title = title if options().title is None else options().title
    lines = wrap_text(title, TITLE, width - 2 * MARGIN) if title else ""
    top = MARGIN + (0.2 * (lines.count("\n") + 1) + gap if lines else 0)
    figure = Figure(figsize=(width, top + body + MARGIN))
    draw_title(figure, lines)
    return figure, top


def colour_bar(axes: Axes, scale: Normalize, colours: Colormap, pad: float = 3, **settings: Any) -> Colorbar:
    """Fill the axes with the colour bar of a scale."""
    bar = axes.figure.colorbar(ScalarMappable(scale, colours), cax=axes, **settings)
    bar.outline.set(edgecolor=theme().faint, linewidth=0.6)
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
