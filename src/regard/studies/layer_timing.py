"""The types of layers, timed on this machine and drawn: time over n and over d."""

import sys
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from regard.plan.layer_types import LAYERS, LayersPlan, plan_layers
from regard.run.environment import choose_device
from regard.show.figures.complexity import Curve, Panel, complexity
from regard.show.figures.style import format_of, save


def measure_layers(device: str = "auto", out: Path | None = None) -> LayersPlan:
    """The types of layers, timed; a wrong name for the picture is told first."""
    if out is not None:
        format_of(out)
    chosen = choose_device(device)
    print(f"timing the layers on {chosen} …", file=sys.stderr)
    found = plan_layers(device=chosen)
    if out is not None:
        save(layers_figure(found), out)
    return found


def layers_figure(plan: LayersPlan) -> Figure:
    def curve(over: str, layer: str) -> Curve:
        timings = sorted((t for t in plan.over[over] if t.layer == layer), key=lambda t: (t.n, t.d))
        kind = next(kind for kind in LAYERS if kind.name == layer)
        low, median, high = zip(*(t.quartiles for t in timings))
        return Curve(
            [getattr(t, over) for t in timings],
            low,
            median,
            high,
            [kind.exact(replace(plan.sizes, n=t.n, d=t.d)) for t in timings],
        )

    s = plan.sizes
    titles = {"n": (f"longer sequences (width d = {s.d})", "tokens n"), "d": (f"wider layers (n = {s.n} tokens)", "width d")}
    return complexity([Panel(*titles[over], {kind.name: curve(over, kind.name) for kind in LAYERS}) for over in plan.over])
