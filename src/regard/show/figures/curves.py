"""Curves: how training went, how the score holds over length, what is lost without tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from regard.show.figures.head_lines import head_colours
from regard.show.figures.labels import label
from regard.show.figures.matrix import MARGIN, axes_at
from regard.show.figures.style import FAINT, MARKERS, MUTED, SERIES, SMALL, TITLE, house_style, panel_title, wrap_text


def training_curves(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Loss and validation score over the steps, from the records of log.jsonl."""
    losses = [(record["step"], record["loss"]) for record in records if "loss" in record]
    checks = [(record["step"], record["valid_loss"]) for record in records if "valid_loss" in record]
    scores = [(record["step"], record["valid_bleu"]) for record in records if "valid_bleu" in record]
    with house_style():
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
    with house_style():
        figure = Figure(figsize=(7.4 if len(series) > 1 else 5.6, 2.8), layout="constrained")
        axes = figure.add_subplot()
        for number, (name, bins) in enumerate(series.items()):
            colour, marker = SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]
            places = [place + 0.07 * (number - (len(series) - 1) / 2) for place in range(len(bins))]
            below = [found["score"] - found["ci_low"] for found in bins]
            above = [found["ci_high"] - found["score"] for found in bins]
            axes.errorbar(
                places,
                [found["score"] for found in bins],
                yerr=[below, above],
                color=colour,
                marker=marker,
                markersize=4,
                linewidth=1.2,
                elinewidth=0.8,
                capsize=2,
                label=name,
            )
        bins = next(iter(series.values()))
        axes.set_xticks(range(len(bins)), [f"{found['low']}–{found['high']}\n({found['count']:,})" for found in bins])
        axes.set_xlabel("words of the source (sentences)")
        axes.set_ylabel(metric)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        if len(series) > 1:
            figure.legend(loc="outside right upper")
    return figure


def score_over_length(
    series: Mapping[str, Sequence[Mapping[str, float]]], trained: int, metric: str = "right answers, percent"
) -> Figure:
    """The score at each length tested, with intervals; dashed, the longest length trained on."""
    with house_style():
        figure = Figure(figsize=(5.6, 2.8), layout="constrained")
        axes = figure.add_subplot()
        for (name, points), colour, marker in zip(series.items(), SERIES, MARKERS):
            lengths, scores = [point["length"] for point in points], [point["score"] for point in points]
            spread = [
                [max(0.0, point["score"] - point["low"]) for point in points],
                [max(0.0, point["high"] - point["score"]) for point in points],
            ]
            axes.errorbar(
                lengths, scores, yerr=spread, color=colour, marker=marker, markersize=4, linewidth=1.2, capsize=3, label=name
            )
        axes.axvline(trained, color=MUTED, linewidth=0.9, dashes=(4, 3))
        axes.annotate(
            "longest trained",
            (trained, 1.02),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=SMALL,
            color=MUTED,
        )
        axes.set_xlabel("length")
        axes.set_ylabel(metric)
        axes.set_ylim(-3, 103)
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        axes.legend()
    return figure


def erasure_curves(
    panels: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]], *, aside: str = "", title: str | None = None
) -> Figure:
    """What is lost over the share of tokens, a panel each for what is done with them and a line for each who chose them;
    intervals as bands. The line called `aside` is dashed: what the others are compared with."""
    names = list(dict.fromkeys(name for series in panels.values() for name in series if name != aside))
    colours = dict(zip(names, head_colours(len(names)))) | {aside: MUTED}
    shares = sorted({point["share"] for series in panels.values() for points in series.values() for point in points})
    with house_style():
        width, wide, high, left = 1.05 + len(panels) * 3.95 + 1.5, 3.5, 2.3, 0.72  # inches
        lines = wrap_text(title, TITLE, width - 2 * MARGIN) if title else ""
        top = MARGIN + (0.2 * (lines.count("\n") + 1) + 0.12 if lines else 0) + 0.25
        figure = Figure(figsize=(width, top + high + 0.5))
        for number, (name, series) in enumerate(panels.items()):
            axes = axes_at(figure, left + number * (wide + 0.45), top, wide, high)
            panel_title(axes, name)
            for who, points in series.items():
                at, scores = [shares.index(point["share"]) for point in points], [point["score"] for point in points]
                if any(point["high"] > point["low"] for point in points):
                    axes.fill_between(
                        at,
                        [point["low"] for point in points],
                        [point["high"] for point in points],
                        color=colours[who],
                        alpha=0.1,
                        linewidth=0,
                    )
                marker = "" if who == aside else MARKERS[names.index(who) % len(MARKERS)]
                axes.plot(
                    at,
                    scores,
                    color=colours[who],
                    marker=marker,
                    markersize=4,
                    linewidth=1.4,
                    label=label(who),
                    linestyle=(0, (4, 3)) if who == aside else "-",
                )
            axes.set_xticks(range(len(shares)), [f"{share:g}%" for share in shares])
            axes.set_xlabel("share of the tokens")
            axes.grid(axis="y", color=FAINT, linewidth=0.5)
        spans = [axes.get_ylim() for axes in figure.axes]
        for axes in figure.axes:
            axes.set_ylim(min(0.0, *(low for low, _ in spans)), max(high for _, high in spans))
        figure.axes[0].set_ylabel("probability lost")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="upper left",
            borderaxespad=0,
            borderpad=0,
            bbox_to_anchor=((left + len(panels) * (wide + 0.45) - 0.2) / width, 1 - top / (top + high + 0.5)),
        )
        if lines:
            figure.text(
                MARGIN / width,
                1 - MARGIN / (top + high + 0.5),
                lines,
                fontsize=TITLE,
                fontweight="bold",
                va="top",
                linespacing=1.25,
                parse_math=False,
            )
    return figure
