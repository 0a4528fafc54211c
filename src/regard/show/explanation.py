"""Explanations as pictures and pages: the maps of a picture, the curves of faithfulness."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from regard.explain.faithfulness import LOT
from regard.explain.report import Explained, Measured, plain
from regard.show.figures.curves import lost_over_share
from regard.show.figures.html_report import Report, page
from regard.show.figures.saliency import Evidence, evidence
from regard.show.figures.style import format_of, save, svg_text, write
from regard.tasks.base import Run

LEGEND = (
    "Bright is what is said to speak for the answer. Below each map: what the answer loses without the patches it puts "
    "first (without patches drawn by lot). "
)
TOLD = (
    "Apart: 1 less the rank correlation of the two maps, 0 where they are the same (with random weights). Selective: above "
    "0, each map names what speaks for its own answer."
)


def maps_of(found: Explained) -> Figure:
    """The picture that was explained with each method's map."""
    assert found.picture is not None
    picture = found.picture
    grid, methods, counts = picture.grid, list(found.values), found.called.counts

    def shown(title: str, values: dict[str, list[float]], notes: Sequence[str]) -> Evidence:
        maps = [np.array(values[name]).reshape(grid) if name in values else None for name in methods]
        return Evidence(title, maps, notes)

    def loses(name: str) -> str:
        return f"{plain(found.measured[name]['comprehensiveness'])} ({plain(found.measured[LOT]['comprehensiveness'])})"

    def apart(name: str) -> str:
        row = found.measured[name]
        if "apart" not in row:
            return ""
        return f"apart {plain(row['apart'])} ({plain(row['apart fresh'])})\nselective {plain(row['selective'])}"

    answers = [shown(f"{found.answer}: {counts} {found.amount:.2f}", found.values, [loses(name) for name in methods])]
    if found.against is not None:
        other = found.against
        answers.append(shown(f"{other.answer}: {counts} {other.amount:.2f}", other.values, [""] * len(methods)))
    told = found.against is not None
    return evidence(
        picture.pixels, methods, answers, below=[apart(name) for name in methods] if told else (), legend=LEGEND + TOLD * told
    )


def write_out(run: Run, found: Explained | Measured, path: Path) -> None:
    """The curves, or of one picture its maps, as a picture; or with the tables, and what they mean, as one HTML page."""
    title, summary = found.about(run.folder.name)
    maps = maps_of(found) if isinstance(found, Explained) and found.picture is not None else None
    if format_of(path, pages=True) != "html":
        save(lost_over_share(found.curves(), aside=LOT, title=title) if maps is None else maps, path)
        return
    refused = [f"{name} does not apply: {why}." for name, why in found.refused.items()]
    caption = f"What the answer loses without a share of the {found.called.pieces}, and with them alone; dashed, {LOT}."
    figures = [] if maps is None else [("What each method says speaks for the answer.", svg_text(maps, "maps"))]
    figures.append((caption, svg_text(lost_over_share(found.curves(), aside=LOT))))
    report = Report(
        title,
        summary,
        tables=[(table.title, table.header, table.rows) for table in found.tables()],
        notes=[*found.words(), *refused],
        figures=figures,
    )
    write(path, page(report).encode())
