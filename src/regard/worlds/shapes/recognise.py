"""Pixels read back: which shapes a picture shows, and whether it shows what a caption says. No learning is in it.

Every shape there can be is held against every place: how much of the squared error of the background alone does it take away?
The one that takes away most is there if that is a fair part of what it would in a perfect picture; then the best that does not
touch it, and so on. Of pictures that the world drew itself it gives back the scene; of others the nearest one.
"""

from functools import cache

import numpy as np

from regard.worlds.shapes.parse import parse_caption
from regard.worlds.shapes.render import FULL_COVERAGE, sprite
from regard.worlds.shapes.scene import COLOURS, KINDS, SIZES, TEXTURES, Box, Scene, Shape, boxes_overlap, doubled_centre
from regard.worlds.shapes.statement import is_true

FAIR = 0.3  # of a perfect shape's gain
GREY = 30  # a pixel whose colours are so alike is one of the background
MOST = 4  # shapes in a picture
Looks = tuple[str, str, str, str]
"""Kind, colour, texture, size."""


def recognise_scene(pixels: np.ndarray) -> Scene:
    """The scene that a picture (size, size, 3) shows."""
    size, canvas = len(pixels), pixels.astype(np.float32)
    shade = background(canvas)
    found: list[tuple[float, Looks, Box]] = []
    for name, width in ((name, (width * size + 16) // 32) for name, widths in SIZES.items() for width in widths):
        found += candidates(canvas - shade, shade, name, width)
    shapes: list[Shape] = []
    for _, (kind, colour, texture, name), box in sorted(found, key=lambda one: -one[0]):
        if len(shapes) < MOST and not any(boxes_overlap(box, shape.box, 0) for shape in shapes):
            shapes.append(Shape(kind, colour, texture, name, box))
    return Scene(size, tuple(sorted(shapes, key=lambda shape: doubled_centre(shape)[::-1])), round(shade), 0)


def image_satisfies(pixels: np.ndarray, caption: str) -> bool | None:
    """Whether a caption is true of what a picture shows; None if it is no caption of this world."""
    statement = parse_caption(caption)
    return None if statement is None else is_true(statement, recognise_scene(pixels))


def background(canvas: np.ndarray) -> float:
    """The shade of grey behind everything."""
    grey = canvas[np.ptp(canvas, axis=-1) < GREY].mean(-1)
    return float(np.median(grey[grey >= grey.max() / 2])) if len(grey) else float(canvas.mean())


def candidates(canvas: np.ndarray, shade: float, name: str, width: int) -> list[tuple[float, Looks, Box]]:
    """In each place where one is there, the best shape of this width, and its gain: Σp² - Σ(p - s)² = 2 Σp·s - Σs², all
    without the background."""
    names, paint, clear = sprites(width, len(canvas))
    shapes = paint + shade * clear - shade  # (L, width² · 3)
    windows = np.lib.stride_tricks.sliding_window_view(canvas, (width, width), axis=(0, 1))  # (y, x, 3, width, width)
    places = windows.transpose(0, 1, 3, 4, 2).reshape(-1, shapes.shape[1])  # (P, width² · 3)
    whole = np.square(shapes).sum(1)  # (L,) of a perfect picture
    gain = 2 * places @ shapes.T - whole  # (P, L)
    best = gain.argmax(1)
    across = windows.shape[1]
    return [
        (
            float(gain[place, one]),
            (*names[one], name),
            (place % across, place // across, place % across + width, place // across + width),
        )
        for place, one in enumerate(best.tolist())
        if gain[place, one] >= FAIR * whole[one]
    ]


@cache
def sprites(width: int, size: int) -> tuple[list[tuple[str, str, str]], np.ndarray, np.ndarray]:
    """Every look of this width: what it paints (L, width² · 3), and how much of the background it leaves (the same)."""
    names = [(kind, colour, texture) for kind in KINDS for colour in COLOURS for texture in TEXTURES]
    found = [sprite(*look, width, size) for look in names]
    paint = np.stack([paint.ravel() for paint, _ in found]).astype(np.float32) / FULL_COVERAGE
    clear = np.stack([np.repeat(clear, 3, axis=2).ravel() for _, clear in found]).astype(np.float32) / FULL_COVERAGE
    return names, paint, clear
