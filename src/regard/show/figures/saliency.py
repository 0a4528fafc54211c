"""What speaks for an answer in a picture, by several methods: the picture again for each, bright where it is said to matter. Two
answers have a row each, so that one sees whether they are told apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.labels import clean
from regard.show.figures.matrix import axes_at
from regard.show.figures.overlay import overlay_weights

TILE, GAP, MARGIN, LINE, NOTE = 1.22, 0.12, 0.18, 0.17, 0.15  # inches


@dataclass(frozen=True)
class SaliencyRow:
    """One answer: a map (rows, columns) by each method, and a few words below each; none where a method has no map of it."""

    title: str
    maps: Sequence[np.ndarray | None]
    notes: Sequence[str]


def saliency_figure(
    pixels: np.ndarray, methods: Sequence[str], answers: Sequence[SaliencyRow], *, below: Sequence[str] = (), legend: str = ""
) -> Figure:
    """A picture (H, W, 3) and what speaks for each answer; `below` the columns stands what is said of both."""
    with style.house_style():
        high = TILE * pixels.shape[0] / pixels.shape[1]
        width = 2 * MARGIN + (1 + len(methods)) * (TILE + GAP) - GAP
        titles = [style.wrap_text(one.title, style.BODY, width - 2 * MARGIN) for one in answers]
        words = style.wrap_text(legend, style.SMALL, width - 2 * MARGIN)
        heads = [LINE * (title.count("\n") + 1) + LINE * (number == 0) + 0.06 for number, title in enumerate(titles)]
        tall = [high + NOTE * any(one.notes) + GAP for one in answers]
        foot = NOTE * (1 + max((said.count("\n") for said in below), default=-1))
        under = 0.14 * (words.count("\n") + 1) + GAP if legend else 0.0
        height = 2 * MARGIN + sum(heads) + sum(tall) + foot + under
        figure, top = Figure(figsize=(width, height)), MARGIN
        for number, (one, title, head) in enumerate(zip(answers, titles, heads)):
            write(figure, MARGIN, top, title, fontsize=style.BODY, fontweight="bold", va="top", linespacing=1.25)
            top += head
            for column, tile in enumerate(
                [pixels, *(None if light is None else overlay_weights(pixels, light, smooth=False) for light in one.maps)]
            ):
                left = MARGIN + column * (TILE + GAP)
                if tile is not None:
                    axes = axes_at(figure, left, top, TILE, high)
                    axes.imshow(tile, interpolation="none", aspect="auto")
                    axes.set_axis_off()
                if column and number == 0:
                    write(
                        figure,
                        left + TILE / 2,
                        top - 0.04,
                        methods[column - 1],
                        ha="center",
                        va="bottom",
                        fontsize=fitting_size(methods[column - 1]),
                    )
                if column:
                    write(
                        figure,
                        left + TILE / 2,
                        top + high + 0.03,
                        one.notes[column - 1],
                        ha="center",
                        va="top",
                        fontsize=style.SMALL - 1,
                        color=style.MUTED,
                    )
            top += tall[number]
        for column, said in enumerate(below, start=1):
            write(
                figure,
                MARGIN + column * (TILE + GAP) + TILE / 2,
                top - GAP / 2,
                said,
                ha="center",
                va="top",
                fontsize=style.SMALL - 1,
                fontweight="bold",
                linespacing=1.2,
            )
        write(figure, MARGIN, height - MARGIN, words, va="bottom", fontsize=style.SMALL, color=style.MUTED, linespacing=1.3)
    return figure


def fitting_size(name: str) -> float:
    """Points at which a name is no wider than a tile."""
    return style.SMALL * min(1.0, TILE / float(style.text_widths([name], style.SMALL)[0]))


def write(figure: Figure, left: float, top: float, text: str, **settings) -> None:
    """Text at inches from the figure's left and top edges."""
    across, down = figure.get_size_inches()
    figure.text(left / across, 1 - top / down, clean(text, keep="\n"), parse_math=False, **settings)
