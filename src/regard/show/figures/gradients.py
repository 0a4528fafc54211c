"""Why scores are scaled: how much of a gradient the softmax lets through, over the width of what is compared.

After Vaswani et al. 2017, sec. 3.2.1 and its footnote 4.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from regard.show.figures import style


def softmax_gradients(
    widths: Sequence[int], series: Mapping[str, Sequence[Sequence[float]]], *, title: str | None = None
) -> Figure:
    """Of each series the gradients drawn at each width (W, N): their median, and where the middle half of them lies."""
    with style.house_style():
        figure = Figure(figsize=(5.6, 3.1), layout="constrained")
        axes = figure.add_subplot(xscale="log", yscale="log")
        axes.set(xlabel="width of queries and keys", ylabel="largest gradient of a weight")
        for (name, drawn), colour, marker in zip(series.items(), style.SERIES, style.MARKERS):
            assert len(drawn) == len(widths), f"{len(widths)} widths, gradients of {len(drawn)}"
            low, middle, high = np.quantile(drawn, [0.25, 0.5, 0.75], axis=1)
            axes.fill_between(widths, low, high, color=colour, alpha=0.18, linewidth=0)
            axes.plot(widths, middle, color=colour, marker=marker, markersize=4.5, label=name)
        axes.set_xticks(list(widths), [str(width) for width in widths])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # the usual one writes formulas
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
        axes.grid(axis="y")
        axes.legend()
        if title:
            style.panel_title(axes, title)
    return figure
