"""Draw attention: record a run, or read a record; select maps; draw them as a figure, a page or text."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

from regard.attention.positions import LearnedPositions, SinusoidalPositions, sinusoids
from regard.attention.record import Record
from regard.errors import UserError
from regard.show.figures.attention_maps import AttentionMaps
from regard.show.figures.figure_files import figure_format
from regard.show.figures.head_views import entropy_figure, entropy_text, head_view, model_view
from regard.show.figures.html_pages import attention_page
from regard.show.figures.labels import clean, shorten
from regard.show.figures.matrix import attention_matrix, matrix_grid, matrix_text
from regard.show.figures.teaching import position_figure
from regard.show.inline import InlineFigure
from regard.show.recording import attention_maps, record_attention
from regard.show.selection import SelectedMaps, ViewSelection, pluralize, select
from regard.tasks.base import Run
from regard.tasks.shared.images import ImageInput
from regard.tasks.translate import TranslateRun

PAGE_VIEW = {"head-matrices": "matrix"}
"""The view at which a page opens, where it has none of that name."""


def check_output_path(out: Path | None, elsewhere: bool) -> None:
    """Check, before anything is computed, that the result has somewhere to go and a supported format."""
    if out is None and not elsewhere:
        raise UserError("no output: add --out a.svg (or .png, .pdf, .html), or --terminal")
    if out is not None:
        figure_format(out, pages=True)


def show_attention(
    what: Run | Record | Path, given: ImageInput = "", selection: ViewSelection | None = None, *, keep: Path | None = None
) -> InlineFigure:
    """Draw a view of a run that reads a text or an image, or of a record or its file; write the record to `keep`."""
    record = Record.read(what) if isinstance(what, Path) else what
    if isinstance(record, Run):
        record = record_attention(record, given)
    if keep is not None:
        record.write(keep)
    return show_record(record, selection, title=str(given) if isinstance(given, str | Path) else "")


def show_record(record: Record, selection: ViewSelection | None = None, *, title: str = "", row: int = 0) -> InlineFigure:
    """Draw a view of one row of the batch of a record."""
    return show_maps(attention_maps(record, row), selection or ViewSelection(), title=title)


def show_maps(
    groups: Sequence[AttentionMaps],
    selection: ViewSelection,
    *,
    title: str = "",
    description: str = "",
) -> InlineFigure:
    """Draw a view of maps of several kinds of attention, by default the selected one; a page holds all maps."""
    group, selected = select(groups, selection)
    maps, view = selected.maps, selection.view
    title = shorten(clean(title), 90) or maps.name
    known = (
        f"{maps.name}: {pluralize(len(maps.layers), 'layer')} of {pluralize(len(maps.heads), 'head')}, "
        f"{len(maps.queries)} × {len(maps.keys)}" + (f" ({maps.note})" if maps.note else "")
    )

    def page() -> str:
        return attention_page(
            groups,
            view=PAGE_VIEW.get(view, view),
            layer=selected.shown_layer,
            head=selected.head,
            token=selected.token,
            group=group,
            absolute=selected.absolute,
            title=title,
        )

    return InlineFigure(
        description or known,
        lambda: draw_view(selected, view),
        text=lambda: view_text(selected, view),
        page=None if view == "entropy" else page,
        title=title,
        note=selected.token_note,
    )


def show_alignment(run: TranslateRun, text: str, selection: ViewSelection) -> InlineFigure:
    """Translate a text and draw its cross-attention word by word. It is described by the translation."""
    alignment = run.align(text)
    layers, heads = ([str(i + 1) for i in range(number)] for number in alignment.weights.shape[:2])
    maps = AttentionMaps("cross-attention", alignment.target, alignment.source, alignment.weights, layers, heads)
    return show_maps([maps], selection, title=text, description=" ".join(alignment.target))


def draw_view(selected: SelectedMaps, view: str) -> Figure:
    maps = selected.maps
    note = f" ({maps.note})" if maps.note else ""
    if view == "model":
        return model_view(maps, title=maps.name + note, absolute=selected.absolute)
    if view == "entropy":
        return entropy_figure(maps, title=f"{maps.name}: entropy and distance of heads{note}")
    weights, title = maps.weights[selected.shown_layer], selected.layer_name + note
    if view == "head-matrices":
        return matrix_grid(
            weights, maps.keys, maps.queries, [f"head {name}" for name in maps.heads], title=title, absolute=selected.absolute
        )
    if view == "heads":
        return head_view(
            weights,
            maps.queries,
            maps.keys,
            maps.heads,
            chosen=None if selected.head is None else [selected.head],
            only=selected.token,
            title=title,
            absolute=selected.absolute,
        )
    weights, rows, title = selected.token_matrix() if view == "token" else selected.matrix()
    return attention_matrix(weights, maps.keys, rows, title=title + note, absolute=selected.absolute)


def view_text(selected: SelectedMaps, view: str) -> str:
    maps = selected.maps
    if view in ("model", "entropy"):
        return entropy_text(maps)
    width = shutil.get_terminal_size((100, 40)).columns
    matrices = [selected.token_matrix() if view == "token" else selected.matrix()]
    if view in ("heads", "head-matrices") and selected.head is None:
        one_layer = [selected._replace(layer=selected.shown_layer, head=head) for head in range(len(maps.heads))]
        matrices = [one.matrix() for one in one_layer]
    return "\n\n".join(
        f"{matrix_text(weights, maps.keys, rows, width, absolute=selected.absolute)}\n\n{title}"
        for weights, rows, title in matrices
    )


def show_positions(run: Run | None = None, *, width: int = 128, number: int = 50) -> InlineFigure:
    """Draw the positional encoding of a run, or without one the sinusoids of Vaswani et al. 2017."""
    if run is None:
        table, title = sinusoids(torch.arange(number), width).numpy(), "sinusoidal positions"
    else:
        kinds = SinusoidalPositions | LearnedPositions
        module = next((module for module in run.model.modules() if isinstance(module, kinds)), None)
        if module is None:
            raise UserError(f"{run.folder} adds no positions to its embeddings; --positions is for sinusoidal and learned ones")
        weights = module.table.weight if isinstance(module, LearnedPositions) else module.table
        table, title = weights.detach().float().cpu().numpy()[:number], f"positions of {run.folder.name}"
    description = f"{title}: {table.shape[1]} components of {table.shape[0]} positions"
    return InlineFigure(description, lambda: position_figure(table, title=title), title=title)
