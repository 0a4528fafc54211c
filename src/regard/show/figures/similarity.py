"""How alike vectors are: the cosine of every two, as a matrix with its numbers."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from regard.show.figures import style

CELL = 0.52  # inches


def similarity_figure(matrix: np.ndarray, names: Sequence[str], *, title: str | None = None) -> Figure:
    """Cosines (N, N), written out; what is less than 0 is drawn as 0."""
    number = len(names)
    with style.house_style():
        left = float(style.text_widths(list(names), style.BODY).max()) + 0.3
        top = 0.5 if title else 0.2
        width, height = left + number * CELL + 0.3, top + number * CELL + left * 0.8
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((left / width, 1 - (top + number * CELL) / height, number * CELL / width, number * CELL / height))
        axes.imshow(np.clip(matrix, 0, 1), cmap=style.sequential_colormap(), vmin=0, vmax=1)
        for i in range(number):
            for j in range(number):
                axes.text(
                    j,
                    i,
                    f"{matrix[i, j]:.2f}".replace("-0.00", "0.00"),
                    ha="center",
                    va="center",
                    fontsize=style.SMALL,
                    color=style.PAPER if matrix[i, j] > 0.55 else style.TEXT,
                )
        axes.set_xticks(range(number), names, rotation=50, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(number), names)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        if title:
            style.panel_title(axes, title)
    return figure
