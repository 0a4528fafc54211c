"""The tree of a beam search: kept, ended and pruned hypotheses of each step with log-probabilities, and final scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.labels import label

KEPT, ENDED, PRUNED = "kept", "ended", "pruned"
ROW, BETWEEN, PAGE_WIDTH = 0.2, 0.32, 7.0  # inches: a hypothesis, between bands, the width after which a band ends


@dataclass(frozen=True)
class BeamNode:
    """One hypothesis; `parent` is the index of the node that it extends, -1 the start."""

    parent: int
    step: int
    """Counted from 1."""
    word: str
    log_p: float
    fate: str
    """KEPT, ENDED or PRUNED."""
    score: float | None = None
    """Log-probability over length penalty, of an ended hypothesis."""
    best: bool = False
    """Whether it is a prefix of the output."""


@style.house_style()
def beam_tree_figure(nodes: Sequence[BeamNode], *, title: str | None = None, note: str = "") -> Figure:
    """Draw steps across and hypotheses down, each beside or below the one that it extends; the output in bold.

    Steps that do not fit across a page go on in a band below, which begins with the hypotheses that it extends."""
    rows, labels = tree_rows(nodes), [node_label(node) for node in nodes]
    lengths = style.text_widths(labels, style.SMALL) * np.array([1.1 if node.best else 1.0 for node in nodes])
    bands = step_bands(nodes, lengths)
    width = max(2 * style.MARGIN + max(sum(band.values()) for band in bands), 4.0)
    heights = [(1 + max(row for node, row in zip(nodes, rows) if node.step in band)) * ROW for band in bands]
    below = style.wrap_text(note, style.SMALL, width - 2 * style.MARGIN) if note else ""
    body = sum(heights) + BETWEEN * (len(bands) - 1)
    figure, top = style.titled_figure(title, width, body + (0.16 * (below.count("\n") + 1) + 0.06 if below else 0), gap=0.14)
    for band, height in zip(bands, heights):
        axes = style.axes_at(figure, style.MARGIN, top, width - 2 * style.MARGIN, height)
        axes.set(xlim=(0, width - 2 * style.MARGIN), ylim=(height / ROW - 0.5, -0.5))
        axes.set_axis_off()
        draw_band(axes, nodes, rows, lengths, band)
        top += height + BETWEEN
    if below:
        bottom = figure.get_size_inches()[1] - style.MARGIN
        style.draw_text(figure, style.MARGIN, bottom, below, fontsize=style.SMALL, color=style.theme().muted, va="bottom")
    return figure


def step_bands(nodes: Sequence[BeamNode], lengths: np.ndarray) -> list[dict[int, float]]:
    """Return the steps of each band with the widths of their columns. A band begins with the step before it; the first with the
    start, step 0."""
    columns = {0: 0.35}
    for node, length in zip(nodes, lengths):
        columns[node.step] = max(columns.get(node.step, 0.0), float(length) + 0.42)
    bands = [{0: columns[0]}]
    for step in range(1, len(columns)):
        if len(bands[-1]) > 1 and sum(bands[-1].values()) + columns[step] > PAGE_WIDTH:
            bands.append({step - 1: columns[step - 1]})
        bands[-1][step] = columns[step]
    return bands


def draw_band(
    axes: Axes, nodes: Sequence[BeamNode], rows: Sequence[int], lengths: np.ndarray, columns: Mapping[int, float]
) -> None:
    """Draw the steps of one band. Of the first, which the band above has, only the hypotheses that are extended."""
    first, left, edge = min(columns), dict[int, float](), 0.0
    for step, wide in columns.items():
        left[step], edge = edge, edge + wide
    extended = {node.parent for node in nodes if node.step == first + 1}
    root = min(rows)
    if first == 0:
        axes.plot(0.12, root, marker="o", markersize=4, color=style.theme().text)
    for index, (node, row) in enumerate(zip(nodes, rows)):
        if node.step not in columns or (node.step == first and index not in extended):
            continue
        x, pruned, repeated = left[node.step] + 0.1, node.fate == PRUNED, node.step == first
        if not repeated:
            start = left[node.step - 1] + float(lengths[node.parent]) + 0.22 if node.parent >= 0 else 0.12
            before = root if node.parent < 0 else rows[node.parent]
            axes.add_collection(
                LineCollection(
                    [[(start, before), (x - 0.2, before), (x - 0.1, row), (x - 0.04, row)]],
                    colors=[style.theme().series[0] if node.best else style.theme().faint],
                    linewidths=1.8 if node.best else 0.9,
                    linestyles=(0, (2, 2)) if pruned else "-",
                    zorder=2 if node.best else 1,
                )
            )
        axes.text(
            x,
            row,
            node_label(node),
            fontsize=style.SMALL,
            va="center_baseline",
            parse_math=False,
            color=style.theme().series[0] if node.best else style.theme().muted if pruned or repeated else style.theme().text,
            fontweight="bold" if node.best else "normal",
            alpha=0.75 if pruned or repeated else 1.0,
        )


def tree_rows(nodes: Sequence[BeamNode]) -> list[int]:
    """Return a row for each node. In every step, nodes are ordered by their parents, the output first among siblings; a node
    stands beside its parent where that row is free, else below."""
    rows = [0] * len(nodes)
    for step in range(1, max(node.step for node in nodes) + 1):
        free = 0
        here = [index for index, node in enumerate(nodes) if node.step == step]
        above = {index: rows[nodes[index].parent] if nodes[index].parent >= 0 else 0 for index in here}
        for index in sorted(here, key=lambda index: (above[index], not nodes[index].best)):
            rows[index] = max(free, above[index])
            free = rows[index] + 1
    return rows


def node_label(node: BeamNode) -> str:
    score = "" if node.score is None else f" = {node.score:.2f}"
    return f"{label(node.word, 18)} {node.log_p:.2f}{score}"


def beam_tree_text(nodes: Sequence[BeamNode]) -> str:
    """Return the tree for a terminal, indented by step; ► is the output, × pruned, ■ ended."""
    lines, children = list[str](), dict[int, list[int]]()
    for index, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(index)
    stack = children.get(-1, [])[::-1]
    while stack:
        index = stack.pop()
        node = nodes[index]
        sign = {KEPT: "·", ENDED: "■", PRUNED: "×"}[node.fate] if not node.best else "►"
        lines.append("  " * (node.step - 1) + f"{sign} {node_label(node)}")
        stack += children.get(index, [])[::-1]
    return "\n".join(lines)
