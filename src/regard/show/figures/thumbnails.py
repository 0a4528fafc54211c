"""The model view: every head of every layer as a small matrix, layers down, heads across."""

import numpy as np
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.attention_maps import AttentionMaps
from regard.show.figures.matrix import BAR, MARGIN, axes_at, draw_cells, draw_colour_bar

GAP = 0.07  # inches between thumbnails


def model_view(found: AttentionMaps, *, title: str | None = None) -> Figure:
    """All heads of all layers at once, without words: what repeats, what is a diagonal, what looks at one place."""
    L, H, T, S = found.weights.shape
    side = float(np.clip(9.0 / max(H, 4), 0.5, 1.25))
    wide, high = side * min(1, S / T), side * min(1, T / S)
    wide, high = max(wide, side / 3), max(high, side / 3)
    with style.house_style():
        left = MARGIN + float(style.text_widths([f"layer {name}" for name in found.layers], style.SMALL).max()) + 0.12
        width = max(left + H * (wide + GAP) + 0.75 + MARGIN, 3.6)
        said = style.wrap_text(title, style.TITLE, width - 2 * MARGIN) if title else ""
        top = MARGIN + (0.2 * (said.count("\n") + 1) + 0.08 if said else 0) + 0.24
        body = max(L * (high + GAP), 1.15)
        height = top + body + MARGIN
        figure = Figure(figsize=(width, height))
        for layer in range(L):
            for head in range(H):
                axes = axes_at(figure, left + head * (wide + GAP), top + layer * (high + GAP), wide, high)
                draw_cells(axes, found.weights[layer, head], found.darkest)
                axes.set(xlim=(0, S), ylim=(T, 0), xticks=[], yticks=[])
                axes.spines[:].set(visible=True, linewidth=0.5)
                if layer == 0:
                    axes.set_title(
                        f"head {found.heads[head]}" if side > 0.6 or head == 0 else found.heads[head],
                        fontsize=style.SMALL,
                        color=style.MUTED,
                        pad=4,
                        parse_math=False,
                    )
                if head == 0:
                    axes.set_ylabel(
                        f"layer {found.layers[layer]}",
                        rotation=0,
                        ha="right",
                        va="center",
                        labelpad=6,
                        fontsize=style.SMALL,
                        color=style.MUTED,
                        parse_math=False,
                    )
        draw_colour_bar(
            figure, axes_at(figure, left + H * (wide + GAP) + 0.06, top, BAR, float(np.clip(body - GAP, 1.0, 2.4))), found.darkest
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
