"""The attention matrix: queries (target words) down the side, keys (source words) along the top (Bahdanau et al. 2015, fig. 3);
and the confusion matrix of labels.

The colour scale ends at the largest weight shown, rounded up, and has a legend: attention to many tokens is small everywhere. If
`absolute`, it ends at 1, so that figures can be compared by eye.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from regard.scoring import Confusion
from regard.show.figures import style
from regard.show.figures.labels import SHADES, label, terminal_width

GAP, BAR = 0.09, 0.085  # inches: beside labels, width of the colour bar
COUNTED_LABELS, MOST_LABELS = 14, 64
"""Labels of a confusion matrix with counts in its cells, and of any that is drawn."""


class CellSize(NamedTuple):
    """Inches of a cell, points of a label, degrees by which column labels are turned."""

    cell: float
    font: float
    slant: float


def cell_size(words: int) -> CellSize:
    """Return the size of cells for so many words: the figure grows, the type shrinks, never below 7 points."""
    steps = [
        (14, CellSize(0.36, 10, 45)),
        (24, CellSize(0.30, 9.5, 50)),
        (40, CellSize(0.24, 8.5, 55)),
        (64, CellSize(0.19, 7.5, 60)),
    ]
    return next((size for most, size in [*steps, (100, CellSize(0.16, 7, 65))] if words <= most), CellSize(0.075, 7, 65))


@style.house_style()
def attention_matrix(
    weights: np.ndarray,
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str | None = None,
    gold: Iterable[tuple[int, int]] | None = None,
    truth: str = "gold alignment",
    absolute: bool = False,
) -> Figure:
    """Draw weights (T, S) in 0..1. `gold` links, (source, target) indices as in Pharaoh's "0-1", are outlined; `truth` is their
    name in the legend."""
    weights = check_weights(weights, (len(target), len(source)))
    size, end = cell_size(max(weights.shape)), weight_scale(weights, absolute)
    figure, axes = labelled_matrix(weights, source, target, size, end, title=title, legend=0.34 if gold is not None else 0)
    if gold is not None:
        outline_links(figure, axes, gold, truth, size)
    return figure


@style.house_style()
def confusion_matrix(confusion: Confusion, *, title: str) -> Figure:
    """Draw which fraction of each label (rows) is predicted as each label (columns); few labels with their counts in the cells,
    of many those with most errors."""
    kept = confusion.hardest(MOST_LABELS)
    labels, counts, number = [confusion.labels[i] for i in kept], confusion.counts[np.ix_(kept, kept)], len(kept)
    shares = counts / np.maximum(confusion.counts.sum(1)[kept, None], 1)
    wide = style.text_widths([f"{counts.max():,}"], style.SMALL).max() + GAP
    size = cell_size(number)
    size = size._replace(cell=max(size.cell, wide)) if number <= COUNTED_LABELS else size
    which = "" if number == len(confusion.labels) else f", the {number} of {len(confusion.labels):,} with most errors"
    figure, axes = labelled_matrix(
        shares, labels, labels, size, 1.0, title=f"{title}: labels (rows) as predicted (columns){which}", name="fraction"
    )
    if number <= COUNTED_LABELS:
        for (row, col), count in np.ndenumerate(counts):
            colour = style.theme().paper if shares[row, col] > 0.5 else style.theme().text
            axes.text(col + 0.5, row + 0.5, f"{count:,}", ha="center", va="center", fontsize=style.SMALL, color=colour)
    return figure


def labelled_matrix(
    weights: np.ndarray,
    source: Sequence[str],
    target: Sequence[str],
    size: CellSize,
    end: float,
    *,
    title: str | None,
    name: str = "attention weight",
    legend: float = 0,
) -> tuple[Figure, Axes]:
    """Return a figure of weights (T, S) with words along both sides, a colour bar, and inches for a legend below."""
    rows, cols = weights.shape
    source, target = [label(word) for word in source], [label(word) for word in target]
    over, beyond = label_extent(source, size)
    left = style.MARGIN + style.text_widths(target, size.font).max() + GAP
    bar_height = float(np.clip(rows * size.cell, 1.15, 2.4))
    right = max(GAP * 2 + BAR + 0.62, beyond) + style.MARGIN
    width = max(left + cols * size.cell + right, 3.4)
    figure, title_bottom = style.titled_figure(title, width, over + max(rows * size.cell, bar_height) + legend)
    top = title_bottom + over
    axes = style.axes_at(figure, left, top, cols * size.cell, rows * size.cell)
    draw_cells(axes, weights, end)
    draw_grid(axes, weights.shape, (size.cell, size.cell))
    label_axes(axes, source, target, size)
    draw_colour_bar(style.axes_at(figure, left + cols * size.cell + 2 * GAP, top, BAR, bar_height), end, name)
    return figure, axes


@style.house_style()
def matrix_grid(
    weights: np.ndarray,
    source: Sequence[str],
    target: Sequence[str],
    names: Sequence[str],
    *,
    title: str | None = None,
    absolute: bool = False,
) -> Figure:
    """Draw several matrices (H, T, S) side by side on one scale: words at the outer edges only, the name of each below it."""
    weights = check_weights(weights, (len(names), len(target), len(source)))
    number, rows, cols = weights.shape
    source, target = [label(word, 20) for word in source], [label(word, 20) for word in target]
    longest = max(rows, cols)
    size = CellSize(0.17, 8, 90) if longest <= 16 else CellSize(0.135, 7, 90) if longest <= 32 else CellSize(0.112, 6.5, 90)
    across, down = panel_layout(number, cols * size.cell)
    wide, high, between, under = cols * size.cell, rows * size.cell, 0.2, 0.4
    left = style.MARGIN + style.text_widths(target, size.font).max() + GAP
    width = max(left + across * (wide + between) + 0.8 + style.MARGIN, 3.4)
    over, bar_height = label_extent(source, size)[0], float(np.clip(high, 1.15, 2.4))
    figure, title_bottom = style.titled_figure(title, width, over + max(down * (high + under), bar_height))
    top, end = title_bottom + over, weight_scale(weights, absolute)
    for head, name in enumerate(names):
        row, col = divmod(head, across)
        axes = style.axes_at(figure, left + col * (wide + between), top + row * (high + under), wide, high)
        draw_cells(axes, weights[head], end)
        label_axes(axes, source if row == 0 else [""] * cols, target if col == 0 else [""] * rows, size)
        axes.spines[:].set(visible=True, linewidth=0.6)
        axes.set_xlabel(label(name), fontsize=style.SMALL, color=style.theme().muted, labelpad=4, parse_math=False)
    draw_colour_bar(style.axes_at(figure, left + across * (wide + between), top, BAR, bar_height), end)
    return figure


def check_weights(weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    weights = np.asarray(weights, dtype=float)
    assert weights.shape == shape and weights.size, f"expected weights {shape} for these words, got {weights.shape}"
    assert np.isfinite(weights).all() and weights.min() >= -1e-6 and weights.max() <= 1 + 1e-3, "attention weights lie in 0..1"
    return weights


def weight_scale(weights: np.ndarray, absolute: bool = False) -> float:
    """Return the end of the colour scale of these weights."""
    return 1.0 if absolute else style.scale_end(float(np.max(weights)))


def draw_cells(axes: Axes, weights: np.ndarray, end: float) -> None:
    rows, cols = weights.shape
    colours = style.sequential_colormap()
    axes.imshow(weights, cmap=colours, vmin=0, vmax=end, extent=(0, cols, rows, 0), interpolation="none", aspect="auto")


def draw_grid(axes: Axes, shape: tuple[int, ...], cell: tuple[float, float]) -> None:
    """Draw white lines between cells of this width and height in inches."""
    rows, cols = shape
    axes.vlines(np.arange(cols + 1), 0, rows, color=style.theme().paper, linewidth=cell[0] * 3.6)
    axes.hlines(np.arange(rows + 1), 0, cols, color=style.theme().paper, linewidth=cell[1] * 3.6)


def label_extent(source: Sequence[str], size: CellSize) -> tuple[float, float]:
    """Return the inches that the turned labels take above the matrix, and beyond its right edge."""
    lengths, angle = style.text_widths(source, size.font), np.radians(size.slant)
    to_edge = (len(source) - np.arange(len(source)) - 0.5) * size.cell
    thick = 1.2 * size.font / 72
    return GAP + lengths.max() * np.sin(angle) + thick * np.cos(angle), float((lengths * np.cos(angle) + thick - to_edge).max())


def label_axes(axes: Axes, source: Sequence[str], target: Sequence[str], size: CellSize) -> None:
    """Label as many rows and columns as have room: all, or every second, third …"""
    every = max(1, int(np.ceil(1.15 * size.font / 72 / size.cell)))
    across, down = np.arange(0, len(source), every), np.arange(0, len(target), every)
    axes.set(xlim=(0, len(source)), ylim=(len(target), 0))
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=GAP * 72 * 0.6, labelsize=size.font, labelcolor=style.theme().text)
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


def draw_colour_bar(axes: Axes, end: float, name: str = "attention weight") -> None:
    """Fill the axes with the legend of weights from 0 to the end of the scale."""
    ticks = [0, end / 2, end]
    bar = style.colour_bar(axes, Normalize(0, end), style.sequential_colormap(), ticks=ticks)
    bar.set_label(name, fontsize=style.SMALL, color=style.theme().muted, labelpad=5)
    axes.set_yticks(ticks, [style.format_weight(tick) for tick in ticks])


def outline_links(figure: Figure, axes: Axes, gold: Iterable[tuple[int, int]], truth: str, size: CellSize) -> None:
    """Outline the cells of gold links, and add their legend under the matrix."""
    links = sorted(set(gold))
    (_, cols), (rows, _) = axes.get_xlim(), axes.get_ylim()
    inside = all(0 <= s < cols and 0 <= t < rows for s, t in links)
    assert inside, f"a gold link lies outside the {rows:.0f} by {cols:.0f} words: {links}"
    frames = [Rectangle((s + 0.05, t + 0.05), 0.9, 0.9) for s, t in links]
    line = max(1.2, size.cell * 6)
    axes.add_collection(PatchCollection(frames, facecolor="none", edgecolor=style.theme().outline, linewidth=line, zorder=3))
    width, height = figure.get_size_inches()
    figure.legend(
        [Patch(facecolor="none", edgecolor=style.theme().outline, linewidth=1.6)],
        [truth],
        loc="lower left",
        bbox_to_anchor=(style.MARGIN / width, style.MARGIN / height),
        borderpad=0,
        borderaxespad=0,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.6,
    )


def panel_layout(heads: int, wide: float) -> tuple[int, int]:
    """Return the columns and rows of panels: at most four across and about 16 inches, rows filled evenly."""
    across = int(np.clip(16 // wide, 1, min(4, heads)))
    down = -(-heads // across)
    return -(-heads // down), down


def matrix_text(
    weights: np.ndarray, source: Sequence[str], target: Sequence[str], width: int = 100, *, absolute: bool = False
) -> str:
    """Return the matrix for a terminal: shaded cells under vertical words, with a legend; where that is too wide, the top keys of
    each row."""
    source, target = [label(word) for word in source], [label(word) for word in target]
    margin = max(map(terminal_width, target), default=0) + 2
    if margin + 2 * len(source) > width:
        return top_keys_text(weights, source, target)
    tall = max(map(len, source), default=0)
    lines = [" " * margin + " ".join(word.rjust(tall)[row] for word in source) for row in range(tall)]
    darkest, end = len(SHADES) - 1, weight_scale(weights, absolute)
    for word, row in zip(target, weights):
        shades = " ".join(SHADES[min(darkest, round(float(x) / end * darkest))] for x in row)
        lines.append(" " * (margin - 1 - terminal_width(word)) + word + " " + shades)
    legend = "  ".join(f"{shade} {style.format_weight(end * i / darkest)}" for i, shade in enumerate(SHADES) if i)
    return "\n".join([*(line.rstrip() for line in lines), "", f"attention weight: {legend}"])


def top_keys_text(weights: np.ndarray, source: Sequence[str], target: Sequence[str], most: int = 3) -> str:
    margin = max(map(terminal_width, target), default=0)
    lines = []
    for word, row in zip(target, weights):
        best = np.argsort(-row, kind="stable")[:most]
        found = ", ".join(f"{source[i]} {style.format_weight(float(row[i]))}" for i in best if row[i] >= min(0.05, row.max() / 2))
        lines.append(f"{' ' * (margin - terminal_width(word))}{word} ← {found}")
    return "\n".join(lines)
