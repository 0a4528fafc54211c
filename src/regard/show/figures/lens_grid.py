"""The logit lens as a grid: layers up the side, positions across, the most probable token of each layer in its cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.show.figures import style
from regard.show.figures.html_pages import encode_bytes, read_css, script_page
from regard.show.figures.labels import label, terminal_width
from regard.show.figures.matrix import BAR, GAP, draw_cells, draw_colour_bar, draw_grid

MAX_POSITIONS = 24
"""Columns of a figure; a page has all."""
ROW = 0.26  # inches
FONT = 8.0


@dataclass(frozen=True)
class LensCell:
    """What one layer predicts at one position."""

    top: Sequence[tuple[str, float]]
    """The most probable tokens, best first."""
    answer: float
    """The probability of the model's own answer, the best token of the last layer."""
    rank: int
    """The rank of that answer, 1 if this layer agrees."""
    entropy: float
    """Of the whole distribution, in nats."""
    agrees: bool
    """Whether this layer's best token is the answer."""


@dataclass(frozen=True)
class LogitLens:
    """What each layer would predict at each position: `cells[layer][position]`; layer 0 is the embeddings, the last the model."""

    reads: Sequence[str]
    """The token that the model reads at each position."""
    targets: Sequence[str]
    """The token of the text that it should predict there, empty if unknown."""
    answers: Sequence[str]
    """The token that it predicts."""
    layers: Sequence[str]
    cells: Sequence[Sequence[LensCell]]

    def __post_init__(self) -> None:
        assert len(self.reads) == len(self.targets) == len(self.answers) and self.reads
        assert len(self.cells) == len(self.layers) and all(len(row) == len(self.reads) for row in self.cells)

    @property
    def probabilities(self) -> np.ndarray:
        """The probability of the best token (layers + 1, T)."""
        return np.array([[cell.top[0][1] for cell in row] for row in self.cells])

    @property
    def decided(self) -> list[int]:
        """The first layer at each position from which on every layer agrees with the model's answer."""
        agrees = np.array([[cell.agrees for cell in row] for row in self.cells])
        return [int(np.logical_and.accumulate(column[::-1])[::-1].argmax()) for column in agrees.T]


@style.house_style()
def lens_figure(lens: LogitLens, *, title: str | None = None, first: int = 0) -> Figure:
    """Draw the grid with the last layer on top; cells that agree with the model's answer are outlined."""
    first = max(0, min(first, len(lens.reads) - MAX_POSITIONS))
    shown = range(first, min(first + MAX_POSITIONS, len(lens.reads)))
    order = list(reversed(range(len(lens.layers))))
    words = [[label(lens.cells[layer][position].top[0][0], 12) for position in shown] for layer in order]
    above, below = ([label(side[position], 12) for position in shown] for side in (lens.answers, lens.reads))
    wide = float(style.text_widths([*above, *below, *(word for row in words for word in row)], FONT).max()) + 0.14
    names = [lens.layers[layer] for layer in order]
    left = style.MARGIN + float(style.text_widths([*names, "predicts"], FONT).max()) + GAP
    width = max(left + len(shown) * wide + 2 * GAP + BAR + 0.5 + style.MARGIN, 3.8)
    note = "outlined: the layer's best token is the model's answer" + (
        f"; positions {first + 1} to {shown[-1] + 1} of {len(lens.reads)}" if len(shown) < len(lens.reads) else ""
    )
    note = style.wrap_text(note, style.SMALL, width - 2 * style.MARGIN)
    high = len(order) * ROW
    figure, title_bottom = style.titled_figure(title, width, max(high, 1.15) + 0.66 + 0.16 * note.count("\n"))
    top = title_bottom + 0.24
    axes = style.axes_at(figure, left, top, len(shown) * wide, high)
    values = lens.probabilities[order][:, shown.start : shown.stop]
    draw_cells(axes, values, 1.0)
    draw_grid(axes, values.shape, (wide, ROW))
    axes.set_axis_off()
    for row, layer in enumerate(order):
        style.draw_text(
            figure, left - GAP, top + (row + 0.5) * ROW, names[row], ha="right", fontsize=FONT, color=style.theme().muted
        )
        for column, position in enumerate(shown):
            colour = style.theme().paper if values[row, column] > 0.5 else style.theme().text
            axes.text(
                column + 0.5,
                row + 0.53,
                words[row][column],
                ha="center",
                va="center",
                fontsize=FONT,
                color=colour,
                parse_math=False,
            )
            if lens.cells[layer][position].agrees:
                axes.add_patch(
                    Rectangle((column + 0.02, row + 0.05), 0.96, 0.9, fill=False, edgecolor=style.theme().outline, linewidth=1)
                )
    for y, name, side in ((top - 0.13, "predicts", above), (top + high + 0.14, "reads", below)):
        style.draw_text(figure, left - GAP, y, name, ha="right", fontsize=FONT, color=style.theme().muted)
        for column, word in enumerate(side):
            weight = "bold" if name == "predicts" else "normal"
            style.draw_text(figure, left + (column + 0.5) * wide, y, word, ha="center", fontsize=FONT, fontweight=weight)
    draw_colour_bar(
        style.axes_at(figure, left + len(shown) * wide + 2 * GAP, top, BAR, max(min(high, 2.4), 1.15)), 1.0, "probability"
    )
    style.draw_text(
        figure,
        style.MARGIN,
        top + max(high, 1.15) + 0.3,
        note,
        fontsize=style.SMALL,
        color=style.theme().muted,
        va="top",
        linespacing=1.25,
    )
    return figure


def lens_text(lens: LogitLens) -> str:
    """Return a line per position for a terminal: the token read, the best token of each layer with its probability."""
    reads = [label(word, 16) for word in lens.reads]
    columns = [[f"{label(cell.top[0][0], 14)} {cell.top[0][1]:.2f}" for cell in row] for row in lens.cells]
    lines = []
    for position in range(len(reads)):
        words = [pad_right(column, position) for column in [reads, *columns]]
        lines.append(f"{position + 1:>4}  {'  '.join(words)}".rstrip())
    return "\n".join([*lines, "", f"best token and its probability after: {', '.join(lens.layers)} (the last is the model's)"])


def pad_right(column: Sequence[str], position: int) -> str:
    """Return one text of a column, padded to the widest."""
    return column[position] + " " * (max(map(terminal_width, column)) - terminal_width(column[position]))


def lens_data(lens: LogitLens) -> dict[str, Any]:
    """Return the lens as JSON, for the script that draws it on pages."""
    return {
        "reads": [label(word, 40) for word in lens.reads],
        "targets": [label(word, 40) if word else "" for word in lens.targets],
        "answers": [label(word, 40) for word in lens.answers],
        "layers": list(lens.layers),
        "decided": lens.decided,
        "cells": [
            [
                {
                    "top": [[label(word, 40), round(p, 5)] for word, p in cell.top],
                    "answer": round(cell.answer, 5),
                    "rank": cell.rank,
                    "entropy": round(cell.entropy, 3),
                    "agrees": cell.agrees,
                }
                for cell in row
            ]
            for row in lens.cells
        ],
    }


def lens_page(lens: LogitLens, *, title: str) -> str:
    """Return a page with the grid, whose cells open to their most probable tokens."""
    body = '<p class="lead">what each layer would predict, if it were the last</p>\n<div id="stage" class="lens"></div>\n'
    data = {**lens_data(lens), "ramp": encode_bytes(np.round(style.sequential_colormap()(np.arange(256))[:, :3] * 255))}
    return script_page(title, body, data, "lens_grid.js", read_css("lens_grid.css"), start="drawLens(stage, data);")
