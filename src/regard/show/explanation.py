"""Explanations as figures, pages and text: highlighted tokens, saliency maps of an image, curves of faithfulness."""

from base64 import b64encode
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from regard.explain.explanation import Explanation, FaithfulnessReport
from regard.explain.faithfulness import RANDOM_BASELINE
from regard.explain.verdict import format_number
from regard.show.figures.attribution_rows import AttributionRows, attribution_rows_figure, attribution_rows_text, shares_of
from regard.show.figures.curves import erasure_curves
from regard.show.figures.figure_files import figure_format, render, save_figure, to_svg, write_file
from regard.show.figures.html_pages import HtmlReport, html_report
from regard.show.figures.image_figures import SaliencyRow, saliency_figure
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


def attribution_rows(explanation: Explanation, against: bool = False) -> AttributionRows:
    """Return what is drawn of the explanation of a text, or of the output that it is compared with; the best method first."""
    measured, other = explanation.faithfulness, explanation.against
    values = explanation.attributions if other is None or not against else other.attributions
    methods = sorted(values, key=lambda name: -measured[name]["advantage"])
    random = measured[RANDOM_BASELINE]
    return AttributionRows(
        explanation.features,
        methods,
        shares_of([values[name] for name in methods]),
        [measured[name]["comprehensiveness"] for name in methods],
        [measured[name]["sufficiency"] for name in methods],
        (random["comprehensiveness"], random["sufficiency"]),
        explanation.wording.unit,
    )


def explanation_figure(explanation: Explanation) -> Figure:
    """Draw the answer: the maps of an image, or the highlighted text with heat map and faithfulness."""
    if explanation.image is not None:
        return attribution_figure(explanation)
    rows = attribution_rows(explanation)
    return attribution_rows_figure(rows, title=question(explanation), verdict=explanation.verdict.headline)


def question(explanation: Explanation) -> str:
    return f"{explanation.heading('')[0]} ({explanation.named_score})"


def explanation_text(explanation: Explanation) -> str:
    """Return the answer for a terminal; an image has its tables there instead."""
    return f"{question(explanation)}\n\n{attribution_rows_text(attribution_rows(explanation))}"


def faithfulness_curves(found: Explanation | FaithfulnessReport, title: str | None = None) -> Figure:
    """Draw comprehensiveness and sufficiency over the number of top features."""
    return erasure_curves(
        found.curves(), baseline=RANDOM_BASELINE, title=title, features=found.wording.features, unit=found.wording.unit
    )


def write_explanation(run: Run, found: Explanation | FaithfulnessReport, path: Path) -> None:
    """Write the answer, or the curves of a set, as a figure; or both with tables and summary as an HTML page."""
    title, summary = found.heading(run.folder.name)
    is_page = figure_format(path, pages=True) == "html"
    if not is_page:
        save_figure(explanation_figure(found) if isinstance(found, Explanation) else faithfulness_curves(found, title), path)
        return
    reasons = [f"{name} does not apply: {why}." for name, why in found.unavailable.items()]
    features = found.wording.features
    caption = f"{found.wording.unit} lost without the top {features}, and with them alone; dashed: the random baseline."
    answer = []
    if isinstance(found, Explanation):
        answer.append((f"Each method's {features}, and how faithful it is.", to_svg(answer_figure(found), "answer")))
        if found.against is not None and found.image is None:
            other = attribution_rows_figure(attribution_rows(found, against=True))
            answer.append((f"The same for {found.against.output}.", to_svg(other, "other")))
    report = HtmlReport(
        title,
        summary,
        answer=answer,
        tables=found.tables(),
        notes=[*found.summary(), *reasons],
        figures=[(caption, to_svg(faithfulness_curves(found), "curves"))],
    )
    write_file(path, html_report(report).encode())


def answer_figure(explanation: Explanation) -> Figure:
    """Draw the answer without the title, which the page has."""
    if explanation.image is not None:
        return attribution_figure(explanation)
    return attribution_rows_figure(attribution_rows(explanation), verdict=explanation.verdict.headline)


def explanation_html(explanation: Explanation) -> str:
    """Return an explanation as a notebook displays it: the same figure as in a file."""
    image = b64encode(render(explanation_figure(explanation), "svg")).decode("ascii")
    notes = "".join(f"<li>{escape(f'{name} does not apply: {why}')}</li>" for name, why in explanation.unavailable.items())
    figure = f'<img src="data:image/svg+xml;base64,{image}" style="max-width: 100%" alt="{escape(explanation.output)}">'
    return figure + (f"<ul>{notes}</ul>" if notes else "")
