"""The types of layers, timed on this machine and drawn: time over n and over d."""

import sys
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from regard.hardware import choose_device
from regard.plan.layer_types import LAYER_TYPES, LayerComparison, compare_layer_types
from regard.show.figures.complexity import TimingCurve, TimingPanel, layer_timing_figure
from regard.show.figures.style import figure_format, save_figure


def time_layer_types(device: str = "auto", out: Path | None = None) -> LayerComparison:
    """The types of layers, timed; a wrong name for the picture is told first."""
    if out is not None:
        figure_format(out)
    chosen = choose_device(device)
    print(f"timing the layers on {chosen} …", file=sys.stderr)
    found = compare_layer_types(device=chosen)
    if out is not None:
        save_figure(plot_layer_types(found), out)
    return found


def plot_layer_types(plan: LayerComparison) -> Figure:
    def curve(over: str, layer: str) -> TimingCurve:
        timings = sorted((t for t in plan.over[over] if t.layer == layer), key=lambda t: (t.n, t.d))
        kind = next(kind for kind in LAYER_TYPES if kind.name == layer)
        low, median, high = zip(*(t.quartiles for t in timings))
        return TimingCurve(
            [getattr(t, over) for t in timings],
            low,
            median,
            high,
            [kind.exact(replace(plan.sizes, n=t.n, d=t.d)) for t in timings],
        )

    s = plan.sizes
    titles = {"n": (f"longer sequences (width d = {s.d})", "tokens n"), "d": (f"wider layers (n = {s.n} tokens)", "width d")}
    return layer_timing_figure(
        [TimingPanel(*titles[over], {kind.name: curve(over, kind.name) for kind in LAYER_TYPES}) for over in plan.over]
    )
