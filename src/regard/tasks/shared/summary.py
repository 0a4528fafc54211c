"""What a run is, in a few lines: the text that Python prints for it, and the table that a notebook displays."""

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.tasks.base import Run

SHOWN_METRICS = 3


def summary_rows(run: "Run") -> list[tuple[str, str]]:
    """Return what a run is as names and values: its task, model, data, scores and verbs."""
    parameters = sum(p.numel() for p in run.model.parameters())
    kind = getattr(run.recipe.model, "kind", "transformers")
    rows = [
        ("task", f"{run.task.name}: {run.task.does}"),
        ("model", f"{kind}, {parameters:,} parameters, on {run.device}"),
    ]
    sets = run._read_json("data.json").get("sets", {})
    if sets:
        rows.append(("data", ", ".join(f"{name} {one['examples']:,} examples" for name, one in sets.items())))
    for name, scores in run._read_json("scores.json").items():
        shown = [f"{metric.replace('_', ' ')} {one['score']:.4g}" for metric, one in list(scores.items())[:SHOWN_METRICS]]
        rows.append((f"scores of {name}", ", ".join(shown)))
    return [*rows, ("verbs", ", ".join((*run.task.verbs, "show", "explain", "evaluate")))]


def summary_text(run: "Run") -> str:
    """Return the summary as text."""
    rows = summary_rows(run)
    width = max(len(name) for name, _ in rows)
    return "\n".join([f"{type(run).__name__} {run.folder}", *(f"  {name.ljust(width)}  {value}" for name, value in rows)])


def summary_html(run: "Run") -> str:
    """Return the summary as a table."""
    cell = '<th scope="row" style="text-align:left">{}</th><td style="text-align:left">{}</td>'
    rows = "".join(f"<tr>{cell.format(escape(name), escape(value))}</tr>" for name, value in summary_rows(run))
    caption = f"{type(run).__name__} {escape(str(run.folder))}"
    return f'<table><caption style="text-align:left">{caption}</caption><tbody>{rows}</tbody></table>'
