"""The alignment matrix: what each target word looked at (Bahdanau et al. 2015, fig. 3)."""

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from regard.pictures.style import FAINT, SERIES, WEIGHTS, look

CELL = 0.26                   # inches
LONGEST_LABEL = 24


def alignment(weights: np.ndarray, source: Sequence[str], target: Sequence[str], *, title: str | None = None,
              gold: Iterable[tuple[int, int]] = ()) -> Figure:
    """Weights (T, S) as a matrix, target words down, source words across; gold links (s, t) are outlined."""
    assert weights.shape == (len(target), len(source)), f"weights {weights.shape}, words {(len(target), len(source))}"
    gold = list(gold)
    cell = cell_size(len(source), len(target))
    with look():
        figure = Figure(figsize=(max(2.2, cell * len(source) + 0.6), max(1.2, cell * len(target))))
        axes = figure.add_subplot()
        image = draw_matrix(axes, weights, source, target, font=max(4.5, min(9.0, cell * 34)))
        for s, t in gold:
            axes.add_patch(Rectangle((s - 0.5, t - 0.5), 1, 1, fill=False, edgecolor=SERIES[1], linewidth=1.1))
        if gold:
            axes.legend(handles=[Patch(fill=False, edgecolor=SERIES[1], label="gold alignment")], loc="upper left", bbox_to_anchor=(0, -0.02))
        bar = figure.colorbar(image, ax=axes, shrink=0.6, aspect=18, pad=0.03)
        bar.set_label("attention weight")
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
        if title:
            axes.set_title(title, loc="left", pad=10)
    return figure


def heads(weights: np.ndarray, source: Sequence[str], target: Sequence[str], *, title: str | None = None) -> Figure:
    """All heads (H, T, S) of one layer side by side."""
    columns = min(4, len(weights))
    rows = -(-len(weights) // columns)
    cell = 0.7 * cell_size(len(source), len(target))
    size = cell * len(source) + 0.9, cell * len(target) + 0.9
    with look():
        figure = Figure(figsize=(columns * max(1.8, size[0]), rows * max(1.5, size[1])), layout="constrained")
        for number, matrix in enumerate(weights):
            axes = figure.add_subplot(rows, columns, number + 1)
            draw_matrix(axes, matrix, source, target, font=max(4.0, min(7.0, cell * 34)))
            axes.set_title(f"head {number + 1}", loc="left")
        if title:
            figure.suptitle(title, x=0.01, ha="left")
    return figure


def cell_size(columns: int, rows: int) -> float:
    """Inches a cell: the usual size, less where there are so many words that the picture would not fit a wall."""
    return min(CELL, 14 / max(columns, rows, 1)) if max(columns, rows) > 54 else CELL


def draw_matrix(axes: Axes, weights: np.ndarray, source: Sequence[str], target: Sequence[str], *, font: float):
    image = axes.imshow(weights, cmap=WEIGHTS, vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(source)), [shorten(word) for word in source], rotation=60, ha="left", rotation_mode="anchor", fontsize=font)
    axes.set_yticks(range(len(target)), [shorten(word) for word in target], fontsize=font)
    axes.set_xticks(np.arange(-0.5, len(source)), minor=True)
    axes.set_yticks(np.arange(-0.5, len(target)), minor=True)
    axes.grid(which="minor", color=FAINT, linewidth=0.4)
    axes.tick_params(which="both", length=0)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def shorten(word: str) -> str:
    return word if len(word) <= LONGEST_LABEL else word[:LONGEST_LABEL - 1] + "…"
