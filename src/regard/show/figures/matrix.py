"""Who looked at whom: attention weights as a matrix, target words down the side, source words along the top.

After Bahdanau et al. 2015, fig. 3.

One colour scale, 0 to 1, in every picture, so that two pictures may be compared by eye; but of tiles of many words, up to the
largest, for there is nothing to see else.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from regard.show.figures import style
from regard.show.figures.labels import label

MARGIN, GAP, BAR = 0.18, 0.09, 0.085  # inches: around the figure, beside words, width of the colour bar


class CellSize(NamedTuple):
    """Inches a cell, points a word, degrees a column's word is turned."""

    cell: float
    font: float
    slant: float


def cell_size(words: int) -> CellSize:
    """The figure grows with the words; the type steps down, never below 7 points."""
    steps = [
        (14, CellSize(0.36, 10, 45)),
        (24, CellSize(0.30, 9.5, 50)),
        (40, CellSize(0.24, 8.5, 55)),
        (64, CellSize(0.19, 7.5, 60)),
    ]
    return next((size for most, size in [*steps, (100, CellSize(0.16, 7, 65))] if words <= most), CellSize(0.075, 7, 65))


def attention_matrix(
    weights: np.ndarray,
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str | None = None,
    gold: Iterable[tuple[int, int]] | None = None,
    truth: str = "gold alignment",
    darkest: float = 1.0,
) -> Figure:
    """Attention weights (T, S) in 0..1 -> the matrix; `gold` links are (source, target) indices, as Pharaoh's "0-1" has them, and
    `truth` is what the legend calls them."""
    weights = check_weights(weights, (len(target), len(source)))
    rows, cols = weights.shape
    size = cell_size(max(rows, cols))
    source, target = [label(word) for word in source], [label(word) for word in target]
    with style.house_style():
        over, beyond = label_extent(source, size)
        left = MARGIN + style.text_widths(target, size.font).max() + GAP
        bar_height = float(np.clip(rows * size.cell, 1.15, 2.4))
        right = max(GAP * 2 + BAR + 0.62, beyond) + MARGIN
        width = max(left + cols * size.cell + right, 3.4)
        lines = style.wrap_text(title, style.TITLE, width - 2 * MARGIN) if title else ""
        top = MARGIN + (0.2 * (lines.count("\n") + 1) + 0.08 if lines else 0) + over
        bottom = MARGIN + (0.34 if gold is not None else 0)
        height = top + max(rows * size.cell, bar_height) + bottom
        figure = Figure(figsize=(width, height))
        axes = axes_at(figure, left, top, cols * size.cell, rows * size.cell)
        draw_cells(axes, weights, darkest)
        axes.vlines(np.arange(cols + 1), 0, rows, color=style.PAPER, linewidth=size.cell * 3.6)
        axes.hlines(np.arange(rows + 1), 0, cols, color=style.PAPER, linewidth=size.cell * 3.6)
        label_axes(axes, source, target, size)
        draw_colour_bar(figure, axes_at(figure, left + cols * size.cell + 2 * GAP, top, BAR, bar_height), darkest)
        if gold is not None:
            outline_links(figure, axes, gold, truth, size)
        if lines:
            figure.text(
                MARGIN / width,
                1 - MARGIN / height,
                lines,
                fontsize=style.TITLE,
                fontweight="bold",
                va="top",
                linespacing=1.25,
                parse_math=False,
            )
    return figure


def check_weights(weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    weights = np.asarray(weights, dtype=float)
    assert weights.shape == shape and weights.size, f"expected weights {shape} for these words, got {weights.shape}"
    assert np.isfinite(weights).all() and weights.min() >= -1e-6 and weights.max() <= 1 + 1e-3, "attention weights lie in 0..1"
    return weights


def draw_cells(axes: Axes, weights: np.ndarray, darkest: float = 1.0) -> None:
    rows, cols = weights.shape
    axes.imshow(
        weights,
        cmap=style.sequential_colormap(),
        vmin=0,
        vmax=darkest,
        extent=(0, cols, rows, 0),
        interpolation="none",
        aspect="auto",
    )


def label_extent(source: Sequence[str], size: CellSize) -> tuple[float, float]:
    """Inches the turned words take over the matrix, and beyond its right edge."""
    lengths, angle = style.text_widths(source, size.font), np.radians(size.slant)
    to_edge = (len(source) - np.arange(len(source)) - 0.5) * size.cell
    thick = 1.2 * size.font / 72
    return GAP + lengths.max() * np.sin(angle) + thick * np.cos(angle), float((lengths * np.cos(angle) + thick - to_edge).max())


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at inches from the figure's left and top edges."""
    across, down = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))


def label_axes(axes: Axes, source: Sequence[str], target: Sequence[str], size: CellSize) -> None:
    """As many words as have room: all, or every second, third …"""
    every = max(1, int(np.ceil(1.15 * size.font / 72 / size.cell)))
    across, down = np.arange(0, len(source), every), np.arange(0, len(target), every)
    axes.set(xlim=(0, len(source)), ylim=(len(target), 0))
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=GAP * 72 * 0.6, labelsize=size.font, labelcolor=style.TEXT)
    axes.set_xticks(
        across + 0.5,
        source[::every],
        rotation=size.slant,
        ha="left",
        va="center_baseline",
        rotation_mode="anchor",
        parse_math=False,
    )
    axes.set_yticks(down + 0.5, target[::every], ha="right", va="center_baseline", parse_math=False)
    axes.spines[:].set_visible(False)


