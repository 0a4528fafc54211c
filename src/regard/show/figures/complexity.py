"""How the time of a layer grows with a size, both scales logarithmic: one line a layer type (Vaswani et al. 2017, table 1)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from regard.show.figures.style import BODY, MARKERS, MUTED, SERIES, house_style, panel_title

DASHED: dict[str, Any] = {"linewidth": 0.9, "dashes": (4, 3)}


class TimingCurve(NamedTuple):
    """Seconds at each size, with quartiles, and the multiplications counted there."""

    sizes: Sequence[int]
    low: Sequence[float]
    median: Sequence[float]
    high: Sequence[float]
    counted: Sequence[int]


class TimingPanel(NamedTuple):
    title: str
    axis: str
    curves: Mapping[str, TimingCurve]


def layer_timing_figure(panels: Sequence[TimingPanel]) -> Figure:
    """Medians as lines, quartiles as bands; dashed, the count of multiplications, made to meet the last median."""
    with house_style():
        figure = Figure(figsize=(4.2 * len(panels), 3.9), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
        across = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(across, panels):
            draw_timing_panel(axes, panel)
        across[0].set_ylabel("milliseconds a sequence, forward")
        handles = across[0].get_legend_handles_labels()[0]
        dashed = Line2D([], [], color=MUTED, label="multiplications counted,\nscaled to the last point", **DASHED)
        figure.legend(
            handles=[*handles, dashed],
            loc="outside lower center",
            ncols=len(handles) + 1,
            fontsize=BODY,
            columnspacing=1.4,
            handlelength=2.0,
        )
    return figure


def draw_timing_panel(axes: Axes, panel: TimingPanel) -> None:
    panel_title(axes, panel.title)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for (name, curve), colour, marker in zip(panel.curves.items(), SERIES, MARKERS):
        low, median, high = ([1e3 * seconds for seconds in of] for of in (curve.low, curve.median, curve.high))
        shape = [median[-1] * count / curve.counted[-1] for count in curve.counted]
        axes.fill_between(curve.sizes, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(curve.sizes, shape, color=colour, zorder=1.5, **DASHED)
        axes.plot(curve.sizes, median, color=colour, marker=marker, markersize=4.5, label=name)
    sizes = sorted({size for curve in panel.curves.values() for size in curve.sizes})
    axes.set_xticks(sizes, [f"{size}" for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(base=10))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # the usual one writes formulas
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(panel.axis)
    axes.grid()
    fastest = min(seconds for curve in panel.curves.values() for seconds in curve.low)
    axes.set_ylim(bottom=min(axes.get_ylim()[1], 1e3 * fastest / 2))  # dashed lines may run out below
