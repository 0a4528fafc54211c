"""The page of the training view: curves, outputs over time, the attention of one example as it is learned."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regard.show.figures import style
from regard.show.figures.html_pages import encode_bytes, read_css, script_page

MAX_POINTS, MAX_SNAPSHOTS = 1200, 120
"""Of a curve, and evaluations whose outputs and attention are kept in the page, evenly thinned out."""
RELOAD_SECONDS = 10


def training_page(
    about: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    snapshots: Sequence[Mapping[str, Any]],
    *,
    finished: bool = False,
) -> str:
    """Return a self-contained page; unless training has finished, it reloads itself."""
    data = {
        **about,
        "finished": finished,
        "ramp": encode_bytes(np.round(style.sequential_colormap()(np.arange(256))[:, :3] * 255)),
        "curves": curves(records, about.get("metrics", [])),
        "snapshots": thin_out(snapshots, MAX_SNAPSHOTS),
    }
    title = f"{about.get('name', 'a run')} {'has learned' if finished else 'learns'}"
    body = '<div id="stage" class="training"></div>\n'
    page = script_page(title, body, data, "training_chart.js", read_css("training_chart.css"), start="drawTraining(stage, data);")
    reload = f'<meta http-equiv="refresh" content="{RELOAD_SECONDS}">\n'
    return page if finished else page.replace("<title>", f"{reload}<title>", 1)


def curves(records: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return the curves to draw, by panel: losses, the validation score, the learning rate."""
    names = {"loss": ["loss", "valid_loss"], "learning rate": ["learning_rate"]}
    score = next((metric for metric in metrics if any(metric in record for record in records)), None)
    if score is not None:
        title = score.removeprefix("valid_").replace("_", " ")
        title = "BLEU" if title == "bleu" else title
        names = {"loss": names["loss"], title: [score], "learning rate": ["learning_rate"]}
    return [
        {"title": title, "lines": [{"name": line_name(key), "points": points(records, key)} for key in keys]}
        for title, keys in names.items()
    ]


def line_name(key: str) -> str:
    return {"loss": "training", "learning_rate": "learning rate"}.get(key, "validation")


def points(records: Sequence[Mapping[str, Any]], key: str) -> list[list[float]]:
    found = [[record["step"], record[key]] for record in records if isinstance(record.get(key), int | float)]
    return [[step, float(f"{value:.5g}")] for step, value in thin_out(found, MAX_POINTS)]


def thin_out(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i)] for i in np.linspace(0, len(items) - 1, most)]
