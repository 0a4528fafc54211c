"""Draw what a run attended to, or what a record says that it did."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from regard.attention.positions import LearnedPositions, SinusoidalPositions, sinusoids
from regard.attention.record_file import Record
from regard.batches.image_store import decode_images
from regard.errors import UserError
from regard.show.figures.attention_maps import AttentionMaps
from regard.show.figures.head_entropy import entropy_figure
from regard.show.figures.head_lines import head_view
from regard.show.figures.html_report import HtmlReport, html_report
from regard.show.figures.html_view import attention_page
from regard.show.figures.labels import clean, shorten
from regard.show.figures.matrix import attention_matrix, head_matrices
from regard.show.figures.overlay import ImageAttention, image_attention_figure
from regard.show.figures.position_waves import position_figure
from regard.show.figures.style import figure_format, save_figure, to_svg, write_file
from regard.show.figures.terminal import entropy_text, matrix_text
from regard.show.figures.thumbnails import model_view as thumbnails
from regard.show.recording import attention_maps, record_attention
from regard.tasks.base import Run
from regard.tasks.caption import CaptionAlignment
from regard.tasks.contrastive import is_image
from regard.tasks.shared.images import as_image_source, patch_grid, pooled_positions
from regard.tasks.translate import Alignment, TranslateRun

VIEWS = ("matrix", "heads", "model", "token", "entropy", "neurons", "steps", "beam")
VIEWS_THAT_RUN = ("neurons", "steps", "beam")
"""Those that a record of weights is not enough for."""
ATTENTION_KINDS = {
    "cross": "cross-attention",
    "encoder": "self-attention of the encoder",
    "decoder": "self-attention of the decoder",
}


@dataclass(frozen=True)
class ViewSelection:
    """What of a record is wanted; layers and heads as they are called, counted from 1."""

    view: str = "matrix"
    kind: str | None = None
    layer: int | None = None
    head: int | None = None
    token: str | None = None

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise UserError(f"--view {self.view}: should be one of {', '.join(VIEWS)}")
        if self.kind is not None and self.kind not in ATTENTION_KINDS:
            raise UserError(f"--kind {self.kind}: should be one of {', '.join(ATTENTION_KINDS)}")
        if self.view == "token" and self.token is None:
            raise UserError("--view token: of which one? add --token WORD, or its number counted from 1")
        if self.view in ("matrix", "heads") and self.head is not None and self.layer is None:
            raise UserError(f"--head {self.head} of which layer? add --layer 1, 2 …")


def check_output_path(out: Path | None, elsewhere: bool, *, pages: bool) -> None:
    """Whether a picture has somewhere to go, before anything is read."""
    if out is None and not elsewhere:
        raise UserError("say where the picture goes: --out a.svg (or .png, .pdf), or --terminal")
    if out is not None:
        figure_format(out, pages=pages)


def read_record(path: Path) -> Record:
    return Record.read(path)


def show_attention(
    what: Run | Record,
    text: str | None = None,
    choice: ViewSelection | None = None,
    *,
    out: Path | None = None,
    terminal: bool = False,
    keep: Path | None = None,
) -> str:
    """A view of a run that reads a text, or of a record: as a picture, a page, in the terminal, kept as a record. In words, what
    was drawn."""
    choice = choice or ViewSelection()
    record = record_attention(what, text or "") if isinstance(what, Run) else what
    if keep is not None:
        record.write(keep)
    found = attention_maps(record)
    number = select_group(found, choice.kind)
    picked = found[number]
    layer, head, token = resolve_indices(picked, choice)
    title = shorten(clean(text), 90) if text else picked.name
    said = (
        f"{picked.name}: {pluralize(len(picked.layers), 'layer')} of {pluralize(len(picked.heads), 'head')}, "
        f"{len(picked.queries)} × {len(picked.keys)}" + (f" ({picked.note})" if picked.note else "")
    )
    if out is not None:
        if out.suffix.lower() == ".html" and choice.view != "entropy":
            sharp = sharpest_layer(picked) if layer is None else layer
            write_file(
                out,
                attention_page(found, view=choice.view, layer=sharp, head=head, token=token, group=number, title=title).encode(),
            )
        else:
            save_figure_or_page(draw_view(picked, choice.view, layer, head, token), out, title)
    return said + ("\n\n" + view_text(picked, choice.view, layer, head, token) if terminal else "")


def pluralize(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def save_figure_or_page(figure: Figure, out: Path, title: str) -> None:
    """A picture, or a page around one."""
    if out.suffix.lower() == ".html":
        write_file(out, html_report(HtmlReport(title, "", figures=[("", to_svg(figure))])).encode())
    else:
        save_figure(figure, out)


def select_group(found: list[AttentionMaps], kind: str | None) -> int:
    names = [one.name for one in found]
    if kind is None:
        return 0
    if ATTENTION_KINDS[kind] not in names:
        raise UserError(f"--kind {kind}: there is {', '.join(names)} here")
    return names.index(ATTENTION_KINDS[kind])


def resolve_indices(found: AttentionMaps, choice: ViewSelection) -> tuple[int | None, int | None, int | None]:
    """Layer, head and token, counted from 0."""
    picked = []
    for option, names, value in (("layer", found.layers, choice.layer), ("head", found.heads, choice.head)):
        if value is not None and str(value) not in names:
            raise UserError(f"--{option} {value}: {found.name} has {', '.join(names)}")
        picked.append(None if value is None else list(names).index(str(value)))
    return picked[0], picked[1], None if choice.token is None else token_index(found.queries, choice.token, found.tile)


def token_index(words: Sequence[str], token: str, tile: int = 1) -> int:
    """By what it says, or else by its number, counted from 1; where words are of tiles, the one that it is in."""
    if token in words:
        return list(words).index(token)
    if token.isdigit() and 1 <= int(token) <= len(words) * tile:
        return min((int(token) - 1) // tile, len(words) - 1)
    shown = " ".join(words[:12]) + (" …" if len(words) > 12 else "")
    raise UserError(f"--token {token}: is none of {shown}")


def sharpest_layer(found: AttentionMaps) -> int:
    """The layer whose heads, taken together, look with the lowest entropy."""
    mean = found.weights.mean(1)  # (L, T, S)
    return int((mean * np.log(np.maximum(mean, 1e-12))).sum(-1).mean(-1).argmax())


def select_matrix(
    found: AttentionMaps, view: str, layer: int | None, head: int | None, token: int | None
) -> tuple[np.ndarray, list[str], str]:
    """One matrix (rows, S), the names of its rows, and its own."""
    if view == "token":
        assert token is not None
        asked = f"what {found.queries[token]} looks at"
        if layer is not None and head is None:
            rows = [f"head {name}" for name in found.heads]
            return found.weights[layer, :, token], rows, f"{asked}, layer {found.layers[layer]}"
        weights = found.weights[:, :, token].mean(1) if head is None else found.weights[:, head, token]
        return weights, [f"layer {name}" for name in found.layers], f"{asked}, " + head_label(found, head)
    chosen = sharpest_layer(found) if layer is None else layer
    weights = found.weights[chosen].mean(0) if head is None else found.weights[chosen, head]
    return weights, list(found.queries), f"{found.name}, layer {found.layers[chosen]}, " + head_label(found, head)


def head_label(found: AttentionMaps, head: int | None) -> str:
    single = 0 if len(found.heads) == 1 else head
    return f"mean of {pluralize(len(found.heads), 'head')}" if single is None else f"head {found.heads[single]}"


def draw_view(found: AttentionMaps, view: str, layer: int | None, head: int | None, token: int | None) -> Figure:
    note = f" ({found.note})" if found.note else ""
    if view == "model":
        return thumbnails(found, title=found.name + note)
    if view == "entropy":
        return entropy_figure(found, title=f"{found.name}: entropy and distance of heads{note}")
    if view == "heads":
        chosen = sharpest_layer(found) if layer is None else layer
        return head_view(
            found.weights[chosen],
            found.queries,
            found.keys,
            found.heads,
            chosen=None if head is None else [head],
            only=token,
            title=f"{found.name}, layer {found.layers[chosen]}{note}",
            darkest=found.darkest,
        )
    weights, rows, name = select_matrix(found, view, layer, head, token)
    return attention_matrix(weights, found.keys, rows, title=name + note, darkest=found.darkest)


def view_text(found: AttentionMaps, view: str, layer: int | None, head: int | None, token: int | None) -> str:
    if view in ("model", "entropy"):
        return entropy_text(found)
    weights, rows, name = select_matrix(found, "matrix" if view == "heads" else view, layer, head, token)
    width = shutil.get_terminal_size((100, 40)).columns
    return matrix_text(weights / found.darkest, found.keys, rows, width) + f"\n\n{name}"


def reads_image(run: Run, given: str) -> bool:
    """Whether it reads a picture when it is given this, and so can show where in it something was looked at."""
    return (
        run.task.explains == "caption"
        or (run.task.explains == "similarity" and is_image(given))
        or ("image" in run.task.reads and run.recipe.model.kind == "vit")
    )


def show_image_attention(run: Run, given: str, choice: ViewSelection, out: Path) -> str:
    """A picture again for each layer, bright where what it is judged by looked; of a captioner for each word, from the layer that
    looks most sharply. Of one head; or, with --heads, of each head of a layer. In words, what was drawn."""
    (look,) = run.align([given]) if run.task.explains == "caption" else [image_attention(run, given)]
    layers, heads = look.heads.shape[:2]
    for option, value, most in (("layer", choice.layer, layers), ("head", choice.head, heads)):
        if value is not None and value > most:
            raise UserError(f"--{option} {value}: there are 1 to {most}")
    pixels = decode_images([as_image_source(given)], run._images.transform)[0]
    if run.task.explains == "caption":
        shown = caption_overlays(look, pixels, choice)
    elif choice.view == "heads":
        layer = layers if choice.layer is None else choice.layer
        shown = [
            ImageAttention(pixels, [f"head {head + 1}" for head in range(heads)], look.heads[layer - 1, :, 0], f"layer {layer}")
        ]
    else:
        chosen = range(layers) if choice.layer is None else [choice.layer - 1]
        weights = look.heads[:, :, 0].mean(1) if choice.head is None else look.heads[:, choice.head - 1, 0]
        shown = [ImageAttention(pixels, [f"layer {layer + 1}" for layer in chosen], weights[list(chosen)])]
    save_figure(image_attention_figure(shown), out)
    return (
        " ".join(look.words)
        if run.task.explains == "caption"
        else f"{pluralize(layers, 'layer')} of {pluralize(heads, 'head')}, {patch_grid(run)[0]} × {patch_grid(run)[1]} patches"
    )


def caption_overlays(look: CaptionAlignment, pixels: np.ndarray, choice: ViewSelection) -> list[ImageAttention]:
    if not look.words:
        raise UserError("the caption is empty: there is nothing to show")
    layer = None if choice.layer is None else choice.layer - 1
    sharp = Alignment([], look.words, look.heads.reshape(*look.heads.shape[:3], -1)).sharpest() if layer is None else layer
    if choice.view == "heads":
        return [
            ImageAttention(pixels, look.words, weights, f"layer {sharp + 1}, head {head + 1}")
            for head, weights in enumerate(look.heads[sharp])
        ]
    if choice.head is not None:
        return [ImageAttention(pixels, look.words, look.heads[sharp, choice.head - 1])]
    return [ImageAttention(pixels, look.words, look.heads[sharp].mean(0))]


def image_attention(run: Run, given: str) -> CaptionAlignment:
    """Where that which a picture is judged by looked: one word, as it were."""
    places = record_attention(run, given).modules.values()
    weights = np.stack([place.weights()[0] for place in places])  # (L, H, T, S)
    asking = weights if pooled_positions(run) is None else weights[:, :, list(pooled_positions(run))]
    rows, columns = patch_grid(run)
    seen = asking.mean(2, keepdims=True)[..., -rows * columns :]  # marks come first
    heads = seen.reshape(*seen.shape[:3], rows, columns)
    return CaptionAlignment([""], heads.mean((0, 1)), heads)


def show_positions(run: Run | None, out: Path, *, width: int = 128, number: int = 50) -> str:
    """The sinusoids of the 2017 paper, or what a run adds to its embeddings."""
    if run is None:
        table, title = sinusoids(torch.arange(number), width).numpy(), "sinusoidal positions"
    else:
        place = next(
            (module for module in run.model.modules() if isinstance(module, SinusoidalPositions | LearnedPositions)), None
        )
        if place is None:
            raise UserError(f"{run.folder} adds no positions to its embeddings; --positions is for sinusoidal and learned ones")
        weights = place.table.weight if isinstance(place, LearnedPositions) else place.table
        table, title = weights.detach().float().cpu().numpy()[:number], f"positions of {run.folder.name}"
    save_figure_or_page(position_figure(table, title=title), out, title)
    return f"{title}: {table.shape[1]} components of {table.shape[0]} positions"


def show_alignment(
    run: TranslateRun,
    text: str,
    *,
    out: Path | None = None,
    terminal: bool = False,
    layer: int | None = None,
    head: int | None = None,
    all_heads: bool = False,
) -> str:
    """Translate a text and draw its cross-attention word by word; layers and heads count from 1. What was said, and where the
    picture is."""
    found = next(run.align([text]))
    check_alignment_choice(found, layer, head)
    weights, name = found.view(None if layer is None else layer - 1, None if head is None else head - 1)
    said = [" ".join(found.target)]
    if terminal:
        said += ["", matrix_text(weights, found.source, found.target, shutil.get_terminal_size((100, 40)).columns), "", name]
    if out is not None:
        save_figure(alignment_figure(found, layer, head, all_heads), out)
    return "\n".join(said)


def alignment_figure(found: Alignment, layer: int | None, head: int | None, all_heads: bool):
    if all_heads:
        chosen = found.sharpest() if layer is None else layer - 1
        return head_matrices(found.weights[chosen], found.source, found.target, title=f"cross-attention, layer {chosen + 1}")
    weights, name = found.view(None if layer is None else layer - 1, None if head is None else head - 1)
    return attention_matrix(weights, found.source, found.target, title=f"cross-attention, {name}")


def check_alignment_choice(found: Alignment, layer: int | None, head: int | None) -> None:
    layers, number = found.weights.shape[:2]
    if layer is not None and not 1 <= layer <= layers:
        raise UserError(f"--layer {layer}: the decoder has layers 1 to {layers}")
    if head is not None and not 1 <= head <= number:
        raise UserError(f"--head {head}: a layer has heads 1 to {number}")
    if head is not None and layer is None:
        raise UserError(f"--head {head} of which layer? add --layer 1 to {layers}")
