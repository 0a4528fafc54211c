"""Draw what a run attended to."""

import shutil
from pathlib import Path

from regard.errors import Mistake
from regard.pictures.alignment import alignment, heads
from regard.pictures.style import save
from regard.pictures.terminal import alignment_text
from regard.run.translate import Alignment, Translator


def show_alignment(run: Translator, text: str, *, out: Path | None = None, terminal: bool = False, layer: int | None = None,
                   head: int | None = None, all_heads: bool = False) -> str:
    """Translate a text and draw its cross-attention; layers and heads count from 1. What was said, and where the picture is."""
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
