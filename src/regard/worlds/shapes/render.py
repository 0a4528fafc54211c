"""Rendering of scenes to pixels in integer arithmetic: the same bytes on every machine."""

from functools import cache

import numpy as np

from regard.rng import hash64
from regard.worlds.shapes.scene import Scene

RGB = {
    "red": (228, 34, 40),
    "orange": (255, 130, 10),
    "yellow": (250, 222, 30),
    "green": (30, 168, 64),
    "cyan": (40, 210, 225),
    "blue": (48, 98, 245),
    "purple": (150, 60, 210),
    "pink": (255, 140, 195),
}
SUBPIXELS = 8  # coverage is counted on SUBPIXELS × SUBPIXELS points of a pixel
FULL_COVERAGE = SUBPIXELS * SUBPIXELS
NOISE_AMPLITUDE = 7  # in shades of grey
DARK_DIVISOR = 5  # stripes and dots have a fifth of the colour
# The ten corners of a five-pointed star, from the top clockwise, in thousandths of half its width from the centre of its box.
STAR = (
    (0, -1000),
    (260, -285),
    (1000, -236),
    (420, 246),
    (618, 1000),
    (0, 580),
    (-618, 1000),
    (-420, 246),
    (-1000, -236),
    (-260, -285),
)


def render_scene(scene: Scene) -> np.ndarray:
    """Return an image (size, size, 3), RGB in uint8."""
    canvas = np.full((scene.size, scene.size, 3), scene.shade, np.int16)
    if scene.noise:
        canvas += _background_noise(scene.size, scene.noise)[:, :, None]
    for shape in scene.shapes:
        x0, y0, x1, y1 = shape.box
        paint, clear = sprite(shape.kind, shape.colour, shape.texture, x1 - x0, scene.size)
        under = canvas[y0:y1, x0:x1]
        canvas[y0:y1, x0:x1] = (paint + under * clear) // FULL_COVERAGE
    return canvas.astype(np.uint8)


def _background_noise(size: int, seed: int) -> np.ndarray:
    """Return grey noise (size, size) from -NOISE_AMPLITUDE to NOISE_AMPLITUDE."""
    levels = np.uint64(2 * NOISE_AMPLITUDE + 1)
    return (hash64(seed, np.arange(size * size)) % levels).astype(np.int16).reshape(size, size) - NOISE_AMPLITUDE


@cache
def sprite(kind: str, colour: str, texture: str, width: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a shape's colour × coverage (width, width, 3) and its uncovered part (width, width, 1), in units of
    FULL_COVERAGE."""
    bright = np.array(RGB[colour])
    colours = np.where(texture_mask(texture, width, size)[:, :, None], bright // DARK_DIVISOR, bright)
    covered = pixel_coverage(kind, width)[:, :, None]
    return (colours * covered + FULL_COVERAGE // 2).astype(np.int16), (FULL_COVERAGE - covered).astype(np.int16)


def texture_mask(texture: str, width: int, size: int) -> np.ndarray:
    """Return where a texture is dark: diagonal stripes, or dots in rows."""
    y, x = np.indices((width, width))
    match texture:
        case "striped":
            period = size // 8
            return (x + y) % period >= (period + 1) // 2
        case "dotted":
            period = max(3, 3 * size // 32)
            x, y = (2 * ((axis - width // 2 + period // 2) % period) + 1 - period for axis in (x, y))
            return 6 * (x**2 + y**2) <= period**2
    return np.zeros((width, width), bool)


@cache
def pixel_coverage(kind: str, width: int) -> np.ndarray:
    """Return how much of each pixel a shape covers, up to FULL_COVERAGE; it touches all four sides of its box."""
    half = SUBPIXELS * width
    v, u = 2 * np.indices((half, half)) + 1 - half  # from -half to half, never 0 and never on an edge
    inside = _inside_shape(kind, u, v, half, width)
    coverage: np.ndarray = inside.reshape(width, SUBPIXELS, width, SUBPIXELS).sum((1, 3))
    return coverage


def _inside_shape(kind: str, u: np.ndarray, v: np.ndarray, half: int, width: int) -> np.ndarray:
    distance: np.ndarray = np.square(u) + np.square(v)  # from the centre, squared
    match kind:
        case "circle":
            return distance <= half * half
        case "ring":
            return (distance <= half * half) & (4 * distance >= half * half)
        case "triangle":
            return 2 * abs(u) <= v + half
        case "cross":
            arm = SUBPIXELS * (width - 2 * round(width / 3))  # whole pixels
            return (abs(u) <= arm) | (abs(v) <= arm)
        case "star":
            return _inside_star(u, v, half)
    return np.ones(u.shape, bool)


def _inside_star(u: np.ndarray, v: np.ndarray, half: int) -> np.ndarray:
    """Return the points from which a ray to the right crosses the outline an odd number of times."""
    inside = np.zeros(u.shape, bool)
    for (x, y), (to_x, to_y) in zip(STAR, STAR[1:] + STAR[:1]):
        if y != to_y:
            side = (1000 * u - half * x) * (to_y - y) - (1000 * v - half * y) * (to_x - x)
            crosses = (half * y > 1000 * v) != (half * to_y > 1000 * v)
            inside ^= crosses & ((side < 0) == (to_y > y))
    return inside
