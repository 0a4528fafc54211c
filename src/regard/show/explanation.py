"""Explanations as figures and pages: saliency maps of an image, curves of faithfulness."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from regard.explain.faithfulness import RANDOM_BASELINE
from regard.explain.report import Explanation, FaithfulnessReport, format_number
from regard.show.figures.curves import erasure_curves
from regard.show.figures.figure_files import figure_format, render, save_figure, to_svg, write_file
from regard.show.figures.html_pages import HtmlReport, html_report
from regard.show.figures.image_figures import SaliencyRow, saliency_figure
from regard.show.figures.labels import clean
from regard.show.figures.style import diverging_colormap
from regard.tasks.base import Run

LEGEND = (
    "Yellow to red patches support the output, blue ones oppose it. "
    "Below each map: what the output loses without its top patches (without random patches). "
)
DISCRIMINATION_LEGEND = (
    "Distance: 1 minus the rank correlation of the two maps, 0 where they are equal (with random weights). Selectivity: above 0, "
    "each map marks what supports its own output."
)


def attribution_figure(explanation: Explanation) -> Figure:
    """Draw the explained image with the saliency map of each method."""
    assert explanation.image is not None
    image, measured, other = explanation.image, explanation.faithfulness, explanation.against
    methods, score_name = list(explanation.attributions), explanation.wording.score

    def row(output: str, score: float, values: dict[str, list[float]], notes: list[str]) -> SaliencyRow:
        maps = [np.array(values[name]).reshape(image.grid) if name in values else None for name in methods]
        return SaliencyRow(f"{output}: {score_name} {score:.2f}", maps, notes)

    def discrimination(name: str) -> str:
        if "map distance" not in measured[name]:
            return ""
        distance, control, selectivity = (
            format_number(measured[name][key]) for key in ("map distance", "map distance randomized", "selectivity")
        )
        return f"distance {distance} ({control})\nselectivity {selectivity}"

    random = format_number(measured[RANDOM_BASELINE]["comprehensiveness"])
    losses = [f"{format_number(measured[name]['comprehensiveness'])} ({random})" for name in methods]
    rows = [row(explanation.output, explanation.score, explanation.attributions, losses)]
    if other is None:
        return saliency_figure(image.pixels, methods, rows, legend=LEGEND)
    rows.append(row(other.output, other.score, other.attributions, [""] * len(methods)))
    below = [discrimination(name) for name in methods]
    return saliency_figure(image.pixels, methods, rows, below=below, legend=LEGEND + DISCRIMINATION_LEGEND)


def write_explanation(run: Run, found: Explanation | FaithfulnessReport, path: Path) -> None:
    """Write the erasure curves, or the maps of one image, as a figure; or both with tables and summary as an HTML page."""
    title, summary = found.heading(run.folder.name)
    maps = attribution_figure(found) if isinstance(found, Explanation) and found.image is not None else None
    if figure_format(path, pages=True) != "html":
        save_figure(erasure_curves(found.curves(), baseline=RANDOM_BASELINE, title=title) if maps is None else maps, path)
        return
    reasons = [f"{name} does not apply: {why}." for name, why in found.unavailable.items()]
    features = found.wording.features
    caption = f"Score lost without the top {features}, and with them alone; dashed: the random baseline."
    figures = [] if maps is None else [("The saliency map of each method.", to_svg(maps, "maps"))]
    figures.append((caption, to_svg(erasure_curves(found.curves(), baseline=RANDOM_BASELINE))))
    report = HtmlReport(
        title,
        summary,
        tables=found.tables(),
        notes=[*found.summary(), *reasons],
        figures=figures,
    )
    write_file(path, html_report(report).encode())


def explanation_html(explanation: Explanation) -> str:
    """Return an explanation as a notebook displays it: the image with its maps; or each method's tokens, blue where they support
    the output and orange where they speak against it, and its faithfulness."""
    if explanation.image is not None:
        image = b64encode(render(attribution_figure(explanation), "svg")).decode("ascii")
        return f'<img src="data:image/svg+xml;base64,{image}" style="max-width: 100%" alt="{escape(explanation.output)}">'
    measures = ("comprehensiveness", "sufficiency")
    header = "".join(
        f'<th style="text-align: left; padding-right: 1em">{escape(name)}</th>'
        for name in ("method", explanation.output, *measures)
    )
    rows = []
    for method, values in explanation.attributions.items():
        numbers = [explanation.faithfulness.get(method, {}).get(name) for name in measures]
        cells = "".join(f"<td>{'' if number is None else f'{number:.2f}'}</td>" for number in numbers)
        tokens = shaded_tokens(explanation.features, values)
        rows.append(f'<tr><td>{escape(method)}</td><td style="text-align: left">{tokens}</td>{cells}</tr>')
    notes = "".join(f"<li>{escape(f'{name} does not apply: {why}')}</li>" for name, why in explanation.unavailable.items())
    return f"<table><tr>{header}</tr>{''.join(rows)}</table>" + (f"<ul>{notes}</ul>" if notes else "")


def shaded_tokens(tokens: Sequence[str], values: Sequence[float]) -> str:
    """Return tokens as HTML, as dark as the size of their values, of which the largest is darkest."""
    largest = max(map(abs, values), default=0.0) or 1.0
    shaded = []
    for token, value in zip(tokens, values):
        red, green, blue, _ = diverging_colormap()(0.5 + 0.27 * value / largest, bytes=True)
        style = f"background: rgb({red} {green} {blue}); color: #1d2330; padding: 1px 4px; border-radius: 3px"
        shaded.append(f'<span style="{style}" title="{value:.3f}">{escape(clean(token))}</span>')
    return " ".join(shaded)
