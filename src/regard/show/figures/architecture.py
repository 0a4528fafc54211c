"""The architecture of a model as a diagram, after Vaswani et al. 2017, fig. 1: stacks side by side, data flows upwards."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from regard.show.figures import style

COLOURS = {
    "embedding": "#f3e3ee",
    "self": "#fbe3d0",
    "cross": "#fbe3d0",
    "feed_forward": "#dbe9f5",
    "norm": "#f3f0d8",
    "output": "#dff0e6",
}
WIDTH, HIGH, GAP, APART = 2.5, 0.42, 0.2, 1.0  # inches: a box, between boxes, between stacks
RAIL, SUM = 0.34, 0.18  # inches: the residual connection beside a block, the sum


@dataclass(frozen=True)
class Box:
    """A part of the model: what it is and the shape of its weights."""

    kind: str
    name: str
    shape: str = ""


@dataclass(frozen=True)
class StackDiagram:
    """One stack: what it reads, the boxes under its layers, the sub-layers of one layer in order, the boxes above them."""

    name: str
    reads: str
    below: Sequence[Box]
    sublayers: Sequence[Box]
    layers: int
    norm_first: bool
    above: Sequence[Box]


@dataclass(frozen=True)
class ModelDiagram:
    """The stacks of a model, the one with the output last, and what it returns."""

    stacks: Sequence[StackDiagram]
    returns: str
    facts: str = ""


@style.house_style()
def architecture_figure(diagram: ModelDiagram, *, title: str | None = None) -> Figure:
    """Draw the stacks from left to right; the encoder's output enters the cross-attention of the decoder."""
    tall = max(stack_height(stack) for stack in diagram.stacks) + 0.34
    column = WIDTH + 2 * RAIL + APART
    width = 2 * style.MARGIN + len(diagram.stacks) * column - APART + 0.5
    figure, top = style.titled_figure(title, max(width, 4.6), tall + 0.4)
    axes = style.axes_at(figure, style.MARGIN, top, max(width, 4.6) - 2 * style.MARGIN, tall)
    axes.set(xlim=(0, max(width, 4.6) - 2 * style.MARGIN), ylim=(0, tall))
    axes.set_axis_off()
    ends: list[tuple[float, float]] = []
    for number, stack in enumerate(diagram.stacks):
        left = 0.45 + RAIL + number * column
        source = ends[-1] if ends else None
        is_last = number == len(diagram.stacks) - 1
        ends.append(draw_stack(axes, stack, left, source, diagram.returns if is_last else ""))
    style.draw_text(figure, style.MARGIN, top + tall + 0.24, diagram.facts, fontsize=style.SMALL, color=style.theme().muted)
    return figure


def stack_height(stack: StackDiagram) -> float:
    """Return the inches that `draw_stack` takes."""
    boxes = len(stack.below) + len(stack.above) + 2 * len(stack.sublayers)
    return 0.28 + boxes * (HIGH + GAP) + len(stack.sublayers) * (GAP + SUM / 2) + 2 * GAP


def draw_stack(
    axes: Axes, stack: StackDiagram, left: float, source: tuple[float, float] | None, returns: str
) -> tuple[float, float]:
    """Draw one stack from the bottom up; return the point where its output leaves it."""
    middle, y = left + WIDTH / 2, 0.28
    axes.text(middle, y - 0.16, stack.reads, ha="center", va="center", fontsize=style.BODY, parse_math=False)
    for box in stack.below:
        y = draw_box(axes, box, left, y)
    y += GAP / 2
    bottom = y
    norm = Box("norm", "norm")
    for sublayer in stack.sublayers:
        start = y
        for box in (norm, sublayer) if stack.norm_first else (sublayer,):
            if box is not norm and box.kind == "cross" and source is not None:
                draw_source(axes, source, left, y + GAP + HIGH / 2)
            y = draw_box(axes, box, left, y)
        y = draw_sum(axes, left, start, y)
        if not stack.norm_first:
            y = draw_box(axes, norm, left, y)
    y += GAP / 2
    frame = FancyBboxPatch((left - RAIL, bottom), WIDTH + 2 * RAIL, y - bottom, boxstyle="round,pad=0,rounding_size=0.1")
    frame.set(facecolor="none", edgecolor=style.theme().muted, linestyle=(0, (4, 3)), linewidth=0.9)
    axes.add_patch(frame)
    axes.text(
        left - RAIL - 0.08,
        (bottom + y) / 2,
        f"{stack.layers} ×",
        ha="right",
        va="center",
        fontsize=style.TITLE,
        fontweight="bold",
    )
    axes.text(
        left + WIDTH + RAIL - 0.06, y - 0.05, stack.name, ha="right", va="top", fontsize=style.SMALL, color=style.theme().muted
    )
    for box in stack.above:
        y = draw_box(axes, box, left, y)
    if returns:
        arrow(axes, (middle, y), (middle, y + GAP))
        axes.text(middle, y + GAP + 0.1, returns, ha="center", va="center", fontsize=style.BODY, parse_math=False)
    return middle, y


def draw_box(axes: Axes, box: Box, left: float, y: float) -> float:
    """Draw a box with an arrow into it; return its upper edge."""
    arrow(axes, (left + WIDTH / 2, y), (left + WIDTH / 2, y + GAP))
    patch = FancyBboxPatch((left, y + GAP), WIDTH, HIGH, boxstyle="round,pad=0,rounding_size=0.06")
    patch.set(facecolor=COLOURS[box.kind], edgecolor=style.theme().text, linewidth=0.8)
    axes.add_patch(patch)
    middle, at = left + WIDTH / 2, y + GAP + HIGH / 2
    axes.text(middle, at + (0.075 if box.shape else 0), box.name, ha="center", va="center", fontsize=style.BODY, parse_math=False)
    axes.text(
        middle,
        at - 0.1,
        box.shape,
        ha="center",
        va="center",
        fontsize=style.SMALL - 1,
        color=style.theme().muted,
        parse_math=False,
    )
    return y + GAP + HIGH


def draw_sum(axes: Axes, left: float, start: float, y: float) -> float:
    """Draw the residual connection around what lies between two heights; return the height above the sum."""
    middle, side, at = left + WIDTH / 2, left - RAIL / 2, y + GAP
    axes.plot([middle, side, side], [start + 0.04, start + 0.04, at], color=style.theme().muted, linewidth=0.9)
    arrow(axes, (side, at), (middle - SUM / 2, at), style.theme().muted)
    arrow(axes, (middle, y), (middle, at - SUM / 2))
    axes.text(middle, at, "+", ha="center", va="center", fontsize=style.BODY, bbox={
        "boxstyle": "circle,pad=0.15", "facecolor": style.theme().paper, "edgecolor": style.theme().text, "linewidth": 0.8
    })  # fmt: skip
    return at + SUM / 2


def draw_source(axes: Axes, source: tuple[float, float], left: float, at: float) -> None:
    """Draw the way from the encoder's output to the keys and values of the decoder."""
    x, y = source
    between = left - RAIL - APART / 2
    axes.plot([x, x, between, between], [y, y + GAP, y + GAP, at], color=style.theme().outline, linewidth=1.1)
    arrow(axes, (between, at), (left, at), style.theme().outline)
    axes.text(left - RAIL - 0.06, at + 0.08, "k, v", ha="right", fontsize=style.SMALL, color=style.theme().outline)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str | None = None) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=7,
            color=colour or style.theme().text,
            linewidth=0.9,
            shrinkA=0,
            shrinkB=0,
        )
    )
