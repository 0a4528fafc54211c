"""What every study writes at the end: figures, and a page that shows them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure
from torch import nn

from regard.files import atomic_write
from regard.show.figures.figure_files import save_figure, to_svg
from regard.show.figures.html_pages import HtmlReport, html_report


def write_report(path: Path, report: HtmlReport, figures: Mapping[str, tuple[str, Figure]]) -> Path:
    """Write figures, name -> (caption, figure), to figures/ beside `path`, and the HTML report with them to `path`."""
    for name, (_, figure) in figures.items():
        save_figure(figure, path.parent / "figures" / f"{name}.svg")
    shown = [(caption, to_svg(figure, name)) for name, (caption, figure) in figures.items()]
    atomic_write(path, html_report(replace(report, figures=shown)))
    return path


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters of a model."""
    return sum(p.numel() for p in model.parameters())
