"""A contact sheet: a caption a row, and beside it the pictures that belong to it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.matrix import axes_at

TILE, GAP, MARGIN, TEXT, HEAD, NOTE = 0.8, 0.08, 0.15, 1.9, 0.25, 0.14  # inches


@dataclass(frozen=True)
class ContactRow:
    """A caption and pictures (H, W, 3), each with a word below it where there is something to say."""

    caption: str
    pictures: Sequence[np.ndarray]
    notes: Sequence[str] = ()


def contact_sheet_figure(rows: Sequence[ContactRow], heads: Sequence[str]) -> Figure:
    """A column has a head where one is given."""
    with style.house_style():
        height, width = rows[0].pictures[0].shape[:2]
        tile, note = TILE * height / width, NOTE * any(any(row.notes) for row in rows)
        across = 2 * MARGIN + TEXT + max(len(row.pictures) for row in rows) * (TILE + GAP)
        down = 2 * MARGIN + HEAD + len(rows) * (tile + note + GAP)
        figure = Figure(figsize=(across, down))
        for column, head in enumerate(heads):
            figure.text(
                (MARGIN + TEXT + GAP + column * (TILE + GAP)) / across,
                1 - (MARGIN + HEAD / 2) / down,
                head,
                fontsize=style.SMALL,
                va="center",
                color=style.TEXT,
                parse_math=False,
            )
        for number, row in enumerate(rows):
            top = MARGIN + HEAD + number * (tile + note + GAP)
            figure.text(
                MARGIN / across,
                1 - (top + tile / 2) / down,
                style.wrap_text(row.caption, style.BODY, TEXT),
                va="center",
                fontsize=style.BODY,
                linespacing=1.2,
                parse_math=False,
            )
            for column, picture in enumerate(row.pictures):
                axes = axes_at(figure, MARGIN + TEXT + GAP + column * (TILE + GAP), top, TILE, tile)
                axes.imshow(picture, interpolation="none", aspect="auto")
                axes.set_axis_off()
                if column < len(row.notes):
                    axes.text(
                        0.5,
                        -0.03,
                        row.notes[column],
                        fontsize=style.SMALL,
                        ha="center",
                        va="top",
                        parse_math=False,
                        transform=axes.transAxes,
                    )
    return figure
