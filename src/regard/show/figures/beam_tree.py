"""The tree of a beam search: what was kept in each step and what was not, with log-probabilities, and scores where it ended."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.labels import label
from regard.show.figures.matrix import MARGIN, axes_at

KEPT, ENDED, PRUNED = "kept", "ended", "pruned"
ROW = 0.2  # inches


@dataclass(frozen=True)
class BeamNode:
    """One continuation; `parent` is its place in the list, -1 the beginning."""

    parent: int
    step: int
    """Counted from 1."""
    word: str
    log_p: float
    fate: str
    score: float | None = None
    """Log-probability over length penalty, of what ended."""
    best: bool = False
    """On the way of the output."""


def beam_tree_figure(nodes: Sequence[BeamNode], *, title: str | None = None, note: str = "") -> Figure:
    """Steps across, hypotheses down, each below the one it goes on from; the output in bold."""
    steps = max(node.step for node in nodes)
    rows = tree_rows(nodes)
    says = [node_label(node) for node in nodes]
    with style.house_style():
        wide = [0.35] + [0.0] * steps
        lengths = style.text_widths(says, style.SMALL)
        for node, length in zip(nodes, lengths):
            wide[node.step] = max(wide[node.step], float(length) * (1.1 if node.best else 1.0) + 0.42)
        left = [sum(wide[:step]) for step in range(steps + 1)]
        width = max(2 * MARGIN + sum(wide), 4.0)
        said = style.wrap_text(title, style.TITLE, width - 2 * MARGIN) if title else ""
        below = style.wrap_text(note, style.SMALL, width - 2 * MARGIN) if note else ""
        top = MARGIN + (0.2 * (said.count("\n") + 1) + 0.14 if said else 0)
        height = top + (max(rows) + 1) * ROW + MARGIN + (0.16 * (below.count("\n") + 1) + 0.06 if below else 0)
        figure = Figure(figsize=(width, height))
        axes = axes_at(figure, MARGIN, top, width - 2 * MARGIN, (max(rows) + 1) * ROW)
        axes.set(xlim=(0, width - 2 * MARGIN), ylim=(max(rows) + 0.5, -0.5))
        axes.set_axis_off()
        root = min(rows)
        axes.plot(0.12, root, marker="o", markersize=4, color=style.TEXT)
        ends = [left[node.step - 1] + float(lengths[node.parent]) + 0.32 if node.parent >= 0 else 0.12 for node in nodes]
        for number, (node, row) in enumerate(zip(nodes, rows)):
            before = root if node.parent < 0 else rows[node.parent]
            x = left[node.step] + 0.1
            colour = style.SERIES[0] if node.best else style.FAINT
            axes.add_collection(
                LineCollection(
                    [[(ends[number], before), (x - 0.2, before), (x - 0.1, row), (x - 0.04, row)]],
                    colors=[colour],
                    linewidths=1.8 if node.best else 0.9,
                    linestyles="-" if node.fate != PRUNED else (0, (2, 2)),
                    zorder=2 if node.best else 1,
                )
            )
            axes.text(
                x,
                row,
                says[number],
                fontsize=style.SMALL,
                va="center_baseline",
                parse_math=False,
                color=style.SERIES[0] if node.best else style.MUTED if node.fate == PRUNED else style.TEXT,
                fontweight="bold" if node.best else "normal",
                alpha=0.75 if node.fate == PRUNED else 1.0,
            )
        if said:
            figure.text(
                MARGIN / width,
                1 - MARGIN / height,
                said,
                fontsize=style.TITLE,
                fontweight="bold",
                va="top",
                linespacing=1.25,
                parse_math=False,
            )
        if below:
            figure.text(
                MARGIN / width, MARGIN / height, below, fontsize=style.SMALL, color=style.MUTED, va="bottom", parse_math=False
            )
    return figure


def tree_rows(nodes: Sequence[BeamNode]) -> list[int]:
    """A row for each node: in every step those that go on from the same one stand together, in the order of what they go on from,
    the output first; and beside it, where there is room."""
    rows = [0] * len(nodes)
    for step in range(1, max(node.step for node in nodes) + 1):
        free = 0
        here = [number for number, node in enumerate(nodes) if node.step == step]
        above = {number: rows[nodes[number].parent] if nodes[number].parent >= 0 else 0 for number in here}
        for number in sorted(here, key=lambda number: (above[number], not nodes[number].best)):
            rows[number] = max(free, above[number])
            free = rows[number] + 1
    return rows


def node_label(node: BeamNode) -> str:
    score = "" if node.score is None else f" = {node.score:.2f}"
    return f"{label(node.word, 18)} {node.log_p:.2f}{score}"


def beam_tree_text(nodes: Sequence[BeamNode]) -> str:
    """The same in plain text, a step further in each column; × is what was not kept, ■ what ended."""
    lines, children = list[str](), dict[int, list[int]]()
    for number, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(number)
    waiting = children.get(-1, [])[::-1]
    while waiting:
        number = waiting.pop()
        node = nodes[number]
        sign = {KEPT: "·", ENDED: "■", PRUNED: "×"}[node.fate] if not node.best else "►"
        lines.append("  " * (node.step - 1) + f"{sign} {node_label(node)}")
        waiting += children.get(number, [])[::-1]
    return "\n".join(lines)
