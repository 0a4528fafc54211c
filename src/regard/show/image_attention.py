"""Draw where in an image a run attends: layer by layer, head by head, or word by word of a caption."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np

from regard.batches.image_store import decode_images
from regard.errors import UserError
from regard.scoring.alignment import sharpest_layer
from regard.show.attention import show_attention
from regard.show.figures.figure_files import figure_format, save_figure
from regard.show.figures.image_figures import ImageAttention, image_attention_figure
from regard.show.inline import InlineFigure
from regard.show.recording import model_inputs
from regard.show.selection import ViewSelection, pluralize
from regard.tasks.base import Run
from regard.tasks.caption import CaptionAlignment, CaptionRun
from regard.tasks.contrastive import is_image
from regard.tasks.shared.images import ImageInput, as_image_source, pooled_positions
from regard.tasks.translate import Translation

EVERY_HEAD_VIEWS = ("heads", "head-matrices")


def reads_image(run: Run, given: str) -> bool:
    """Return whether the run reads this input as an image whose attention can be drawn over it."""
    return (
        run.task.explains == "caption"
        or (run.task.explains == "similarity" and is_image(given))
        or (run.task.reads == ("image",) and run.recipe.model.kind in ("vit", "transformers"))
    )


def show_image_attention(run: Run, given: ImageInput, selection: ViewSelection) -> InlineFigure:
    """Draw an image once per layer, in colour where the pooled output attends; for a captioner once per word, from the sharpest
    layer.

    With a head, that head alone; with the view "heads" or "head-matrices", each head of a layer."""
    captions = run.task.explains == "caption"
    attention = cast(CaptionRun, run).align(given) if captions else image_attention(run, given)
    layers, heads = attention.heads.shape[:2]
    for option, value, most in (("layer", selection.layer, layers), ("head", selection.head, heads)):
        if value is not None and value > most:
            raise UserError(f"--{option} {value}: this run has 1 to {most}")
    pixels = run._images.decode([given])[0]
    if captions:
        shown = caption_overlays(attention, pixels, selection)
    elif selection.view in EVERY_HEAD_VIEWS:
        layer = layers if selection.layer is None else selection.layer
        names = [f"head {head + 1}" for head in range(heads)]
        shown = [ImageAttention(pixels, names, attention.heads[layer - 1, :, 0], f"layer {layer}")]
    else:
        chosen = list(range(layers)) if selection.layer is None else [selection.layer - 1]
        weights = attention.heads[:, :, 0].mean(1) if selection.head is None else attention.heads[:, selection.head - 1, 0]
        shown = [ImageAttention(pixels, [f"layer {layer + 1}" for layer in chosen], weights[chosen])]
    rows, columns = attention.heads.shape[-2:]
    size = f"{pluralize(layers, 'layer')} of {pluralize(heads, 'head')}, {rows} × {columns} patches"
    return InlineFigure(
        " ".join(attention.words) if captions else size,
        lambda: image_attention_figure(shown, absolute=selection.scale == "absolute"),
        text=lambda: show_attention(run, given, selection).text(),
    )


def caption_overlays(attention: CaptionAlignment, pixels: np.ndarray, selection: ViewSelection) -> list[ImageAttention]:
    if not attention.words:
        raise UserError("the caption is empty: there is nothing to show")
    heads = attention.heads  # (L, H, T, rows, columns)
    layer = sharpest_layer(heads.reshape(*heads.shape[:3], -1)) if selection.layer is None else selection.layer - 1
    if selection.view in EVERY_HEAD_VIEWS:
        return [
            ImageAttention(pixels, attention.words, weights, f"layer {layer + 1}, head {head + 1}")
            for head, weights in enumerate(heads[layer])
        ]
    weights = heads[layer].mean(0) if selection.head is None else heads[layer, selection.head - 1]
    return [ImageAttention(pixels, attention.words, weights)]


def image_attention(run: Run, given: ImageInput) -> CaptionAlignment:
    """Return the attention of the pooled output to the patches, as that of one word."""
    inputs = model_inputs(run, given)
    rows, columns = cast(dict[str, list[int]], inputs.tokens["text"])["patches"]
    found = [module.weights()[0] for module in inputs.record().modules.values()]
    weights = np.stack([one for one in found if one.shape == found[0].shape])  # (L, H, T, S); without a pooling layer
    if weights.shape[-1] < rows * columns:
        raise UserError(f"{run.folder} does not attend to all patches at once: there is no map of the image; use --view matrix")
    positions = pooled_positions(run)
    pooled = weights if positions is None else weights[:, :, np.array(positions)]
    patches = pooled.mean(2, keepdims=True)[..., -rows * columns :]  # special tokens come first
    heads = patches.reshape(*patches.shape[:3], rows, columns)
    return CaptionAlignment([""], heads.mean((0, 1)), heads)


def draw_caption_attention(run: CaptionRun, images: Sequence[ImageInput], captions: Sequence[Translation], out: Path) -> None:
    """Draw images with the attention of each word of their captions."""
    figure_format(out)
    pixels = decode_images([as_image_source(image) for image in images], run._images.transform)
    tokens = [caption.tokens for caption in captions]
    save_figure(image_attention_figure(caption_attention(run, pixels, tokens, [""] * len(captions))), out)


def caption_attention(
    run: CaptionRun, pixels: np.ndarray, captions: Sequence[list[int]], titles: Sequence[str]
) -> list[ImageAttention]:
    """Return the images with the attention of each word of their captions, given as tokens."""
    found = zip(pixels, run._align_tokens(pixels, captions), titles)
    return [ImageAttention(image, attention.words, attention.weights, title) for image, attention, title in found]
