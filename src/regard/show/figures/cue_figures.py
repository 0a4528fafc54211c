"""Figures of the study of a spurious cue: accuracy with and without it, and which methods find it."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from regard.show.figures.curves import GRID
from regard.show.figures.style import MARKERS, SMALL, house_style, panel_title, theme


@house_style()
def cue_accuracy_figure(scores: Sequence[tuple[str, bool, Mapping[str, float]]], sets: Mapping[str, str]) -> Figure:
    """Draw accuracies, (modality, trained with the cue, accuracy by test set): bars are means over seeds, points are seeds."""
    panels = list(dict.fromkeys(name for name, _, _ in scores))
    figure = Figure(figsize=(3.7 * len(panels) + 0.6, 2.8), layout="constrained")
    for number, name in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        panel_title(axes, name)
        for side, planted in enumerate((True, False)):
            found = [[accuracy[key] for key in sets] for one, kind, accuracy in scores if (one, kind) == (name, planted)]
            if not found:
                continue
            at = np.arange(len(sets)) + 0.36 * (side - 0.5)
            label = f"trained {'with' if planted else 'without'} the cue"
            axes.bar(at, np.mean(found, axis=0), width=0.34, color=theme().series[1 if planted else 0], alpha=0.8, label=label)
            for row in found:
                axes.plot(at, row, linestyle="", marker="o", markersize=3, color="black")
        axes.axhline(50, color=theme().muted, linewidth=0.9, dashes=(4, 3))
        names = [text.replace(" on ", "\non ").replace(" the cue", "\nthe cue") for text in sets.values()]
        axes.set_xticks(range(len(sets)), names)
        axes.set(ylim=(0, 104), ylabel="accuracy, percent" if number == 0 else "")
        axes.grid(**GRID)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


@house_style()
def cue_method_figure(points: Sequence[tuple[str, str, float, float]]) -> Figure:
    """Draw methods, (modality, method, advantage, how often the cue is first), a point for each seed."""
    panels = list(dict.fromkeys(name for name, _, _, _ in points))
    methods = list(dict.fromkeys(method for _, method, _, _ in points))
    figure = Figure(figsize=(3.5 * len(panels) + 1.9, 2.9), layout="constrained")
    for number, name in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        panel_title(axes, name)
        for index, method in enumerate(methods):
            found = [(advantage, 100 * first) for one, kind, advantage, first in points if (one, kind) == (name, method)]
            colour, marker = theme().series[index % len(theme().series)], (*MARKERS, "X")[index % 8]
            if found:
                axes.plot(*zip(*found), linestyle="", marker=marker, color=colour, markersize=6, alpha=0.8, label=method)
        axes.set(ylim=(-4, 104), xlabel="advantage over random features, nats")
        axes.set_ylabel("cue ranked first, %" if number == 0 else "")
        axes.grid(**GRID)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=SMALL)
    return figure
