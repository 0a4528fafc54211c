"""Figures for teaching: softmax gradients, what norms average over, positional encodings, cosine similarities."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from regard.show.figures import style
from regard.show.figures.labels import label

CELL, LEFT, TOP, GAP, BOTTOM, EDGE = 0.26, 0.15, 0.38, 0.32, 0.36, 0.15  # inches, of norms
SIMILARITY_CELL = 0.52  # inches


@style.house_style()
def softmax_gradients(
    widths: Sequence[int], series: Mapping[str, Sequence[Sequence[float]]], *, title: str | None = None
) -> Figure:
    """Draw the largest gradient of a weight over the width of queries and keys, (W, N) per series: median and quartiles.

    It shows why scores are scaled: Vaswani et al. 2017, sec. 3.2.1 and its footnote 4."""
    figure = Figure(figsize=(5.6, 3.1), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log")
    axes.set(xlabel="width of queries and keys", ylabel="largest gradient of a weight")
    for (name, samples), colour, marker in zip(series.items(), style.theme().series, style.MARKERS):
        assert len(samples) == len(widths), f"{len(widths)} widths, gradients of {len(samples)}"
        low, median, high = np.quantile(samples, [0.25, 0.5, 0.75], axis=1)
        axes.fill_between(widths, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(widths, median, color=colour, marker=marker, markersize=4.5, label=name)
    axes.set_xticks(list(widths), [str(width) for width in widths])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # the default writes powers as formulas
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.grid(axis="y")
    axes.legend()
    if title:
        style.panel_title(axes, title)
    return figure


@style.house_style()
def norm_figure(
    panels: Mapping[str, np.ndarray],
    words: Sequence[str],
    *,
    outlined: Mapping[str, str] | None = None,
    breaks: Sequence[int] = (),
) -> Figure:
    """Draw activations (T, D), words down and features across, one panel each on one colour scale.

    `outlined` says for a panel what one mean is taken over: a "row" (layer norm, Ba et al. 2016) or a "column" (batch norm, Ioffe
    & Szegedy 2015). Sentences end after the words `breaks`."""
    reach = max(float(np.abs(values).max()) for values in panels.values())
    words = [label(word, 20) for word in words]
    down, across = next(iter(panels.values())).shape
    assert all(values.shape == (len(words), across) for values in panels.values()), f"{len(words)} words"
    left = LEFT + float(style.text_widths(words, style.BODY).max()) + 0.1
    width = left + len(panels) * (across * CELL + GAP) - GAP + EDGE
    figure = Figure(figsize=(width, TOP + down * CELL + BOTTOM))
    for number, (name, values) in enumerate(panels.items()):
        axes = style.axes_at(figure, left + number * (across * CELL + GAP), TOP, across * CELL, down * CELL)
        style.draw_signed(axes, values, reach, aspect="auto")
        axes.set(xticks=[], yticks=[], xlabel="features")
        style.panel_title(axes, name)
        for after in breaks:
            axes.axhline(after - 0.5, color=style.theme().paper, linewidth=4)
        if number == 0:
            axes.set_yticks(range(down), words, parse_math=False)
            axes.tick_params(labelsize=style.BODY, labelcolor=style.theme().text, pad=4)
        along = (outlined or {}).get(name)
        if along is not None:
            corner, wide, high = ((-0.5, 0.5), across, 1) if along == "row" else ((0.5, -0.5), 1, down)
            axes.add_patch(
                Rectangle(
                    corner, wide, high, facecolor="none", edgecolor=style.theme().outline, linewidth=2, clip_on=False, zorder=3
                )
            )
        axes.spines[:].set(visible=False)
    return figure


@style.house_style()
def position_figure(table: np.ndarray, *, title: str | None = None) -> Figure:
    """Draw positional encodings (P, D), components down and positions across, and the dot products of every two positions.

    Vaswani et al. 2017, sec. 3.5."""
    number, width = table.shape
    reach = max(float(np.abs(table).max()), 1e-9)
    dots = table @ table.T  # (P, P)
    figure = Figure(figsize=(9.6, 5.1))
    left, right = style.axes_at(figure, 0.62, 0.85, 3.5, 3.6), style.axes_at(figure, 5.3, 0.85, 3.5, 3.5)
    style.draw_signed(left, table.T, reach, aspect="auto", extent=(-0.5, number - 0.5, width - 0.5, -0.5))
    left.set(xlabel="position", ylabel="component")
    style.panel_title(left, f"{width} components × {number} positions")
    most = max(float(np.abs(dots).max()), 1e-9)
    signed = dots.min() < -0.05 * most
    norm = Normalize(-most if signed else 0, most)
    colours = style.diverging_colormap() if signed else style.sequential_colormap()
    right.imshow(dots, cmap=colours, norm=norm, interpolation="none")
    right.set(xlabel="position", ylabel="position")
    style.panel_title(right, "dot products of positions")
    for axes in (left, right):
        axes.spines[:].set(visible=True, linewidth=0.6)
    bars = ((Normalize(-reach, reach), style.diverging_colormap(), 4.2, 3.6), (norm, colours, 8.88, 3.5))
    for scale, colormap, x, high in bars:
        style.colour_bar(style.axes_at(figure, x, 0.85, 0.085, high), scale, colormap)
    style.draw_title(figure, title or "positional encoding")
    return figure


@style.house_style()
def similarity_figure(matrix: np.ndarray, names: Sequence[str], *, title: str | None = None) -> Figure:
    """Draw cosine similarities (N, N) with their numbers; below 0 they have the colour of 0."""
    number, cell = len(names), SIMILARITY_CELL
    left = float(style.text_widths(list(names), style.BODY).max()) + 0.3
    top = 0.5 if title else 0.2
    figure = Figure(figsize=(left + number * cell + 0.3, top + number * cell + left * 0.8))
    axes = style.axes_at(figure, left, top, number * cell, number * cell)
    axes.imshow(np.clip(matrix, 0, 1), cmap=style.sequential_colormap(), vmin=0, vmax=1)
    for (i, j), value in np.ndenumerate(matrix):
        text, colour = f"{value:.2f}".replace("-0.00", "0.00"), style.theme().paper if value > 0.55 else style.theme().text
        axes.text(j, i, text, ha="center", va="center", fontsize=style.SMALL, color=colour)
    axes.set_xticks(range(number), names, rotation=50, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(number), names)
    axes.spines[:].set_visible(False)
    if title:
        style.panel_title(axes, title)
    return figure


@style.house_style()
def mask_figure(panels: Mapping[str, tuple[np.ndarray, Sequence[str], Sequence[str]]]) -> Figure:
    """Draw masks side by side, each (T, S) with the words of its queries (rows) and keys (columns): dark is visible."""
    cell, top, gap = 0.3, 0.85, 0.5
    lefts = [
        float(style.text_widths([label(word, 16) for word in rows], style.BODY).max()) + 0.12 for _, rows, _ in panels.values()
    ]
    widths = [left + len(columns) * cell for left, (_, _, columns) in zip(lefts, panels.values())]
    tall = max(len(rows) for _, rows, _ in panels.values()) * cell
    figure = Figure(figsize=(2 * style.MARGIN + sum(widths) + gap * (len(panels) - 1) + 0.3, top + tall + 0.3))
    x = style.MARGIN
    for left, (name, (visible, rows, columns)) in zip(lefts, panels.items()):
        assert visible.shape == (len(rows), len(columns)), f"{name}: {visible.shape}"
        axes = style.axes_at(figure, x + left, top, len(columns) * cell, len(rows) * cell)
        axes.imshow(visible, cmap=style.sequential_colormap(), vmin=0, vmax=1.25, interpolation="none")
        axes.set_yticks(range(len(rows)), [label(word, 16) for word in rows], fontsize=style.BODY, color=style.theme().text)
        axes.set_xticks(range(len(columns)), [label(word, 16) for word in columns], rotation=45, ha="left", fontsize=style.BODY)
        axes.tick_params(length=0, labeltop=True, labelbottom=False, labelcolor=style.theme().text)
        axes.set_xticks(np.arange(1, len(columns)) - 0.5, minor=True)
        axes.set_yticks(np.arange(1, len(rows)) - 0.5, minor=True)
        axes.grid(which="minor", color=style.theme().paper, linewidth=1.5)
        axes.tick_params(which="minor", length=0)
        axes.spines[:].set(visible=True)
        style.draw_text(figure, x, style.MARGIN, name, fontsize=style.BODY, fontweight="bold", va="top")
        x += left + len(columns) * cell + gap
    return figure


@style.house_style()
def patch_figure(image: np.ndarray, patch: int) -> Figure:
    """Draw an image (H, W, 3) of bytes, and beside it its patches in the order in which a model reads them, numbered from 1."""
    rows, columns = image.shape[0] // patch, image.shape[1] // patch
    side, cell, gap = 2.4, 0.62, 0.1
    across = min(rows * columns, 8)
    down = -(-rows * columns // across)
    width = 2 * style.MARGIN + side + 0.5 + across * (cell + gap)
    height = 2 * style.MARGIN + max(side, down * (cell + gap + 0.16))
    figure = Figure(figsize=(width, height))
    axes = style.axes_at(figure, style.MARGIN, style.MARGIN, side, side)
    axes.imshow(image, interpolation="nearest", extent=(0, columns, rows, 0))
    axes.set_xticks(range(columns + 1), [""] * (columns + 1))
    axes.set_yticks(range(rows + 1), [""] * (rows + 1))
    axes.grid(color=style.theme().outline, linewidth=1)
    axes.set_axisbelow(False)
    axes.tick_params(length=0)
    for number in range(rows * columns):
        y, x = divmod(number, columns)
        part = image[y * patch : (y + 1) * patch, x * patch : (x + 1) * patch]
        left = style.MARGIN + side + 0.5 + number % across * (cell + gap)
        top = style.MARGIN + 0.14 + number // across * (cell + gap + 0.16)
        small = style.axes_at(figure, left, top, cell, cell)
        small.imshow(part, interpolation="nearest")
        small.set(xticks=[], yticks=[])
        small.spines[:].set(visible=True)
        style.draw_text(figure, left, top - 0.07, str(number + 1), fontsize=style.SMALL, color=style.theme().muted)
    return figure
