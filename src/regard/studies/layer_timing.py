"""Layer types timed on this machine and plotted over n and over d."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from regard.hardware import choose_device
from regard.plan.layer_types import LAYER_TYPES, LayerComparison, compare_layer_types
from regard.show.figures import figure_files, style

DASHED: dict[str, Any] = {"linewidth": 0.9, "dashes": (4, 3)}


def time_layer_types(device: str = "auto", out: Path | None = None) -> LayerComparison:
    """Time the layer types and save a figure to `out`, whose format is checked first."""
    if out is not None:
        figure_files.figure_format(out)
    chosen = choose_device(device)
    print(f"timing the layers on {chosen} …", file=sys.stderr)
    found = compare_layer_types(device=chosen)
    if out is not None:
        figure_files.save_figure(plot_layer_types(found), out)
    return found


@style.house_style()
def plot_layer_types(found: LayerComparison) -> Figure:
    """Draw how the time of each layer type grows with n and with d, on logarithmic scales (Vaswani et al. 2017, table 1).

    Lines are medians, bands quartiles; dashed is the count of multiplications, scaled to meet the last median."""
    figure = Figure(figsize=(4.2 * len(found.over), 3.9), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    panels = figure.subplots(1, len(found.over), sharey=True, squeeze=False)[0]
    for axes, over in zip(panels, found.over):
        _draw_panel(axes, found, over)
    panels[0].set_ylabel("milliseconds a sequence, forward")
    handles = panels[0].get_legend_handles_labels()[0]
    dashed = Line2D([], [], color=style.theme().muted, label="multiplications counted,\nscaled to the last point", **DASHED)
    figure.legend(
        handles=[*handles, dashed],
        loc="outside lower center",
        ncols=len(handles) + 1,
        fontsize=style.BODY,
        columnspacing=1.4,
        handlelength=2.0,
    )
    return figure


def _draw_panel(axes: Axes, found: LayerComparison, over: str) -> None:
    """Draw the timings over n or d."""
    s = found.sizes
    style.panel_title(axes, f"longer sequences (width d = {s.d})" if over == "n" else f"wider layers (n = {s.n} tokens)")
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="tokens n" if over == "n" else "width d")
    for layer, colour, marker in zip(LAYER_TYPES, style.theme().series, style.MARKERS):
        timings = sorted((t for t in found.over[over] if t.layer == layer.name), key=lambda t: (t.n, t.d))
        sizes = [getattr(t, over) for t in timings]
        low, median, high = ([1e3 * seconds for seconds in values] for values in zip(*(t.quartiles for t in timings)))
        counts = [layer.exact(replace(s, n=t.n, d=t.d)) for t in timings]
        axes.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(sizes, [median[-1] * count / counts[-1] for count in counts], color=colour, zorder=1.5, **DASHED)
        axes.plot(sizes, median, color=colour, marker=marker, markersize=4.5, label=layer.name)
    every = sorted({getattr(t, over) for t in found.over[over]})
    axes.set_xticks(every, [f"{size}" for size in every])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(base=10))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # the default writes powers as formulas
    axes.yaxis.set_minor_locator(NullLocator())

    axes.grid()
    fastest = min(t.quartiles[0] for t in found.over[over])
    axes.set_ylim(bottom=min(axes.get_ylim()[1], 1e3 * fastest / 2))  # dashed lines may leave the panel below
