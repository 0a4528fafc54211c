"""Draw what a run attended to, or what a record says that it did."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from regard.attention.positions import Learned, Sinusoidal, sinusoids
from regard.attention.record_file import Record
from regard.batches.image_store import decoded
from regard.errors import Mistake
from regard.show.figures.head_entropy import spread
from regard.show.figures.head_lines import lines
from regard.show.figures.html_report import Report, page
from regard.show.figures.html_view import views
from regard.show.figures.labels import clean, shorten
from regard.show.figures.matrix import alignment, heads
from regard.show.figures.overlay import Shown, looks
from regard.show.figures.position_waves import positions
from regard.show.figures.style import format_of, save, svg_text, write
from regard.show.figures.terminal import alignment_text, entropies_text
from regard.show.figures.thumbnails import model as thumbnails
from regard.show.figures.tiles import Maps
from regard.show.recording import attended, groups
from regard.tasks.base import Run
from regard.tasks.caption import CaptionRun, Look
from regard.tasks.contrastive import ContrastRun, is_picture
from regard.tasks.images import PictureRun, as_piece
from regard.tasks.translate import Alignment, Translator

VIEWS = ("matrix", "heads", "model", "token", "entropy", "neurons", "steps", "beam")
LIVE = ("neurons", "steps", "beam")
"""Those that a record of weights is not enough for."""
KINDS = {"cross": "cross-attention", "encoder": "self-attention of the encoder", "decoder": "self-attention of the decoder"}


@dataclass(frozen=True)
class Choice:
    """What of a record is wanted; layers and heads as they are called, counted from 1."""

    view: str = "matrix"
    kind: str | None = None
    layer: int | None = None
    head: int | None = None
    token: str | None = None

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise Mistake(f"--view {self.view}: should be one of {', '.join(VIEWS)}")
        if self.kind is not None and self.kind not in KINDS:
            raise Mistake(f"--kind {self.kind}: should be one of {', '.join(KINDS)}")
        if self.view == "token" and self.token is None:
            raise Mistake("--view token: of which one? add --token WORD, or its number counted from 1")
        if self.view in ("matrix", "heads") and self.head is not None and self.layer is None:
            raise Mistake(f"--head {self.head} of which layer? add --layer 1, 2 …")


def check_place(out: Path | None, elsewhere: bool, *, pages: bool) -> None:
    """Whether a picture has somewhere to go, before anything is read."""
    if out is None and not elsewhere:
        raise Mistake("say where the picture goes: --out a.svg (or .png, .pdf), or --terminal")
    if out is not None:
        format_of(out, pages=pages)


def read_record(path: Path) -> Record:
    return Record.read(path)


def show(
    what: Run | Record,
    text: str | None = None,
    choice: Choice | None = None,
    *,
    out: Path | None = None,
    terminal: bool = False,
    keep: Path | None = None,
) -> str:
    """A view of a run that reads a text, or of a record: as a picture, a page, in the terminal, kept as a record. In words, what
    was drawn."""
    choice = choice or Choice()
    record = attended(what, text or "") if isinstance(what, Run) else what
    if keep is not None:
        record.write(keep)
    found = groups(record)
    number = chosen_group(found, choice.kind)
    picked = found[number]
    layer, head, token = numbers_of(picked, choice)
    title = shorten(clean(text), 90) if text else picked.name
    said = (
        f"{picked.name}: {named(len(picked.layers), 'layer')} of {named(len(picked.heads), 'head')}, "
        f"{len(picked.queries)} × {len(picked.keys)}" + (f" ({picked.note})" if picked.note else "")
    )
    if out is not None:
        if out.suffix.lower() == ".html" and choice.view != "entropy":
            sharp = sharpest(picked) if layer is None else layer
            write(out, views(found, view=choice.view, layer=sharp, head=head, token=token, group=number, title=title).encode())
        else:
            save_any(figure_of(picked, choice.view, layer, head, token), out, title)
    return said + ("\n\n" + in_terminal(picked, choice.view, layer, head, token) if terminal else "")


def named(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def save_any(figure: Figure, out: Path, title: str) -> None:
    """A picture, or a page around one."""
    if out.suffix.lower() == ".html":
        write(out, page(Report(title, "", figures=[("", svg_text(figure))])).encode())
    else:
        save(figure, out)


def chosen_group(found: list[Maps], kind: str | None) -> int:
    names = [one.name for one in found]
    if kind is None:
        return 0
    if KINDS[kind] not in names:
        raise Mistake(f"--kind {kind}: there is {', '.join(names)} here")
    return names.index(KINDS[kind])


def numbers_of(found: Maps, choice: Choice) -> tuple[int | None, int | None, int | None]:
    """Layer, head and token, counted from 0."""
    picked = []
    for option, names, value in (("layer", found.layers, choice.layer), ("head", found.heads, choice.head)):
        if value is not None and str(value) not in names:
            raise Mistake(f"--{option} {value}: {found.name} has {', '.join(names)}")
        picked.append(None if value is None else list(names).index(str(value)))
    return picked[0], picked[1], None if choice.token is None else token_number(found.queries, choice.token, found.tile)


def token_number(words: Sequence[str], token: str, tile: int = 1) -> int:
    """By what it says, or else by its number, counted from 1; where words are of tiles, the one that it is in."""
    if token in words:
        return list(words).index(token)
    if token.isdigit() and 1 <= int(token) <= len(words) * tile:
        return min((int(token) - 1) // tile, len(words) - 1)
    shown = " ".join(words[:12]) + (" …" if len(words) > 12 else "")
    raise Mistake(f"--token {token}: is none of {shown}")


def sharpest(found: Maps) -> int:
    """The layer whose heads, taken together, look with the lowest entropy."""
    mean = found.weights.mean(1)  # (L, T, S)
    return int((mean * np.log(np.maximum(mean, 1e-12))).sum(-1).mean(-1).argmax())


def matrix_of(
    found: Maps, view: str, layer: int | None, head: int | None, token: int | None
) -> tuple[np.ndarray, list[str], str]:
    """One matrix (rows, S), the names of its rows, and its own."""
    if view == "token":
        assert token is not None
        asked = f"what {found.queries[token]} looks at"
        if layer is not None and head is None:
            rows = [f"head {name}" for name in found.heads]
            return found.weights[layer, :, token], rows, f"{asked}, layer {found.layers[layer]}"
        weights = found.weights[:, :, token].mean(1) if head is None else found.weights[:, head, token]
        return weights, [f"layer {name}" for name in found.layers], f"{asked}, " + whose(found, head)
    chosen = sharpest(found) if layer is None else layer
    weights = found.weights[chosen].mean(0) if head is None else found.weights[chosen, head]
    return weights, list(found.queries), f"{found.name}, layer {found.layers[chosen]}, " + whose(found, head)


def whose(found: Maps, head: int | None) -> str:
    single = 0 if len(found.heads) == 1 else head
    return f"mean of {named(len(found.heads), 'head')}" if single is None else f"head {found.heads[single]}"


def figure_of(found: Maps, view: str, layer: int | None, head: int | None, token: int | None) -> Figure:
    note = f" ({found.note})" if found.note else ""
    if view == "model":
        return thumbnails(found, title=found.name + note)
    if view == "entropy":
        return spread(found, title=f"{found.name}: entropy and distance of heads{note}")
    if view == "heads":
        chosen = sharpest(found) if layer is None else layer
        return lines(
            found.weights[chosen],
            found.queries,
            found.keys,
            found.heads,
            chosen=None if head is None else [head],
            only=token,
            title=f"{found.name}, layer {found.layers[chosen]}{note}",
            darkest=found.darkest,
        )
    weights, rows, name = matrix_of(found, view, layer, head, token)
    return alignment(weights, found.keys, rows, title=name + note, darkest=found.darkest)


def in_terminal(found: Maps, view: str, layer: int | None, head: int | None, token: int | None) -> str:
    if view in ("model", "entropy"):
        return entropies_text(found)
    weights, rows, name = matrix_of(found, "matrix" if view == "heads" else view, layer, head, token)
    width = shutil.get_terminal_size((100, 40)).columns
    return alignment_text(weights / found.darkest, found.keys, rows, width) + f"\n\n{name}"


def reads_picture(run: Run, given: str) -> bool:
    """Whether it reads a picture when it is given this, and so can show where in it something was looked at."""
    return (
        isinstance(run, CaptionRun)
        or (isinstance(run, ContrastRun) and is_picture(given))
        or (isinstance(run, PictureRun) and run.recipe.model.kind == "vit")
    )


def show_picture(run: PictureRun, given: str, choice: Choice, out: Path) -> str:
    """A picture again for each layer, bright where what it is judged by looked; of a captioner for each word, from the layer that
    looks most sharply. Of one head; or, with --heads, of each head of a layer. In words, what was drawn."""
    (look,) = run.look([given]) if isinstance(run, CaptionRun) else [look_of(run, given)]
    layers, heads = look.heads.shape[:2]
    for option, value, most in (("layer", choice.layer, layers), ("head", choice.head, heads)):
        if value is not None and value > most:
            raise Mistake(f"--{option} {value}: there are 1 to {most}")
    pixels = decoded([as_piece(given)], run.frame)[0]
    if isinstance(run, CaptionRun):
        shown = of_words(look, pixels, choice)
    elif choice.view == "heads":
        layer = layers if choice.layer is None else choice.layer
        shown = [Shown(pixels, [f"head {head + 1}" for head in range(heads)], look.heads[layer - 1, :, 0], f"layer {layer}")]
    else:
        chosen = range(layers) if choice.layer is None else [choice.layer - 1]
        weights = look.heads[:, :, 0].mean(1) if choice.head is None else look.heads[:, choice.head - 1, 0]
        shown = [Shown(pixels, [f"layer {layer + 1}" for layer in chosen], weights[list(chosen)])]
    save(looks(shown), out)
    return (
        " ".join(look.words)
        if isinstance(run, CaptionRun)
        else f"{named(layers, 'layer')} of {named(heads, 'head')}, {run.grid[0]} × {run.grid[1]} patches"
    )


def of_words(look: Look, pixels: np.ndarray, choice: Choice) -> list[Shown]:
    if not look.words:
        raise Mistake("the caption is empty: there is nothing to show")
    layer = None if choice.layer is None else choice.layer - 1
    sharp = Alignment([], look.words, look.heads.reshape(*look.heads.shape[:3], -1)).sharpest() if layer is None else layer
    if choice.view == "heads":
        return [
            Shown(pixels, look.words, weights, f"layer {sharp + 1}, head {head + 1}")
            for head, weights in enumerate(look.heads[sharp])
        ]
    if choice.head is not None:
        return [Shown(pixels, look.words, look.heads[sharp, choice.head - 1])]
    return [Shown(pixels, look.words, look.heads[sharp].mean(0))]


def look_of(run: PictureRun, given: str) -> Look:
    """Where that which a picture is judged by looked: one word, as it were."""
    places = attended(run, given).places.values()
    weights = np.stack([place.weights()[0] for place in places])  # (L, H, T, S)
    asking = weights if run.pooled is None else weights[:, :, list(run.pooled)]
    rows, columns = run.grid
    seen = asking.mean(2, keepdims=True)[..., -rows * columns :]  # marks come first
    heads = seen.reshape(*seen.shape[:3], rows, columns)
    return Look([""], heads.mean((0, 1)), heads)


def show_positions(run: Run | None, out: Path, *, width: int = 128, number: int = 50) -> str:
    """The sinusoids of the 2017 paper, or what a run adds to its embeddings."""
    if run is None:
        table, title = sinusoids(torch.arange(number), width).numpy(), "sinusoidal positions"
    else:
        place = next((module for module in run.model.modules() if isinstance(module, Sinusoidal | Learned)), None)
        if place is None:
            raise Mistake(f"{run.folder} adds no positions to its embeddings; --positions is for sinusoidal and learned ones")
        weights = place.table.weight if isinstance(place, Learned) else place.table
        table, title = weights.detach().float().cpu().numpy()[:number], f"positions of {run.folder.name}"
    save_any(positions(table, title=title), out, title)
    return f"{title}: {table.shape[1]} components of {table.shape[0]} positions"


def show_alignment(
    run: Translator,
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
    check_choice(found, layer, head)
    weights, name = found.view(None if layer is None else layer - 1, None if head is None else head - 1)
    said = [" ".join(found.target)]
    if terminal:
        said += ["", alignment_text(weights, found.source, found.target, shutil.get_terminal_size((100, 40)).columns), "", name]
    if out is not None:
        save(picture(found, layer, head, all_heads), out)
    return "\n".join(said)


def picture(found: Alignment, layer: int | None, head: int | None, all_heads: bool):
    if all_heads:
        chosen = found.sharpest() if layer is None else layer - 1
        return heads(found.weights[chosen], found.source, found.target, title=f"cross-attention, layer {chosen + 1}")
    weights, name = found.view(None if layer is None else layer - 1, None if head is None else head - 1)
    return alignment(weights, found.source, found.target, title=f"cross-attention, {name}")


def check_choice(found: Alignment, layer: int | None, head: int | None) -> None:
    layers, number = found.weights.shape[:2]
    if layer is not None and not 1 <= layer <= layers:
        raise Mistake(f"--layer {layer}: the decoder has layers 1 to {layers}")
    if head is not None and not 1 <= head <= number:
        raise Mistake(f"--head {head}: a layer has heads 1 to {number}")
    if head is not None and layer is None:
        raise Mistake(f"--head {head} of which layer? add --layer 1 to {layers}")
