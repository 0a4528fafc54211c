"""Figures of images: attention over an image word by word, saliency maps by method, contact sheets.

Attention is drawn as the image repeated (after Xu et al. 2015, fig. 2), with the weights in colour over it, all on one scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from regard.show.figures import style
from regard.show.figures.labels import clean, label

ABOVE, BELOW = ((255, 214, 10), (255, 94, 0), (176, 0, 79)), ((120, 220, 255), (0, 150, 230), (0, 60, 180))
"""Colours laid over an image for weights above and below zero, from small to large."""
OPACITY, GREY = 0.85, 0.6
"""Of the strongest colour; how grey the image below is."""
CONTOURS = (0.25, 0.5, 0.75)
"""Parts of the scale at which contour lines are drawn."""
MARGIN = style.MARGIN
TILE, GAP, WORD, LEGEND, ACROSS = 1.15, 0.1, 0.2, 0.3, 8  # inches; tiles in a row
MAP_TILE, MAP_GAP, LINE, NOTE = 1.22, 0.12, 0.17, 0.15  # inches, of saliency maps
SHEET_TILE, SHEET_GAP, CAPTION, HEAD, SHEET_NOTE = 0.8, 0.08, 1.9, 0.25, 0.14  # inches, of contact sheets


def overlay_colours(weights: np.ndarray) -> np.ndarray:
    """Return the colours and opacities (…, 4) in 0..1 laid over an image for weights from -1 to 1: from yellow to red, below zero
    from cyan to blue, nothing at zero (as `overlayColour` of show/web)."""
    size = np.abs(weights).clip(0, 1)
    stops = np.array([0, 0.5, 1])
    ramps = np.where(weights[..., None] < 0, *(along(np.array(ramp) / 255, size, stops) for ramp in (BELOW, ABOVE)))
    return np.concatenate([ramps, (OPACITY * size**0.7)[..., None]], -1)


def along(ramp: np.ndarray, t: np.ndarray, stops: np.ndarray) -> np.ndarray:
    return np.stack([np.interp(t, stops, ramp[:, channel]) for channel in range(3)], -1)


def overlay_weights(pixels: np.ndarray, weights: np.ndarray, *, end: float | None = None, smooth: bool = True) -> np.ndarray:
    """Return the image, half grey, with the weights laid over it in colour: (H, W, 3), (rows, columns) -> (H, W, 3).

    `end` is the weight of the strongest colour, by default the largest. Unless `smooth`, patches have hard edges. No place gets
    darker for having no weight."""
    resized = resize_weights(weights, pixels, smooth)
    resized = resized if weights.min() < 0 else resized.clip(min=0)
    colours = overlay_colours(resized / (end or max(float(np.abs(weights).max()), 1e-12)))
    grey = pixels @ np.array([0.299, 0.587, 0.114])
    base = (1 - GREY) * pixels + GREY * grey[..., None]
    alpha = colours[..., 3:]
    return np.asarray((base * (1 - alpha) + 255 * colours[..., :3] * alpha).round().clip(0, 255).astype(np.uint8))


def resize_weights(weights: np.ndarray, pixels: np.ndarray, smooth: bool = True) -> np.ndarray:
    """Return the weights (rows, columns) of patches as weights of pixels (H, W)."""
    height, width = pixels.shape[:2]
    resampling = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(weights.astype(np.float32)).resize((width, height), resampling), np.float64)


def draw_image(figure: Figure, pixels: np.ndarray, left: float, top: float, width: float, height: float) -> Axes:
    """Draw an image at inches from the left and top edges; return its axes."""
    axes = style.axes_at(figure, left, top, width, height)
    axes.imshow(pixels, interpolation="none", aspect="auto")
    axes.set_axis_off()
    return axes


@dataclass(frozen=True)
class ImageAttention:
    """An image (H, W, 3), words (or layers, heads), and the weights of each (T, rows, columns)."""

    pixels: np.ndarray
    words: Sequence[str]
    weights: np.ndarray
    title: str = ""


@style.house_style()
def image_attention_figure(images: Sequence[ImageAttention], *, absolute: bool = False) -> Figure:
    """Draw each image plain, then once per word with its weights, all on one scale."""
    across = min(ACROSS, 1 + max(len(image.words) for image in images))
    width = 2 * MARGIN + across * (TILE + GAP) - GAP
    titles = [style.wrap_text(image.title, style.BODY, width - 2 * MARGIN) for image in images]
    title_heights = [0.17 * (title.count("\n") + 1) + 0.06 if title else 0.0 for title in titles]
    rows = [-(-(1 + len(image.words)) // across) for image in images]
    row_heights = [tile_height(image.pixels) + WORD + GAP for image in images]
    body = sum(head + number * high for head, number, high in zip(title_heights, rows, row_heights)) + LEGEND
    figure, top = style.titled_figure(None, max(width, 3.2), body)
    end = 1.0 if absolute else style.scale_end(max(float(image.weights.max()) for image in images))
    for image, title, head, number, high in zip(images, titles, title_heights, rows, row_heights):
        if title:
            style.draw_text(figure, MARGIN, top, title, fontsize=style.BODY, fontweight="bold", va="top", linespacing=1.25)
        draw_tiles(figure, image, top + head, high, across, end)
        top += head + number * high
    draw_overlay_legend(figure, top + 0.04, end)
    return figure


def draw_overlay_legend(figure: Figure, top: float, end: float, text: str = "attention weight of a patch") -> None:
    """Draw the colours from 0 to the end of the scale as they look over grey, with numbers."""
    axes = style.axes_at(figure, MARGIN, top, 1.3, 0.1)
    ramp = overlay_colours(np.linspace(0, 1, 128)[None])
    axes.imshow(0.72 * (1 - ramp[..., 3:]) + ramp[..., :3] * ramp[..., 3:], extent=(0, end, 0, 1), aspect="auto")
    axes.set(yticks=[])
    axes.set_xticks([0, end / 2, end], [style.format_weight(tick) for tick in (0, end / 2, end)])
    axes.tick_params(labelsize=style.SMALL - 0.5, length=0, pad=2)
    axes.spines[:].set_visible(False)
    style.draw_text(figure, MARGIN + 1.45, top + 0.05, text, fontsize=style.SMALL, color=style.theme().muted)


def draw_tiles(figure: Figure, image: ImageAttention, top: float, row_height: float, across: int, end: float) -> None:
    assert len(image.words) == len(image.weights), f"{len(image.words)} words, weights {image.weights.shape}"
    contours = style.options().contours
    overlays = [image.pixels if contours else overlay_weights(image.pixels, weights, end=end) for weights in image.weights]
    for number, (tile, word) in enumerate(zip([image.pixels, *overlays], ["", *(label(word, 16) for word in image.words)])):
        row, column = divmod(number, across)
        left = MARGIN + column * (TILE + GAP)
        axes = draw_image(figure, tile, left, top + row * row_height + WORD, TILE, tile_height(image.pixels))
        axes.set_title(word, fontsize=style.SMALL, pad=2.5, color=style.theme().text, parse_math=False)
        if contours and number:
            draw_contours(axes, resize_weights(image.weights[number - 1] / end, image.pixels))


def draw_contours(axes: Axes, weights: np.ndarray) -> None:
    """Draw lines where the weights (H, W) cross quarters of the scale, over an image in the axes, white below their colour."""
    levels = [level for level in CONTOURS if weights.min() < level < weights.max()]
    if levels and min(weights.shape) > 1:
        axes.contour(weights, levels, colors="white", linewidths=2.2)
        axes.contour(weights, levels, colors=overlay_colours(np.array(levels))[:, :3], linewidths=1.1)


def tile_height(pixels: np.ndarray) -> float:
    return float(TILE * pixels.shape[0] / pixels.shape[1])


@dataclass(frozen=True)
class SaliencyRow:
    """The saliency maps (rows, columns) of one output by method, None where a method has none, and a note below each."""

    title: str
    maps: Sequence[np.ndarray | None]
    notes: Sequence[str]


@style.house_style()
def saliency_figure(
    pixels: np.ndarray, methods: Sequence[str], outputs: Sequence[SaliencyRow], *, below: Sequence[str] = (), legend: str = ""
) -> Figure:
    """Draw an image (H, W, 3) and the saliency maps of each output, one row per output; `below` is a note on each method."""
    margin = style.MARGIN

    def write(left: float, top: float, text: str, **settings: Any) -> None:
        style.draw_text(figure, left, top, clean(text, keep="\n"), **settings)

    high = MAP_TILE * pixels.shape[0] / pixels.shape[1]
    width = 2 * margin + (1 + len(methods)) * (MAP_TILE + MAP_GAP) - MAP_GAP
    titles = [style.wrap_text(output.title, style.BODY, width - 2 * margin) for output in outputs]
    words = style.wrap_text(legend, style.SMALL, width - 2 * margin)
    heads = [LINE * (title.count("\n") + 1) + LINE * (number == 0) + 0.06 for number, title in enumerate(titles)]
    row_heights = [high + NOTE * any(output.notes) + MAP_GAP for output in outputs]
    foot = NOTE * (1 + max((text.count("\n") for text in below), default=-1))
    under = 0.14 * (words.count("\n") + 1) + MAP_GAP if legend else 0.0
    height = 2 * margin + sum(heads) + sum(row_heights) + foot + under
    figure, top = Figure(figsize=(width, height)), margin
    centres = [margin + column * (MAP_TILE + MAP_GAP) + MAP_TILE / 2 for column in range(1, len(methods) + 1)]
    for number, (output, title, head) in enumerate(zip(outputs, titles, heads)):
        write(margin, top, title, fontsize=style.BODY, fontweight="bold", va="top", linespacing=1.25)
        top += head
        draw_image(figure, pixels, margin, top, MAP_TILE, high)
        for x, method, values, note in zip(centres, methods, output.maps, output.notes):
            if values is not None:
                draw_image(figure, overlay_weights(pixels, values, smooth=False), x - MAP_TILE / 2, top, MAP_TILE, high)
            if number == 0:
                write(x, top - 0.04, method, ha="center", va="bottom", fontsize=fitting_size(method))
            write(x, top + high + 0.03, note, ha="center", va="top", fontsize=style.SMALL - 1, color=style.theme().muted)
        top += row_heights[number]
    for x, text in zip(centres, below):
        write(x, top - MAP_GAP / 2, text, ha="center", va="top", fontsize=style.SMALL - 1, fontweight="bold", linespacing=1.2)
    write(margin, height - margin, words, va="bottom", fontsize=style.SMALL, color=style.theme().muted, linespacing=1.3)
    return figure


def fitting_size(name: str) -> float:
    """Return the font size at which a name is no wider than a tile."""
    return style.SMALL * min(1.0, MAP_TILE / float(style.text_widths([name], style.SMALL)[0]))


@dataclass(frozen=True)
class ContactRow:
    """A caption and images (H, W, 3), each with an optional note below it."""

    caption: str
    images: Sequence[np.ndarray]
    notes: Sequence[str] = ()


@style.house_style()
def contact_sheet_figure(rows: Sequence[ContactRow], heads: Sequence[str]) -> Figure:
    """Draw a contact sheet: a caption per row and its images beside it, under column titles."""
    height, width = rows[0].images[0].shape[:2]
    tile, note = SHEET_TILE * height / width, SHEET_NOTE * any(any(row.notes) for row in rows)
    across = 2 * MARGIN + CAPTION + max(len(row.images) for row in rows) * (SHEET_TILE + SHEET_GAP)
    down = 2 * MARGIN + HEAD + len(rows) * (tile + note + SHEET_GAP)
    figure = Figure(figsize=(across, down))

    def left(column: int) -> float:
        return MARGIN + CAPTION + SHEET_GAP + column * (SHEET_TILE + SHEET_GAP)

    for column, head in enumerate(heads):
        style.draw_text(
            figure, left(column), MARGIN + HEAD / 2, head, fontsize=style.SMALL, va="center", color=style.theme().text
        )
    for number, row in enumerate(rows):
        top = MARGIN + HEAD + number * (tile + note + SHEET_GAP)
        caption = style.wrap_text(row.caption, style.BODY, CAPTION)
        style.draw_text(figure, MARGIN, top + tile / 2, caption, va="center", fontsize=style.BODY, linespacing=1.2)
        for column, pixels in enumerate(row.images):
            axes = draw_image(figure, pixels, left(column), top, SHEET_TILE, tile)
            if column < len(row.notes):
                axes.text(
                    0.5,
                    -0.03,
                    row.notes[column],
                    transform=axes.transAxes,
                    fontsize=style.SMALL,
                    ha="center",
                    va="top",
                    parse_math=False,
                )
    return figure
