"""Attributions of a text, method by method: the text with its tokens highlighted, and a heat map with the faithfulness beside it.

Methods have units of their own: weights, norms, nats. What is drawn is the share of a token in all that a method assigns,
value / Σ|values|, signed, so that one colour scale with zero in the middle holds for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from regard.show.figures import style
from regard.show.figures.labels import SHADES, label, terminal_width
from regard.show.figures.matrix import CellSize, draw_grid, label_axes, label_extent

MAX_COLUMNS = 36
"""Tokens of the heat map; of a longer text, those with the largest shares."""
MAX_LINES = 48
"""Lines of highlighted text; of a longer text, only the first methods are highlighted."""
MARKED = 0.2
"""The share from which a token is marked in a terminal."""
WIDTH, LINE, PAD, GAP = 7.6, 0.235, 0.045, 0.12  # inches: of the highlighted text
CELL, BAR, NUMBER = 0.27, 0.8, 0.5  # inches: height of a row, width of the bars, width of a number beside them


@dataclass(frozen=True)
class AttributionRows:
    """The tokens of a text, and by method, the best first: shares (M, N), comprehensiveness and sufficiency (M,)."""

    tokens: Sequence[str]
    methods: Sequence[str]
    shares: np.ndarray
    comprehensiveness: Sequence[float]
    sufficiency: Sequence[float]
    random: tuple[float, float]
    """Comprehensiveness and sufficiency of random tokens."""
    unit: str = "nats"

    @property
    def reach(self) -> float:
        """The largest share: the end of the colour scale."""
        return max(float(np.abs(self.shares).max(initial=0.0)), 1e-9)


class PlacedToken(NamedTuple):
    left: float
    width: float
    line: int


def shares_of(values: Sequence[Sequence[float]]) -> np.ndarray:
    """Return each row as signed shares of its sum of absolute values: (M, N)."""
    numbers: np.ndarray = np.nan_to_num(np.asarray(values, dtype=float))
    totals = np.maximum(np.abs(numbers).sum(axis=1, keepdims=True), 1e-30)
    return np.asarray(numbers / totals)


@style.house_style()
def attribution_rows_figure(rows: AttributionRows, *, title: str = "", verdict: str = "") -> Figure:
    """Draw the text once for each method, and below it the heat map of methods and tokens with the faithfulness beside it."""
    names = style.text_widths(rows.methods, style.BODY, "bold")
    left = style.MARGIN + float(names.max()) + GAP
    shown = columns_of(rows)
    tokens = [label(token, 16) for token in rows.tokens]
    source = [tokens[i] for i in shown]
    size = CellSize(max(0.2, min(0.34, (WIDTH - left) / max(1, len(shown)))), style.SMALL, 55)
    over, beyond = label_extent(source, size)
    wide = len(shown) * size.cell
    right = max(2 * (BAR + NUMBER) + 3 * GAP, 2.9)
    width = left + max(wide + max(beyond, GAP) + right, 5.4) + style.MARGIN
    placed = place_tokens(tokens, width - left - style.MARGIN)
    lines = placed[-1].line + 1
    texts = max(1, min(len(rows.methods), MAX_LINES // lines))
    words = style.wrap_text(verdict, style.BODY, width - 2 * style.MARGIN)
    note = 0.18 * (words.count("\n") + 1) + GAP if verdict else 0.0
    text_height = texts * (lines * LINE + PAD) + 0.34
    height = note + text_height + over + 0.25 + len(rows.methods) * CELL + 0.42
    figure, top = style.titled_figure(title, width, height)
    style.draw_text(figure, style.MARGIN, top, words, fontsize=style.BODY, color=style.theme().muted, va="top", linespacing=1.35)
    top += note
    for number in range(texts):
        at = top + number * (lines * LINE + PAD)
        highlight_tokens(figure, rows, number, (left, at), tokens, placed)
    top += text_height
    heading = "share of each token" + (f" (the {len(shown)} largest of {len(tokens)})" if len(shown) < len(tokens) else "")
    style.draw_text(figure, style.MARGIN, top - 0.1, heading, fontsize=style.BODY, fontweight="bold")
    top += over
    axes = style.axes_at(figure, left, top, wide, len(rows.methods) * CELL)
    style.draw_signed(axes, rows.shares[:, shown], rows.reach, extent=(0, len(shown), len(rows.methods), 0), aspect="auto")
    draw_grid(axes, (len(rows.methods), len(shown)), (size.cell, CELL))
    label_axes(axes, source, list(rows.methods), size)
    start = left + wide + max(beyond, GAP) + GAP
    draw_measures(figure, rows, start, top)
    draw_scale(figure, rows, left, top + len(rows.methods) * CELL + 0.16)
    return figure


def columns_of(rows: AttributionRows) -> list[int]:
    """Return the tokens of the heat map in the order of the text: all, or those with the largest share for any method."""
    largest = np.abs(rows.shares).max(axis=0)
    return sorted(np.argsort(-largest, kind="stable")[:MAX_COLUMNS].tolist())


def place_tokens(tokens: Sequence[str], room: float) -> list[PlacedToken]:
    """Return where tokens stand in lines of this width in inches."""
    placed, at, line = [], 0.0, 0
    for wide in style.text_widths(tokens, style.BODY) + 2 * PAD:
        if at and at + wide > room:
            at, line = 0.0, line + 1
        placed.append(PlacedToken(at, float(wide), line))
        at += float(wide) + 0.03
    return placed


def highlight_tokens(
    figure: Figure,
    rows: AttributionRows,
    number: int,
    corner: tuple[float, float],
    tokens: Sequence[str],
    placed: Sequence[PlacedToken],
) -> None:
    """Draw the text with the shares of one method as backgrounds, its name before it."""
    (left, top), (width, height) = corner, figure.get_size_inches()
    name, first = rows.methods[number], number == 0
    style.draw_text(
        figure, left - GAP, top + LINE / 2, name, ha="right", fontsize=style.BODY, fontweight="bold" if first else "normal"
    )
    for token, share, at in zip(tokens, rows.shares[number], placed):
        middle = top + (at.line + 0.5) * LINE
        colour = style.diverging_colormap()(0.5 + 0.5 * share / rows.reach)
        box = FancyBboxPatch(
            ((left + at.left) / width, 1 - (middle + 0.09) / height),
            at.width / width,
            0.18 / height,
            boxstyle="square,pad=0",
            transform=figure.transFigure,
            facecolor=colour,
            linewidth=0,
        )
        figure.add_artist(box)
        ink = style.THEMES["light"].paper if is_dark(colour) else style.THEMES["light"].text
        style.draw_text(figure, left + at.left + PAD, middle, token, fontsize=style.BODY, color=ink)


def is_dark(colour: tuple[float, ...]) -> bool:
    """Return whether white is easier to read on a colour than black."""
    return float(np.dot(colour[:3], (0.299, 0.587, 0.114))) < 0.52


def draw_measures(figure: Figure, rows: AttributionRows, left: float, top: float) -> None:
    """Draw comprehensiveness and sufficiency as bars beside the rows of the heat map, with random tokens as dashed lines."""
    panels = (
        ("comprehensiveness", "higher is better", rows.comprehensiveness, rows.random[0]),
        ("sufficiency", "lower is better", rows.sufficiency, rows.random[1]),
    )
    high = len(rows.methods) * CELL
    for number, (name, better, values, random) in enumerate(panels):
        start = left + number * (BAR + NUMBER + GAP)
        axes = style.axes_at(figure, start, top, BAR, high)
        low, most = min(0.0, random, *values), max(1e-9, random, *values)
        axes.barh(np.arange(len(values)) + 0.5, values, height=0.56, color=style.theme().series[0], alpha=0.75)
        axes.axvline(0, color=style.theme().faint, linewidth=0.8)
        axes.axvline(random, color=style.theme().outline, linewidth=1.1, dashes=(3, 2))
        axes.set(xlim=(low, most), ylim=(len(values), 0), xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        for row, value in enumerate(values):
            style.draw_text(figure, start + BAR + 0.06, top + (row + 0.5) * CELL, f"{value:z.2f}", fontsize=style.SMALL)
        style.draw_text(figure, start, top - 0.27, name, fontsize=style.SMALL, fontweight="bold")
        style.draw_text(figure, start, top - 0.12, f"{better}, {rows.unit}", fontsize=style.SMALL - 1, color=style.theme().muted)
        text = f"dashed: random, {random:z.2f}"
        style.draw_text(figure, start, top + high + 0.12, text, fontsize=style.SMALL - 1, color=style.theme().outline)


def draw_scale(figure: Figure, rows: AttributionRows, left: float, top: float) -> None:
    """Draw the colour bar of the shares, zero in the middle."""
    axes: Axes = style.axes_at(figure, left, top, 1.7, 0.085)
    scale = Normalize(-rows.reach, rows.reach)
    bar = style.colour_bar(axes, scale, style.diverging_colormap(), orientation="horizontal", ticks=[-rows.reach, 0, rows.reach])
    bar.ax.set_xticklabels([f"−{rows.reach:.0%}", "0", f"+{rows.reach:.0%}"])
    text = "of all that the method assigns\nblue supports the output, orange speaks against it"
    style.draw_text(figure, left + 2.1, top + 0.1, text, fontsize=style.SMALL - 0.5, color=style.theme().muted, linespacing=1.25)


# in a terminal


def attribution_rows_text(rows: AttributionRows) -> str:
    """Return the text with marked tokens for each method, and a table of shares over the faithfulness."""
    margin = max(map(len, rows.methods)) + 2
    marked = [
        name.ljust(margin) + " ".join(mark_token(token, share) for token, share in zip(rows.tokens, shares))
        for name, shares in zip(rows.methods, rows.shares)
    ]
    shown = columns_of(rows)
    names = [label(rows.tokens[i]) for i in shown]
    side = max(map(terminal_width, [*names, "comprehensiveness"])) + 2
    widths = [max(8, len(name) + 2) for name in rows.methods]
    lines = [" " * side + "".join(name.ljust(width) for name, width in zip(rows.methods, widths))]
    for i, name in zip(shown, names):
        cells = (share_cell(float(share), rows.reach).ljust(width) for share, width in zip(rows.shares[:, i], widths))
        lines.append(name + " " * (side - terminal_width(name)) + "".join(cells))
    for name, values, random in (
        ("comprehensiveness", rows.comprehensiveness, rows.random[0]),
        ("sufficiency", rows.sufficiency, rows.random[1]),
    ):
        numbers = "".join(f"{value:z.2f}".ljust(width) for value, width in zip(values, widths))
        lines.append(f"{name.ljust(side)}{numbers}random {random:z.2f} {rows.unit}")
    note = f"[marked]: at least {MARKED:.0%} of what the method assigns; [−marked]: against the output"
    return "\n".join(line.rstrip() for line in [*marked, note, "", *lines])


def mark_token(token: str, share: float) -> str:
    word = label(token)
    return word if abs(share) < MARKED else f"[{'−' if share < 0 else ''}{word}]"


def share_cell(share: float, reach: float) -> str:
    """Return a share as a shade and a percentage."""
    shade = SHADES[min(len(SHADES) - 1, round(abs(share) / reach * (len(SHADES) - 1)))]
    percent = f"{share:z.0%}".replace("-", "−")
    return f"{shade}{shade} {percent}"