def draw_colour_bar(figure: Figure, axes: Axes, darkest: float = 1.0) -> None:
    ticks = [darkest * part for part in (0, 0.25, 0.5, 0.75, 1)]
    bar = figure.colorbar(ScalarMappable(Normalize(0, darkest), style.sequential_colormap()), cax=axes, ticks=ticks)
    bar.set_label("attention weight", fontsize=style.SMALL, color=style.MUTED, labelpad=5)
    bar.outline.set(edgecolor=style.FAINT, linewidth=0.6)
    axes.tick_params(labelsize=style.SMALL - 0.5, length=0, pad=3)
    axes.set_yticks(ticks, ["0", "", f"{darkest / 2:.2g}", "", f"{darkest:.2g}"])


def outline_links(figure: Figure, axes: Axes, gold: Iterable[tuple[int, int]], truth: str, size: CellSize) -> None:
    """Outlined cells for the links that are known to be true, and their legend under the matrix."""
    links = sorted(set(gold))
    (_, cols), (rows, _) = axes.get_xlim(), axes.get_ylim()
    inside = all(0 <= s < cols and 0 <= t < rows for s, t in links)
    assert inside, f"a gold link lies outside the {rows:.0f} by {cols:.0f} words: {links}"
    frames = [Rectangle((s + 0.05, t + 0.05), 0.9, 0.9) for s, t in links]
    line = max(1.2, size.cell * 6)
    axes.add_collection(PatchCollection(frames, facecolor="none", edgecolor=style.OUTLINE, linewidth=line, zorder=3))
    width, height = figure.get_size_inches()
    figure.legend(
        [Patch(facecolor="none", edgecolor=style.OUTLINE, linewidth=1.6)],
        [truth],
        loc="lower left",
        bbox_to_anchor=(MARGIN / width, MARGIN / height),
        borderpad=0,
        borderaxespad=0,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.6,
    )


def head_matrices(weights: np.ndarray, source: Sequence[str], target: Sequence[str], *, title: str | None = None) -> Figure:
    """The heads of one layer (H, T, S), counted from 1."""
    return matrix_grid(weights, source, target, [f"head {head + 1}" for head in range(len(weights))], title=title)


def matrix_grid(
    weights: np.ndarray, source: Sequence[str], target: Sequence[str], names: Sequence[str], *, title: str | None = None
) -> Figure:
    """Several views (H, T, S) side by side: words at the outer edges only, each view named under its panel."""
    weights = check_weights(weights, (len(names), len(target), len(source)))
    number, rows, cols = weights.shape
    source, target = [label(word, 20) for word in source], [label(word, 20) for word in target]
    longest = max(rows, cols)
    size = CellSize(0.17, 8, 90) if longest <= 16 else CellSize(0.135, 7, 90) if longest <= 32 else CellSize(0.112, 6.5, 90)
    across, down = panel_layout(number, cols * size.cell)
    wide, high, between, under = cols * size.cell, rows * size.cell, 0.2, 0.4
    with style.house_style():
        left = MARGIN + style.text_widths(target, size.font).max() + GAP
        width = max(left + across * (wide + between) + 0.8 + MARGIN, 3.4)
        lines = style.wrap_text(title, style.TITLE, width - 2 * MARGIN) if title else ""
        top = MARGIN + (0.2 * (lines.count("\n") + 1) + 0.08 if lines else 0) + label_extent(source, size)[0]
        bar_height = float(np.clip(high, 1.15, 2.4))
        height = top + max(down * (high + under), bar_height) + MARGIN
        figure = Figure(figsize=(width, height))
        for head, name in enumerate(names):
            row, col = divmod(head, across)
            axes = axes_at(figure, left + col * (wide + between), top + row * (high + under), wide, high)
            draw_cells(axes, weights[head])
            label_axes(axes, source if row == 0 else [""] * cols, target if col == 0 else [""] * rows, size)
            axes.spines[:].set(visible=True, linewidth=0.6)
            axes.set_xlabel(label(name), fontsize=style.SMALL, color=style.MUTED, labelpad=4, parse_math=False)
        draw_colour_bar(figure, axes_at(figure, left + across * (wide + between), top, BAR, bar_height))
        if lines:
            figure.text(
                MARGIN / width,
                1 - MARGIN / height,
                lines,
                fontsize=style.TITLE,
                fontweight="bold",
                va="top",
                linespacing=1.25,
                parse_math=False,
            )
    return figure


def panel_layout(heads: int, wide: float) -> tuple[int, int]:
    """Columns and rows of panels: at most four across and about 16 inches, rows filled evenly."""
    across = int(np.clip(16 // wide, 1, min(4, heads)))
    down = -(-heads // across)
    return -(-heads // down), down
