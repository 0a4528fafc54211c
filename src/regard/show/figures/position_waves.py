"""Positional encodings (Vaswani et al. 2017, sec. 3.5): the waves themselves, and how alike two positions are."""

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.matrix import axes_at


def position_figure(table: np.ndarray, *, title: str | None = None) -> Figure:
    """A table (P, D): components down and positions across, and beside it the dot products of every two positions."""
    number, width = table.shape
    reach = max(float(np.abs(table).max()), 1e-9)
    dots = table @ table.T  # (P, P)
    with style.house_style():
        figure = Figure(figsize=(9.6, 5.1))
        left, right = axes_at(figure, 0.62, 0.85, 3.5, 3.6), axes_at(figure, 5.3, 0.85, 3.5, 3.5)
        left.imshow(
            table.T,
            cmap=style.diverging_colormap(),
            vmin=-reach,
            vmax=reach,
            aspect="auto",
            interpolation="none",
            extent=(-0.5, number - 0.5, width - 0.5, -0.5),
        )
        left.set(xlabel="position", ylabel="component")
        style.panel_title(left, f"{width} components × {number} positions")
        most = max(float(np.abs(dots).max()), 1e-9)
        two_sided = dots.min() < -0.05 * most
        shade = Normalize(-most if two_sided else 0, most)
        scale = style.diverging_colormap() if two_sided else style.sequential_colormap()
        right.imshow(dots, cmap=scale, norm=shade, interpolation="none")
        right.set(xlabel="position", ylabel="position")
        style.panel_title(right, "dot products of positions")
        for axes in (left, right):
            axes.spines[:].set(visible=True, linewidth=0.6)
        bars = ((left, Normalize(-reach, reach), style.diverging_colormap(), 4.2, 3.6), (right, shade, scale, 8.88, 3.5))
        for _, norm, colours, x, high in bars:
            bar = figure.colorbar(ScalarMappable(norm, colours), cax=axes_at(figure, x, 0.85, 0.085, high))
            bar.outline.set(edgecolor=style.FAINT, linewidth=0.6)
            bar.ax.tick_params(labelsize=style.SMALL - 0.5, length=0, pad=3)
        figure.text(
            0.18 / 9.6,
            1 - 0.18 / 5.1,
            title or "positional encoding",
            fontsize=style.TITLE,
            fontweight="bold",
            va="top",
            parse_math=False,
        )
    return figure
