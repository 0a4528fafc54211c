"""The head view: what asks on the left, what is looked at on the right, a line for each weight, a colour for each head.

After Vaswani et al. 2017, figs. 3 to 5, and BertViz (Vig 2019).
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.labels import label
from regard.show.figures.matrix import GAP, MARGIN, axes_at

MIN_WEIGHT, MAX_LINES = 0.02, 6000
"""Lighter lines are not drawn, nor more than so many."""
BETWEEN = 2.6  # inches


def head_colours(number: int) -> list[str]:
    """The house's series; beyond it, hues all around in two lightnesses, so that neighbours differ."""
    if number <= len(style.SERIES):
        return list(style.SERIES[:number])
    hue = 2 * np.pi * np.arange(number) / number + 0.5
    light = np.where(np.arange(number) % 2, 0.5, 0.66)
    colours = style.from_oklab(np.stack([light, 0.13 * np.cos(hue), 0.13 * np.sin(hue)], axis=1)).clip(0, 1)
    return ["#" + "".join(f"{round(255 * part):02x}" for part in colour) for colour in colours]


def head_view(
    weights: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    names: Sequence[str],
    *,
    chosen: Sequence[int] | None = None,
    only: int | None = None,
    title: str | None = None,
    darkest: float = 1.0,
) -> Figure:
    """The heads (H, T, S) of one layer, or the `chosen` of them; of all queries or `only` one."""
    assert weights.shape == (len(names), len(queries), len(keys)), weights.shape
    drawn = list(range(len(names))) if chosen is None else list(chosen)
    colours = head_colours(len(names))
    rows = max(len(queries), len(keys))
    row, font = next(size for most, size in ((24, (0.25, 9.5)), (60, (0.19, 8)), (10**9, (0.13, 6.5))) if rows <= most)
    asking, asked = [label(word, 24) for word in queries], [label(word, 24) for word in keys]
    with style.house_style():
        left, right = (float(style.text_widths(words, font).max()) + GAP for words in (asking, asked))
        width = max(2 * MARGIN + left + BETWEEN + right, 4.2)
        said = style.wrap_text(title, style.TITLE, width - 2 * MARGIN) if title else ""
        per_line = max(1, int((width - 2 * MARGIN) / 0.72))
        legend = -(-len(drawn) // per_line) * 0.22
        top = MARGIN + (0.2 * (said.count("\n") + 1) + 0.08 if said else 0) + legend + 0.1
        height = top + rows * row + MARGIN
        figure = Figure(figsize=(width, height))
        axes = axes_at(figure, MARGIN + left, top, width - 2 * MARGIN - left - right, rows * row)
        axes.set(xlim=(0, 1), ylim=(rows, 0))
        axes.set_axis_off()
        segments, shades = line_segments(weights / darkest, drawn, colours, only)
        axes.add_collection(LineCollection(list(segments), colors=shades, linewidths=1.5 if row > 0.15 else 0.9, capstyle="butt"))
        for side, words, at, align in ((0.0, asking, -GAP, "right"), (1.0, asked, GAP, "left")):
            inside = side + at / (width - 2 * MARGIN - left - right)
            for number, word in enumerate(words):
                faint = side == 0 and only is not None and number != only
                axes.text(
                    inside,
                    number + 0.5,
                    word,
                    ha=align,
                    va="center_baseline",
                    fontsize=font,
                    parse_math=False,
                    color=style.MUTED if faint else style.TEXT,
                    clip_on=False,
                )
        for number, head in enumerate(drawn):
            across, down = number % per_line * 0.72, number // per_line * 0.22
            x, y = (MARGIN + across) / width, 1 - (top - legend - 0.02 + down) / height
            figure.text(x, y, "■", color=colours[head], fontsize=style.BODY, va="center_baseline")
            figure.text(
                x + 0.15 / width,
                y,
                f"head {label(names[head], 8)}",
                color=style.MUTED,
                fontsize=style.SMALL,
                va="center_baseline",
                parse_math=False,
            )
        if said:
            figure.text(
                MARGIN / width,
                1 - MARGIN / height,
                said,
                fontsize=style.TITLE,
                fontweight="bold",
                va="top",
                linespacing=1.25,
                parse_math=False,
            )
    return figure


def line_segments(
    weights: np.ndarray, drawn: Sequence[int], colours: Sequence[str], only: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """The ends (N, 2, 2) and colours (N, 4) of the heaviest lines, the heaviest last, above all others."""
    shown = weights[list(drawn)].copy()  # (H, T, S)
    if only is not None:
        shown[:, np.arange(shown.shape[1]) != only] = 0
    heaviest = np.argsort(shown, axis=None, kind="stable")[-MAX_LINES:]
    head, query, key = np.unravel_index(heaviest[shown.flat[heaviest] >= MIN_WEIGHT], shown.shape)
    ends = np.stack([np.stack([np.zeros(len(query)), query + 0.5], -1), np.stack([np.ones(len(key)), key + 0.5], -1)], axis=1)
    inks = np.array([to_rgb(colours[number]) for number in drawn]).reshape(-1, 3)
    return ends, np.concatenate([inks[head], shown[head, query, key].clip(0, 1)[:, None]], axis=1)
