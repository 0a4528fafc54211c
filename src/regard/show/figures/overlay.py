"""Where a captioner looked for each word: the picture again and again, bright where it looked (Xu et al. 2015, fig. 2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from regard.show.figures import style
from regard.show.figures.labels import label
from regard.show.figures.matrix import axes_at

TILE, GAP, MARGIN, WORD, ACROSS = 1.15, 0.1, 0.15, 0.2, 8  # inches; tiles in a row
DIM = 0.22  # of the light is left where nothing is looked at


@dataclass(frozen=True)
class ImageAttention:
    """A picture (H, W, 3), the words of its caption, and the weights of each (T, rows, columns)."""

    pixels: np.ndarray
    words: Sequence[str]
    weights: np.ndarray
    title: str = ""


def image_attention_figure(shown: Sequence[ImageAttention]) -> Figure:
    """Each picture by itself, then once for each word; a title over it, where it has one."""
    with style.house_style():
        across = min(ACROSS, 1 + max(len(one.words) for one in shown))
        width = 2 * MARGIN + across * (TILE + GAP) - GAP
        titles = [style.wrap_text(one.title, style.BODY, width - 2 * MARGIN) for one in shown]
        heads = [0.17 * (title.count("\n") + 1) + 0.06 if title else 0.0 for title in titles]
        rows = [-(-(1 + len(one.words)) // across) for one in shown]
        tall = [tile_height(one.pixels) + WORD + GAP for one in shown]
        height = 2 * MARGIN + sum(head + number * one for head, number, one in zip(heads, rows, tall))
        figure, top = Figure(figsize=(width, height)), MARGIN
        for one, title, head, number, high in zip(shown, titles, heads, rows, tall):
            if title:
                figure.text(
                    MARGIN / width,
                    1 - top / height,
                    title,
                    fontsize=style.BODY,
                    fontweight="bold",
                    va="top",
                    linespacing=1.25,
                    parse_math=False,
                )
            draw_row(figure, one, top + head, high, across)
            top += head + number * high
    return figure


def draw_row(figure: Figure, shown: ImageAttention, top: float, high: float, across: int) -> None:
    assert len(shown.words) == len(shown.weights), f"{len(shown.words)} words, weights {shown.weights.shape}"
    tiles = [shown.pixels, *(overlay_weights(shown.pixels, weights) for weights in shown.weights)]
    for number, (tile, word) in enumerate(zip(tiles, ["", *(label(word, 16) for word in shown.words)])):
        row, column = divmod(number, across)
        axes = axes_at(figure, MARGIN + column * (TILE + GAP), top + row * high + WORD, TILE, tile_height(shown.pixels))
        axes.imshow(tile, interpolation="none", aspect="auto")
        axes.set_axis_off()
        axes.set_title(word, fontsize=style.SMALL, pad=2.5, color=style.TEXT, parse_math=False)


def tile_height(pixels: np.ndarray) -> float:
    return TILE * pixels.shape[0] / pixels.shape[1]


def overlay_weights(pixels: np.ndarray, weights: np.ndarray, *, smooth: bool = True) -> np.ndarray:
    """The picture with as much light as each place has weight, the brightest in full: (H, W, 3), (rows, columns) -> (H, W, 3).
    Not `smooth`, a place has edges."""
    height, width = pixels.shape[:2]
    light = Image.fromarray(weights.astype(np.float32)).resize(
        (width, height), Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    )
    share = np.asarray(light).clip(min=0)
    share = share / max(float(share.max()), 1e-12)
    return (pixels * (DIM + (1 - DIM) * share)[..., None]).round().astype(np.uint8)
