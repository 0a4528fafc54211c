"""Explanations as pictures and pages: the maps of a picture, the curves of faithfulness."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from regard.explain.faithfulness import RANDOM_BASELINE
from regard.explain.report import Explanation, FaithfulnessReport, format_number
from regard.show.figures.curves import erasure_curves
from regard.show.figures.html_report import HtmlReport, html_report
from regard.show.figures.saliency import SaliencyRow, saliency_figure
from regard.show.figures.style import figure_format, save_figure, to_svg, write_file
from regard.tasks.base import Run

LEGEND = (
    "Bright is what is said to speak for the answer. Below each map: what the answer loses without the patches it puts "
    "first (without patches drawn by lot). "
)
TOLD = (
    "Apart: 1 less the rank correlation of the two maps, 0 where they are the same (with random weights). Selective: above "
    "0, each map names what speaks for its own answer."
)


def attribution_figure(found: Explanation) -> Figure:
    """The picture that was explained with each method's map."""
    assert found.picture is not None
    picture = found.picture
    grid, methods, counts = picture.grid, list(found.values), found.called.counts

    def shown(title: str, values: dict[str, list[float]], notes: Sequence[str]) -> SaliencyRow:
        maps = [np.array(values[name]).reshape(grid) if name in values else None for name in methods]
        return SaliencyRow(title, maps, notes)

    def loses(name: str) -> str:
        own, random = (format_number(found.measured[one]["comprehensiveness"]) for one in (name, RANDOM_BASELINE))
        return f"{own} ({random})"

    def apart(name: str) -> str:
        row = found.measured[name]
        if "apart" not in row:
            return ""
        return (
            f"apart {format_number(row['apart'])} ({format_number(row['apart fresh'])})\n"
            f"selective {format_number(row['selective'])}"
        )

    answers = [shown(f"{found.answer}: {counts} {found.amount:.2f}", found.values, [loses(name) for name in methods])]
    if found.against is not None:
        other = found.against
        answers.append(shown(f"{other.answer}: {counts} {other.amount:.2f}", other.values, [""] * len(methods)))
    told = found.against is not None
    return saliency_figure(
        picture.pixels, methods, answers, below=[apart(name) for name in methods] if told else (), legend=LEGEND + TOLD * told
    )


def write_explanation(run: Run, found: Explanation | FaithfulnessReport, path: Path) -> None:
    """The curves, or of one picture its maps, as a picture; or with the tables, and what they mean, as one HTML page."""
    title, summary = found.about(run.folder.name)
    maps = attribution_figure(found) if isinstance(found, Explanation) and found.picture is not None else None
    if figure_format(path, pages=True) != "html":
        save_figure(erasure_curves(found.curves(), aside=RANDOM_BASELINE, title=title) if maps is None else maps, path)
        return
    refused = [f"{name} does not apply: {why}." for name, why in found.refused.items()]
    caption = (
        f"What the answer loses without a share of the {found.called.pieces}, and with them alone; dashed, {RANDOM_BASELINE}."
    )
    figures = [] if maps is None else [("What each method says speaks for the answer.", to_svg(maps, "maps"))]
    figures.append((caption, to_svg(erasure_curves(found.curves(), aside=RANDOM_BASELINE))))
    report = HtmlReport(
        title,
        summary,
        tables=[(table.title, table.header, table.rows) for table in found.tables()],
        notes=[*found.words(), *refused],
        figures=figures,
    )
    write_file(path, html_report(report).encode())
