"""Scene recognition by template matching: which shapes an image shows, and whether a caption is true of it. Nothing is learned.

Every possible shape is matched at every position: by how much does it reduce the squared error of the background alone? The
shape with the largest reduction is present if that is a fair fraction of the reduction in a perfect image; then the best one
that does not overlap it, and so on. For images that this world rendered, the result is the scene itself; for others, the
nearest scene.
"""

from functools import cache

import numpy as np

from regard.worlds.shapes.parse import parse_caption
from regard.worlds.shapes.render import FULL_COVERAGE, sprite
from regard.worlds.shapes.scene import COLOURS, KINDS, SIZES, TEXTURES, Box, Scene, Shape, boxes_overlap, doubled_centre
from regard.worlds.shapes.statement import is_true

MIN_GAIN = 0.3  # as a fraction of a perfect shape's error reduction
GREY = 30  # a pixel whose channels differ by less belongs to the background
MAX_SHAPES = 4
Looks = tuple[str, str, str, str]
"""Kind, colour, texture, size."""


def recognise_scene(pixels: np.ndarray) -> Scene:
    """Return the scene that an image (size, size, 3) shows."""
    size, canvas = len(pixels), pixels.astype(np.float32)
    shade = _background_shade(canvas)
    found: list[tuple[float, Looks, Box]] = []
    for name, width in ((name, (width * size + 16) // 32) for name, widths in SIZES.items() for width in widths):
        found += _candidates(canvas - shade, shade, name, width)
    shapes: list[Shape] = []
    for _, (kind, colour, texture, name), box in sorted(found, key=lambda candidate: -candidate[0]):
        if len(shapes) < MAX_SHAPES and not any(boxes_overlap(box, shape.box, 0) for shape in shapes):
            shapes.append(Shape(kind, colour, texture, name, box))
    return Scene(size, tuple(sorted(shapes, key=lambda shape: doubled_centre(shape)[::-1])), round(shade), 0)


def image_satisfies(pixels: np.ndarray, caption: str) -> bool | None:
    """Return whether a caption is true of what an image shows; None if it is not a caption of this world."""
    statement = parse_caption(caption)
    return None if statement is None else is_true(statement, recognise_scene(pixels))


def _background_shade(canvas: np.ndarray) -> float:
    grey = canvas[np.ptp(canvas, axis=-1) < GREY].mean(-1)
    return float(np.median(grey[grey >= grey.max() / 2])) if len(grey) else float(canvas.mean())


def _candidates(canvas: np.ndarray, shade: float, name: str, width: int) -> list[tuple[float, Looks, Box]]:
    """Return, for each position with a match, the best shape of this width and its gain: Σp² - Σ(p - s)² = 2 Σp·s - Σs², all
    relative to the background."""
    names, paint, clear = _sprites(width, len(canvas))
    shapes = paint + shade * clear - shade  # (L, width² · 3)
    windows = np.lib.stride_tricks.sliding_window_view(canvas, (width, width), axis=(0, 1))  # (y, x, 3, width, width)
    patches = windows.transpose(0, 1, 3, 4, 2).reshape(-1, shapes.shape[1])  # (P, width² · 3)
    perfect = np.square(shapes).sum(1)  # (L,)
    gain = 2 * patches @ shapes.T - perfect  # (P, L)
    best = gain.argmax(1)
    across = windows.shape[1]
    return [
        (float(gain[p, i]), (*names[i], name), (p % across, p // across, p % across + width, p // across + width))
        for p, i in enumerate(best.tolist())
        if gain[p, i] >= MIN_GAIN * perfect[i]
    ]


@cache
def _sprites(width: int, size: int) -> tuple[list[tuple[str, str, str]], np.ndarray, np.ndarray]:
    """Return every look of this width: what it paints (L, width² · 3), and how much of the background it leaves (the same
    shape)."""
    names = [(kind, colour, texture) for kind in KINDS for colour in COLOURS for texture in TEXTURES]
    found = [sprite(*look, width, size) for look in names]
    paint = np.stack([paint.ravel() for paint, _ in found]).astype(np.float32) / FULL_COVERAGE
    clear = np.stack([np.repeat(clear, 3, axis=2).ravel() for _, clear in found]).astype(np.float32) / FULL_COVERAGE
    return names, paint, clear
