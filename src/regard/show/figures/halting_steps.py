"""The halting steps of a Universal Transformer: a dot for every step of a token, faint for every skipped one (Graves 2016).

Tokens are listed vertically, so that every word can be read: the source on the left, the output on the right. Means over many
texts are a matrix: a row for each length, a column for each position.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.labels import label, terminal_width
from regard.show.figures.matrix import GAP, CellSize, labelled_matrix

STEP = 0.2  # inches from dot to dot
TAKEN, SKIPPED = "●", "·"


class HaltingColumn(NamedTuple):
    """The tokens of a sentence, the steps that each took, and the maximum."""

    name: str
    tokens: Sequence[str]
    steps: Sequence[int]
    most: int


@style.house_style()
def halting_figure(columns: Sequence[HaltingColumn], *, title: str | None = None) -> Figure:
    """Draw each sentence as a column, a token per row, its number of steps after the dots."""
    rows = max(len(column.tokens) for column in columns)
    row, font = next(size for most, size in ((24, (0.24, 9.5)), (48, (0.2, 8.5)), (10**9, (0.16, 7.5))) if rows <= most)
    labels = [[label(token, 24) for token in column.tokens] for column in columns]
    margins = [style.text_widths(words, font).max() + GAP for words in labels]
    widths = [margin + (column.most + 1.6) * STEP for margin, column in zip(margins, columns)]
    width = max(2 * style.MARGIN + sum(widths) + 0.3 * (len(columns) - 1), 3.4)
    figure, title_bottom = style.titled_figure(title, width, 0.45 + rows * row)
    left, top = style.MARGIN, title_bottom + 0.45
    for column, words, margin, across in zip(columns, labels, margins, widths):
        draw_halting_column(style.axes_at(figure, left + margin, top, across - margin, len(words) * row), column, words, font)
        style.draw_text(figure, left, top - 0.33, column.name, fontsize=style.BODY, fontweight="bold", va="center")
        left += across + 0.3
    return figure


def draw_halting_column(axes: Axes, column: HaltingColumn, words: Sequence[str], font: float) -> None:
    assert len(column.steps) == len(words) and all(0 <= steps <= column.most for steps in column.steps), column
    row, step = np.meshgrid(np.arange(len(words)), np.arange(1, column.most + 1), indexing="ij")
    taken = step <= np.asarray(column.steps)[:, None]  # (tokens, steps)
    size = font * 2.6
    axes.scatter(step[taken], row[taken], s=size, color=style.theme().series[0], linewidths=0)
    axes.scatter(step[~taken], row[~taken], s=size * 0.3, color=style.theme().faint, linewidths=0)
    for index, steps in enumerate(column.steps):
        axes.text(column.most + 0.75, index, f"{steps}", fontsize=font - 1, color=style.theme().muted, va="center_baseline")
    axes.set(xlim=(0.4, column.most + 2), ylim=(len(words) - 0.5, -0.5))
    axes.xaxis.tick_top()
    every = 1 if column.most <= 8 else 4
    axes.set_xticks(range(every, column.most + 1, every), [f"{n}" for n in range(every, column.most + 1, every)])
    axes.set_yticks(
        range(len(words)), words, ha="right", va="center_baseline", fontsize=font, color=style.theme().text, parse_math=False
    )
    axes.tick_params(length=0, pad=GAP * 36)
    axes.spines[:].set_visible(False)


@style.house_style()
def halting_matrix(means: Mapping[str, Sequence[float]], most: int, *, title: str) -> Figure:
    """Draw the mean steps at each position (columns) of texts of several lengths (rows, by name), of at most so many."""
    positions = max(map(len, means.values()))
    values = np.full((len(means), positions), np.nan)
    for row, steps in enumerate(means.values()):
        values[row, : len(steps)] = steps
    size = CellSize(0.36, 9.5, 0)
    figure, axes = labelled_matrix(
        values, [f"{n}" for n in range(1, positions + 1)], list(means), size, most, title=title, name="steps"
    )
    for number in axes.get_xticklabels():
        number.set(ha="center", va="bottom")  # upright, unlike words
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = style.theme().paper if value > most / 2 else style.theme().text
            axes.text(column + 0.5, row + 0.5, f"{value:.1f}", ha="center", va="center", fontsize=style.SMALL, color=colour)
    return figure


def halting_text(columns: Sequence[HaltingColumn]) -> str:
    """Return the same for a terminal."""
    lines: list[str] = []
    for column in columns:
        words = [label(token) for token in column.tokens]
        margin = max(map(terminal_width, words), default=0)
        lines += ["", column.name] if lines else [column.name]
        lines += [
            " " * (margin - terminal_width(word)) + f"{word}  {TAKEN * steps}{SKIPPED * (column.most - steps)}  {steps}"
            for word, steps in zip(words, column.steps)
        ]
    return "\n".join(lines)
