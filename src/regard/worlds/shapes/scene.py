"""What is in a picture: its shapes, where they stand, and what lies behind them."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

Anything = TypeVar("Anything")
Box = tuple[int, int, int, int]
"""x0, y0, x1, y1 in pixels from the top left; the column x1 and the row y1 are the first ones outside."""

KINDS = ("circle", "square", "triangle", "cross", "star", "ring")
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
TEXTURES = ("plain", "striped", "dotted")
SIZES = {"small": (9,), "large": (13, 14)}  # widths, where the picture is 32 wide
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
"""Of the 48 combinations of colour and kind, those that no training picture has: every colour once, every kind at least once."""

OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
RELATIONS = tuple(OPPOSITE)
PLAIN = 0.5  # of the backgrounds have no noise
SHADES = (160, 245)  # of grey: the colours stand out against it, and so does the dark of their stripes and dots
ALIKE = 0.3  # of the shapes after the first have the colour and kind of another, half of them all of it
TRIES = 10  # to find room for a shape, and then again to place all of them anew


@dataclass(frozen=True, slots=True)
class Shape:
    kind: str
    colour: str
    texture: str
    size: str
    box: Box

    @property
    def combination(self) -> tuple[str, str]:
        return self.colour, self.kind


@dataclass(frozen=True, slots=True)
class Scene:
    """All that a picture shows."""

    size: int  # width and height in pixels
    shapes: tuple[Shape, ...]  # from the top to the bottom, then from the left
    shade: int  # of the grey behind them
    noise: int  # the seed of the background's noise; 0 is none

    @property
    def main(self) -> Shape:
        return main_shape(self.shapes)

    @property
    def novel(self) -> bool:
        """Whether it has a held-out combination."""
        return any(shape.combination in HELD_OUT for shape in self.shapes)


def main_shape(shapes: Sequence[Shape]) -> Shape:
    """What a picture is a picture of: its only shape, or the largest; of several as large the topmost, then the leftmost."""
    return next((shape for shape in shapes if shape.size == "large"), shapes[0])


def doubled_centre(shape: Shape) -> tuple[int, int]:
    """Twice the centre, which makes it whole."""
    x0, y0, x1, y1 = shape.box
    return x0 + x1, y0 + y1


def has_relation(one: Shape, relation: str, other: Shape, margin: float) -> bool:
    """Whether the centres lie that way, and at least so many pixels apart in that direction."""
    (x, y), (to_x, to_y) = doubled_centre(one), doubled_centre(other)
    gap = {"above": to_y - y, "below": y - to_y, "left of": to_x - x, "right of": x - to_x}[relation]
    return gap >= 2 * margin


def sample_scene(draws: Random, size: int, shapes: tuple[int, int], held_out: bool = False) -> Scene:
    """A scene with any number of shapes in these bounds. Without the held-out combinations; or with one as the main shape, and
    as any other shape half the time."""
    number = shapes[0] + int(draws.random() * (shapes[1] - shapes[0] + 1))
    placed: tuple[Shape, ...] = ()
    while not placed:
        looked = sample_looks(draws, number, held_out)
        placed = next(filter(None, (place_shapes(draws, size, looked) for _ in range(TRIES))), ())
        if held_out and placed and main_shape(placed).combination not in HELD_OUT:
            placed = ()
    shade = SHADES[0] + int(draws.random() * (SHADES[1] - SHADES[0] + 1))
    return Scene(size, placed, shade, noise=0 if draws.random() < PLAIN else 1 + int(draws.random() * 2**31))


def sample_looks(draws: Random, number: int, held_out: bool) -> list[tuple[str, str, str, str]]:
    """Kind, colour, texture and size of each shape."""
    found: list[tuple[str, str, str, str]] = []
    for _ in range(number):
        kind, colour = sample_combination(draws, held_out)
        texture = choose(draws, TEXTURES)
        size = choose(draws, tuple(SIZES))
        if found and draws.random() < ALIKE:
            alike = choose(draws, found)
            kind, colour = alike[:2]
            if draws.random() < 0.5:
                texture, size = alike[2:]
        found.append((kind, colour, texture, size))
    return found


def sample_combination(draws: Random, held_out: bool) -> tuple[str, str]:
    """A kind and a colour that may go together; where held-out ones are wanted, half of them are."""
    wanted = held_out and draws.random() < 0.5
    while True:
        kind, colour = choose(draws, KINDS), choose(draws, COLOURS)
        if ((colour, kind) in HELD_OUT) == wanted:
            return kind, colour


def place_shapes(draws: Random, size: int, looks: list[tuple[str, str, str, str]]) -> tuple[Shape, ...]:
    """Each shape in a box of its own, apart from the others and from the edges, from the top to the bottom; none at all where
    one finds no room."""
    apart = max(1, size // 32)
    placed: list[Shape] = []
    for kind, colour, texture, name in sorted(looks, key=lambda look: look[3]):  # large ones first
        width = (choose(draws, SIZES[name]) * size + 16) // 32
        room = size - width - 2 * apart + 1
        for _ in range(TRIES):
            x, y = apart + int(draws.random() * room), apart + int(draws.random() * room)
            box = (x, y, x + width, y + width)
            if not any(boxes_overlap(box, other.box, apart) for other in placed):
                placed.append(Shape(kind, colour, texture, name, box))
                break
        else:
            return ()
    return tuple(sorted(placed, key=lambda shape: doubled_centre(shape)[::-1]))


def boxes_overlap(one: Box, other: Box, apart: int) -> bool:
    """Whether there are fewer than so many pixels between two boxes."""
    return one[0] < other[2] + apart and other[0] < one[2] + apart and one[1] < other[3] + apart and other[1] < one[3] + apart


def choose(draws: Random, options: Sequence[Anything]) -> Anything:
    """Any of them; Python promises the same numbers for ever of random() alone."""
    return options[int(draws.random() * len(options))]
