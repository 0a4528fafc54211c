"""Scenes: the shapes of an image, their positions, and the background."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

T = TypeVar("T")
Box = tuple[int, int, int, int]
"""x0, y0, x1, y1 in pixels from the top left; the column x1 and the row y1 are the first ones outside."""

KINDS = ("circle", "square", "triangle", "cross", "star", "ring")
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
TEXTURES = ("plain", "striped", "dotted")
SIZES = {"small": (9,), "large": (13, 14)}  # widths in an image 32 pixels wide
HELD_OUT = frozenset(
    {
        ("red", "star"),
        ("orange", "circle"),
        ("yellow", "ring"),
        ("green", "triangle"),
        ("cyan", "cross"),
        ("blue", "square"),
        ("purple", "ring"),
        ("pink", "star"),
    }
)
"""The combinations of colour and kind, of 48, that no training image has: every colour once, every kind at least once."""

OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
RELATIONS = tuple(OPPOSITE)
NO_NOISE = 0.5  # probability of a background without noise
SHADES = (160, 245)  # of grey: the colours, and their dark stripes and dots, contrast with all of them
REPEAT = 0.3  # probability that a shape after the first repeats the colour and kind of another; half of these repeat everything
ATTEMPTS = 10  # to place a shape, and then to place all of them again


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape. Its repr is hashed to assign the split, so neither the class nor its fields may be renamed."""

    kind: str
    colour: str
    texture: str
    size: str
    box: Box

    @property
    def combination(self) -> tuple[str, str]:
        """Colour and kind."""
        return self.colour, self.kind


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that an image shows."""

    size: int  # width and height in pixels
    shapes: tuple[Shape, ...]  # from top to bottom, then from left to right
    shade: int  # grey level of the background
    noise: int  # seed of the background noise; 0 is none

    @property
    def main(self) -> Shape:
        """The shape that labels the image."""
        return main_shape(self.shapes)

    @property
    def novel(self) -> bool:
        """Whether it contains a held-out combination."""
        return any(shape.combination in HELD_OUT for shape in self.shapes)


def main_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the only shape, or the largest; ties go to the topmost, then to the leftmost."""
    return next((shape for shape in shapes if shape.size == "large"), shapes[0])


def doubled_centre(shape: Shape) -> tuple[int, int]:
    """Return twice the centre, which is an integer."""
    x0, y0, x1, y1 = shape.box
    return x0 + x1, y0 + y1


def has_relation(one: Shape, relation: str, other: Shape, margin: float) -> bool:
    """Return whether the centres are in this relation, at least `margin` pixels apart in its direction."""
    if relation in ("below", "right of"):
        one, other = other, one
    start = 1 if relation in ("above", "below") else 0  # of y or x in a box
    gap = other.box[start] + other.box[start + 2] - one.box[start] - one.box[start + 2]  # of doubled centres
    return gap >= 2 * margin


def sample_scene(rng: Random, size: int, shapes: tuple[int, int], held_out: bool = False) -> Scene:
    """Return a scene whose number of shapes is within these bounds.

    It has no held-out combination; or, with `held_out`, its main shape has one and every other shape has one with
    probability 0.5.
    """
    number = shapes[0] + int(rng.random() * (shapes[1] - shapes[0] + 1))
    placed: tuple[Shape, ...] = ()
    while not placed:
        looks = _sample_looks(rng, number, held_out)
        placed = next(filter(None, (_place_shapes(rng, size, looks) for _ in range(ATTEMPTS))), ())
        if held_out and placed and main_shape(placed).combination not in HELD_OUT:
            placed = ()
    shade = SHADES[0] + int(rng.random() * (SHADES[1] - SHADES[0] + 1))
    return Scene(size, placed, shade, noise=0 if rng.random() < NO_NOISE else 1 + int(rng.random() * 2**31))


def _sample_looks(rng: Random, number: int, held_out: bool) -> list[tuple[str, str, str, str]]:
    """Return kind, colour, texture and size of each shape."""
    found: list[tuple[str, str, str, str]] = []
    for _ in range(number):
        kind, colour = _sample_combination(rng, held_out)
        texture = choose(rng, TEXTURES)
        size = choose(rng, tuple(SIZES))
        if found and rng.random() < REPEAT:
            repeated = choose(rng, found)
            kind, colour = repeated[:2]
            if rng.random() < 0.5:
                texture, size = repeated[2:]
        found.append((kind, colour, texture, size))
    return found


def _sample_combination(rng: Random, held_out: bool) -> tuple[str, str]:
    """Return a kind and a colour that may occur together; with `held_out`, a held-out combination with probability 0.5."""
    novel = held_out and rng.random() < 0.5
    while True:
        kind, colour = choose(rng, KINDS), choose(rng, COLOURS)
        if ((colour, kind) in HELD_OUT) == novel:
            return kind, colour


def _place_shapes(rng: Random, size: int, looks: list[tuple[str, str, str, str]]) -> tuple[Shape, ...]:
    """Return the shapes in separate boxes away from the edges, from top to bottom; empty if one of them finds no room."""
    gap = max(1, size // 32)
    placed: list[Shape] = []
    for kind, colour, texture, name in sorted(looks, key=lambda look: look[3]):  # large ones first
        width = (choose(rng, SIZES[name]) * size + 16) // 32
        room = size - width - 2 * gap + 1
        for _ in range(ATTEMPTS):
            x, y = gap + int(rng.random() * room), gap + int(rng.random() * room)
            box = (x, y, x + width, y + width)
            if not any(boxes_overlap(box, other.box, gap) for other in placed):
                placed.append(Shape(kind, colour, texture, name, box))
                break
        else:
            return ()
    return tuple(sorted(placed, key=lambda shape: doubled_centre(shape)[::-1]))


def boxes_overlap(one: Box, other: Box, gap: int) -> bool:
    """Return whether there are fewer than `gap` pixels between two boxes."""
    return one[0] < other[2] + gap and other[0] < one[2] + gap and one[1] < other[3] + gap and other[1] < one[3] + gap


def choose(rng: Random, options: Sequence[T]) -> T:
    """Return one of the options; of all its methods, Python guarantees the same sequence across versions only for random()."""
    return options[int(rng.random() * len(options))]
