"""Curves: how training went, and how the score holds over length."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from regard.pictures.style import FAINT, MARKERS, MUTED, SERIES, SMALL, look


def training(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Loss and validation score over the steps, from the records of log.jsonl."""
    losses = [(record["step"], record["loss"]) for record in records if "loss" in record]
    checks = [(record["step"], record["valid_loss"]) for record in records if "valid_loss" in record]
    scores = [(record["step"], record["valid_bleu"]) for record in records if "valid_bleu" in record]
    with look():
        figure = Figure(figsize=(5.6, 2.8), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(*zip(*losses), linewidth=1.2, label="training loss (smoothed labels)") if losses else None
        axes.plot(*zip(*checks), marker="o", markersize=3, linewidth=1.2, label="validation loss") if checks else None
        axes.set_xlabel("step")
        axes.set_ylabel("loss a token")
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        axes.set_ylim(bottom=0)
        handles, labels = axes.get_legend_handles_labels()
        if scores:
            right = axes.twinx()
            right.plot(*zip(*scores), marker="s", markersize=3, linewidth=1.2, color=SERIES[2], label="validation BLEU (greedy)")
            right.set_ylabel("BLEU")
            right.set_ylim(0, 100)
            handles, labels = handles + right.get_legend_handles_labels()[0], labels + right.get_legend_handles_labels()[1]
        axes.legend(handles, labels, loc="center right")
    return figure


def score_by_length(series: Mapping[str, Sequence[Mapping[str, Any]]], metric: str = "BLEU") -> Figure:
    """The score in bins of source length, with intervals side by side; the numbers of sentences stand below."""
    with look():
        figure = Figure(figsize=(7.4 if len(series) > 1 else 5.6, 2.8), layout="constrained")
        axes = figure.add_subplot()
        for number, (name, bins) in enumerate(series.items()):
            colour, marker = SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]
            places = [place + 0.07 * (number - (len(series) - 1) / 2) for place in range(len(bins))]
            below = [found["score"] - found["ci_low"] for found in bins]
            above = [found["ci_high"] - found["score"] for found in bins]
            axes.errorbar(places, [found["score"] for found in bins], yerr=[below, above], color=colour, marker=marker,
                          markersize=4, linewidth=1.2, elinewidth=0.8, capsize=2, label=name)
        bins = next(iter(series.values()))
        axes.set_xticks(range(len(bins)), [f"{found['low']}–{found['high']}\n({found['count']:,})" for found in bins])
        axes.set_xlabel("words of the source (sentences)")
        axes.set_ylabel(metric)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        if len(series) > 1:
            figure.legend(loc="outside right upper")
    return figure


def score_over_length(series: Mapping[str, Sequence[Mapping[str, float]]], trained: int,
                      metric: str = "right answers, percent") -> Figure:
    """The score at each length tested, with intervals; dashed, the longest length trained on."""
    with look():
        figure = Figure(figsize=(5.6, 2.8), layout="constrained")
        axes = figure.add_subplot()
        for (name, points), colour, marker in zip(series.items(), SERIES, MARKERS):
            lengths, scores = [point["length"] for point in points], [point["score"] for point in points]
            spread = [[max(0.0, point["score"] - point["low"]) for point in points],
                      [max(0.0, point["high"] - point["score"]) for point in points]]
            axes.errorbar(lengths, scores, yerr=spread, color=colour, marker=marker, markersize=4, linewidth=1.2, capsize=3,
                          label=name)
        axes.axvline(trained, color=MUTED, linewidth=0.9, dashes=(4, 3))
        axes.annotate("longest trained", (trained, 1.02), xycoords=("data", "axes fraction"), ha="center", va="bottom",
                      fontsize=SMALL, color=MUTED)
        axes.set_xlabel("length")
        axes.set_ylabel(metric)
        axes.set_ylim(-3, 103)
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        axes.legend()
    return figure
