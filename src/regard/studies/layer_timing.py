"""Layer types timed on this machine and plotted over n and over d."""

import sys
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from regard.hardware import choose_device
from regard.plan.layer_types import LAYER_TYPES, LayerComparison, LayerType, compare_layer_types
from regard.show.figures.style import figure_format, save_figure
from regard.show.figures.teaching import TimingCurve, TimingPanel, layer_timing_figure


def time_layer_types(device: str = "auto", out: Path | None = None) -> LayerComparison:
    """Time the layer types and save a figure to `out`, whose format is checked first."""
    if out is not None:
        figure_format(out)
    chosen = choose_device(device)
    print(f"timing the layers on {chosen} …", file=sys.stderr)
    found = compare_layer_types(device=chosen)
    if out is not None:
        save_figure(plot_layer_types(found), out)
    return found


def plot_layer_types(found: LayerComparison) -> Figure:
    """Return a figure with one panel over n and one over d."""

    def curve(over: str, layer: LayerType) -> TimingCurve:
        timings = sorted((t for t in found.over[over] if t.layer == layer.name), key=lambda t: (t.n, t.d))
        low, median, high = zip(*(t.quartiles for t in timings))
        counts = [layer.exact(replace(found.sizes, n=t.n, d=t.d)) for t in timings]
        return TimingCurve([getattr(t, over) for t in timings], low, median, high, counts)

    s = found.sizes
    titles = {"n": (f"longer sequences (width d = {s.d})", "tokens n"), "d": (f"wider layers (n = {s.n} tokens)", "width d")}
    return layer_timing_figure(
        [TimingPanel(*titles[over], {layer.name: curve(over, layer) for layer in LAYER_TYPES}) for over in found.over]
    )
