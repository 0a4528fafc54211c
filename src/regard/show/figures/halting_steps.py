"""How long each token was thought about: a dot for every step it took, a faint one for every step it left (Graves 2016).

Tokens stand one under another, so that every word can be read, the source on the left and what was said on the right.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.labels import label, terminal_width

MARGIN, GAP, STEP = 0.18, 0.09, 0.2  # inches: around the figure, beside words, from dot to dot
TAKEN, LEFT = "●", "·"


class HaltingColumn(NamedTuple):
    """A sentence's tokens, the steps each took, and the most it could have taken."""

    name: str
    tokens: Sequence[str]
    steps: Sequence[int]
    most: int


def halting_figure(sides: Sequence[HaltingColumn], *, title: str | None = None) -> Figure:
    """Both sides, a row a token; the count stands behind the dots."""
    rows = max(len(side.tokens) for side in sides)
    row, font = next(size for most, size in ((24, (0.24, 9.5)), (48, (0.2, 8.5)), (10**9, (0.16, 7.5))) if rows <= most)
    words = [[label(token, 24) for token in side.tokens] for side in sides]
    with style.house_style():
        margins = [style.text_widths(said, font).max() + GAP for said in words]
        wide = [margin + (side.most + 1.6) * STEP for margin, side in zip(margins, sides)]
        width = max(2 * MARGIN + sum(wide) + 0.3 * (len(sides) - 1), 3.4)
        lines = style.wrap_text(title, style.TITLE, width - 2 * MARGIN) if title else ""
        top = MARGIN + (0.2 * (lines.count("\n") + 1) + 0.08 if lines else 0) + 0.45
        height = top + rows * row + MARGIN
        figure = Figure(figsize=(width, height))
        left = MARGIN
        for side, said, margin, across in zip(sides, words, margins, wide):
            box = (left + margin, top, across - margin, len(said) * row)
            axes = figure.add_axes((box[0] / width, 1 - (box[1] + box[3]) / height, box[2] / width, box[3] / height))
            draw_halting_column(axes, side, said, font)
            figure.text(
                left / width,
                1 - (top - 0.33) / height,
                side.name,
                fontsize=style.BODY,
                fontweight="bold",
                va="center",
                parse_math=False,
            )
            left += across + 0.3
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


def draw_halting_column(axes: Axes, side: HaltingColumn, words: Sequence[str], font: float) -> None:
    assert len(side.steps) == len(words) and all(0 <= steps <= side.most for steps in side.steps), side
    place, step = np.meshgrid(np.arange(len(words)), np.arange(1, side.most + 1), indexing="ij")
    taken = step <= np.asarray(side.steps)[:, None]  # (tokens, steps)
    size = font * 2.6
    axes.scatter(step[taken], place[taken], s=size, color=style.SERIES[0], linewidths=0)
    axes.scatter(step[~taken], place[~taken], s=size * 0.3, color=style.FAINT, linewidths=0)
    for at, steps in enumerate(side.steps):
        axes.text(side.most + 0.75, at, f"{steps}", fontsize=font - 1, color=style.MUTED, va="center_baseline")
    axes.set(xlim=(0.4, side.most + 2), ylim=(len(words) - 0.5, -0.5))
    axes.xaxis.tick_top()
    every = 1 if side.most <= 8 else 4
    axes.set_xticks(range(every, side.most + 1, every), [f"{n}" for n in range(every, side.most + 1, every)])
    axes.set_yticks(range(len(words)), words, ha="right", va="center_baseline", fontsize=font, color=style.TEXT, parse_math=False)
    axes.tick_params(length=0, pad=GAP * 36)
    axes.spines[:].set_visible(False)


def halting_text(sides: Sequence[HaltingColumn]) -> str:
    """The same in plain text."""
    lines: list[str] = []
    for side in sides:
        words = [label(token) for token in side.tokens]
        margin = max(map(terminal_width, words), default=0)
        lines += ["", side.name] if lines else [side.name]
        lines += [
            " " * (margin - terminal_width(word)) + f"{word}  {TAKEN * steps}{LEFT * (side.most - steps)}  {steps}"
            for word, steps in zip(words, side.steps)
        ]
    return "\n".join(lines)
