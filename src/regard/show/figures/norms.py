"""What a norm averages over: layer norm the features of each word (Ba et al. 2016), batch norm each feature over all words of a
batch (Ioffe & Szegedy 2015)."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.show.figures import style
from regard.show.figures.labels import label
from regard.show.figures.matrix import axes_at

CELL, LEFT, TOP, GAP, BOTTOM, EDGE = 0.26, 0.15, 0.38, 0.32, 0.36, 0.15  # inches


def norm_figure(
    panels: Mapping[str, np.ndarray],
    words: Sequence[str],
    *,
    outlined: Mapping[str, str] | None = None,
    breaks: Sequence[int] = (),
) -> Figure:
    """The same words down and features across (T, D), once for each panel on one scale: before and after. `outlined`: of a panel,
    what one mean is taken over, a "row" or a "column". Sentences end after the words `breaks`."""
    reach = max(float(np.abs(values).max()) for values in panels.values())
    words = [label(word, 20) for word in words]
    with style.house_style():
        down, across = next(iter(panels.values())).shape
        assert all(values.shape == (len(words), across) for values in panels.values()), f"{len(words)} words"
        left = LEFT + float(style.text_widths(words, style.BODY).max()) + 0.1
        width = left + len(panels) * (across * CELL + GAP) - GAP + EDGE
        height = TOP + down * CELL + BOTTOM
        figure = Figure(figsize=(width, height))
        for number, (name, values) in enumerate(panels.items()):
            axes = axes_at(figure, left + number * (across * CELL + GAP), TOP, across * CELL, down * CELL)
            axes.imshow(values, cmap=style.diverging_colormap(), vmin=-reach, vmax=reach, aspect="auto", interpolation="none")
            axes.set(xticks=[], yticks=[], xlabel="features")
            style.panel_title(axes, name)
            for after in breaks:
                axes.axhline(after - 0.5, color=style.PAPER, linewidth=4)
            if number == 0:
                axes.set_yticks(range(down), words, parse_math=False)
                axes.tick_params(labelsize=style.BODY, labelcolor=style.TEXT, pad=4)
            along = (outlined or {}).get(name)
            if along is not None:
                corner, wide, high = ((-0.5, 0.5), across, 1) if along == "row" else ((0.5, -0.5), 1, down)
                axes.add_patch(
                    Rectangle(corner, wide, high, facecolor="none", edgecolor=style.OUTLINE, linewidth=2, clip_on=False, zorder=3)
                )
            axes.spines[:].set(visible=False)
    return figure
