"""Curves: training, scores by sentence length, what an output loses when tokens are erased."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.show.figures.head_views import head_colours
from regard.show.figures.labels import label
from regard.show.figures.style import (
    MARGIN,
    MARKERS,
    SMALL,
    axes_at,
    house_style,
    panel_title,
    theme,
    titled_figure,
)

GRID: dict[str, Any] = dict(axis="y", linewidth=0.5)


def plot_axes(xlabel: str, ylabel: str, width: float = 5.6) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes, and a grid of horizontal lines."""
    figure = Figure(figsize=(width, 2.8), layout="constrained")
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    axes.grid(**GRID)
    return figure, axes


@house_style()
def training_curves(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw loss and validation score over the steps, from the records of log.jsonl."""

    def points(key: str) -> list[tuple[int, float]]:
        return [(record["step"], record[key]) for record in records if key in record]

    losses, valid_losses, scores = points("loss"), points("valid_loss"), points("valid_bleu")
    figure, axes = plot_axes("step", "loss per token")
    if losses:
        axes.plot(*zip(*losses), linewidth=1.2, label="training loss (smoothed labels)")
    if valid_losses:
        axes.plot(*zip(*valid_losses), marker="o", markersize=3, linewidth=1.2, label="validation loss")
    axes.set_ylim(bottom=0)
    lines = axes.get_lines()
    if scores:
        right = axes.twinx()
        right.set(ylabel="BLEU", ylim=(0, 100))
        lines += right.plot(
            *zip(*scores), marker="s", markersize=3, linewidth=1.2, color=theme().series[2], label="validation BLEU (greedy)"
        )
    axes.legend(handles=lines, loc="center right")
    return figure


@house_style()
def learning_rate_curve(rates: Sequence[float], losses: Sequence[float], smoothed: Sequence[float], suggestion: float) -> Figure:
    """Draw the loss of each step over its learning rate, and mark the suggested rate (Smith 2017, fig. 3)."""
    figure, axes = plot_axes("learning rate", "loss per label")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda rate, _: f"1e{round(np.log10(rate))}")
    axes.plot(rates, losses, ".", markersize=3, color=theme().muted, label="of each step")
    axes.plot(rates, smoothed, linewidth=1.4, label="smoothed")
    axes.axvline(suggestion, linestyle="--", linewidth=1, color=theme().series[1], label=f"suggested: {suggestion:.1e}")
    low, high = min(smoothed), max(smoothed)
    axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    axes.legend(loc="lower left")
    return figure


def draw_series(
    axes: Axes,
    number: int,
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    errors: Sequence[float] | Sequence[Sequence[float]],
) -> None:
    """Draw the points of series `number` with error bars, in its colour and with its marker."""
    axes.errorbar(
        x,
        y,
        yerr=errors,
        color=theme().series[number % len(theme().series)],
        marker=MARKERS[number % len(MARKERS)],
        markersize=4,
        linewidth=1.2,
        elinewidth=0.8,
        capsize=2,
        label=name,
    )


@house_style()
def score_by_length(series: Mapping[str, Sequence[Mapping[str, Any]]], metric: str = "BLEU") -> Figure:
    """Draw the score in bins of source length with intervals, one line per system; bins show their number of sentences."""
    figure, axes = plot_axes("words of the source (sentences)", metric, width=7.4 if len(series) > 1 else 5.6)
    for number, (name, bins) in enumerate(series.items()):
        places = [index + 0.07 * (number - (len(series) - 1) / 2) for index in range(len(bins))]
        errors = [[one["score"] - one["ci_low"] for one in bins], [one["ci_high"] - one["score"] for one in bins]]
        draw_series(axes, number, name, places, [one["score"] for one in bins], errors)
    bins = next(iter(series.values()))
    axes.set_xticks(range(len(bins)), [f"{one['low']}–{one['high']}\n({one['count']:,})" for one in bins])
    axes.set_ylim(bottom=0)
    if len(series) > 1:
        figure.legend(loc="outside right upper")
    return figure


@house_style()
def score_over_length(
    series: Mapping[str, Sequence[Mapping[str, float]]], trained: int, metric: str = "right answers, percent"
) -> Figure:
    """Draw the score at each tested length with intervals; the dashed line is the longest length in training."""
    figure, axes = plot_axes("length", metric)
    for number, (name, points) in enumerate(series.items()):
        lengths, scores = [point["length"] for point in points], [point["score"] for point in points]
        errors = [
            [max(0.0, point["score"] - point["low"]) for point in points],
            [max(0.0, point["high"] - point["score"]) for point in points],
        ]
        draw_series(axes, number, name, lengths, scores, errors)
    axes.axvline(trained, color=theme().muted, linewidth=0.9, dashes=(4, 3))
    axes.annotate(
        "longest trained",
        (trained, 1.02),
        xycoords=("data", "axes fraction"),
        ha="center",
        va="bottom",
        fontsize=SMALL,
        color=theme().muted,
    )
    axes.set_ylim(-3, 103)
    axes.legend()
    return figure


@house_style()
def learning_curve_figure(lines: Mapping[str, Sequence[tuple[float, float, float]]], axis: str) -> Figure:
    """Draw (position, mean, standard deviation) of each line, on a logarithmic axis where all positions are positive."""
    figure, axes = plot_axes(axis, "accuracy, percent", width=7.4)
    positions = sorted({position for points in lines.values() for position, _, _ in points})
    if positions[0] > 0:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(positions, [f"{position:,.6g}" for position in positions])
    for number, (name, points) in enumerate(lines.items()):
        where, means, spreads = zip(*points)
        draw_series(axes, number, name, where, means, spreads)
    figure.legend(loc="outside right upper")
    return figure


@house_style()
def erasure_curves(
    panels: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
    *,
    baseline: str = "",
    title: str | None = None,
    features: str = "tokens",
    unit: str = "nats",
) -> Figure:
    """Draw the score lost over the number or percentage of features erased or kept, the "top" of each point: a panel per kind, a
    line per method, intervals as bands. The line called `baseline` is dashed."""
    names = list(dict.fromkeys(name for series in panels.values() for name in series if name != baseline))
    colours = dict(zip(names, head_colours(len(names)))) | {baseline: theme().muted}
    markers = {name: MARKERS[number % len(MARKERS)] for number, name in enumerate(names)} | {baseline: ""}
    steps = list(dict.fromkeys(point["top"] for series in panels.values() for points in series.values() for point in points))
    width, wide, high, left = 1.05 + len(panels) * 3.95 + 1.5, 3.5, 2.3, 0.72  # inches
    figure, title_bottom = titled_figure(title, width, 0.25 + high + 0.5 - MARGIN, gap=0.12)
    top = title_bottom + 0.25
    for number, (name, series) in enumerate(panels.items()):
        axes = axes_at(figure, left + number * (wide + 0.45), top, wide, high)
        panel_title(axes, name)
        for method, points in series.items():
            at = [steps.index(point["top"]) for point in points]
            score, lower, upper = ([point[key] for point in points] for key in ("score", "low", "high"))
            if lower != upper:
                axes.fill_between(at, lower, upper, color=colours[method], alpha=0.1, linewidth=0)
            axes.plot(
                at,
                score,
                color=colours[method],
                marker=markers[method],
                linestyle=(0, (4, 3)) if method == baseline else "-",
                markersize=4,
                linewidth=1.4,
                label=label(method),
            )
        axes.set_xticks(range(len(steps)), steps)
        axes.set_xlabel(f"top {features}")
        axes.grid(**GRID)
    limits = [axes.get_ylim() for axes in figure.axes]
    for axes in figure.axes:
        axes.set_ylim(min(0.0, *(low for low, _ in limits)), max(high for _, high in limits))
    figure.axes[0].set_ylabel(f"{unit} lost")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    corner = ((left + len(panels) * (wide + 0.45) - 0.2) / width, 1 - top / (top + high + 0.5))
    figure.legend(handles, labels, loc="upper left", borderaxespad=0, borderpad=0, bbox_to_anchor=corner)
    return figure


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
