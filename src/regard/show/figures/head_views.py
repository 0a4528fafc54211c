"""Views of many heads: the head view (lines), the model view (thumbnails), and the entropies and distances of heads.

Head view: after Vaswani et al. 2017, figs. 3 to 5, and BertViz (Vig 2019). Entropies and distances: Clark et al. 2019, secs. 3
and 6.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.attention_maps import TINY, AttentionMaps
from regard.show.figures.labels import SHADES, label
from regard.show.figures.matrix import BAR, GAP, draw_cells, draw_colour_bar

MIN_WEIGHT, MAX_LINES = 0.02, 6000
"""Lighter lines are not drawn, and only this many of the heaviest."""
LINE_WIDTH = 2.6  # inches between the two columns of words
THUMBNAIL_GAP = 0.07  # inches


def head_colours(number: int) -> list[str]:
    """Return a colour for each head: the series of the house style; beyond it, hues in two alternating lightnesses."""
    if number <= len(style.SERIES):
        return list(style.SERIES[:number])
    hue = 2 * np.pi * np.arange(number) / number + 0.5
    light = np.where(np.arange(number) % 2, 0.5, 0.66)
    colours = style.from_oklab(np.stack([light, 0.13 * np.cos(hue), 0.13 * np.sin(hue)], axis=1)).clip(0, 1)
    return ["#" + "".join(f"{round(255 * part):02x}" for part in colour) for colour in colours]


@style.house_style()
def head_view(
    weights: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    names: Sequence[str],
    *,
    chosen: Sequence[int] | None = None,
    only: int | None = None,
    title: str | None = None,
    darkest: float = 1.0,
) -> Figure:
    """Draw the heads (H, T, S) of one layer: queries on the left, keys on the right, a line per weight, a colour per head.

    `chosen` restricts the heads, `only` the query."""
    assert weights.shape == (len(names), len(queries), len(keys)), weights.shape
    heads = list(range(len(names))) if chosen is None else list(chosen)
    colours = head_colours(len(names))
    rows = max(len(queries), len(keys))
    row, font = next(size for most, size in ((24, (0.25, 9.5)), (60, (0.19, 8)), (10**9, (0.13, 6.5))) if rows <= most)
    query_labels, key_labels = [label(word, 24) for word in queries], [label(word, 24) for word in keys]
    left, right = (float(style.text_widths(words, font).max()) + GAP for words in (query_labels, key_labels))
    width = max(2 * style.MARGIN + left + LINE_WIDTH + right, 4.2)
    between = width - 2 * style.MARGIN - left - right
    per_line = max(1, int((width - 2 * style.MARGIN) / 0.72))
    legend = -(-len(heads) // per_line) * 0.22
    figure, title_bottom = style.titled_figure(title, width, legend + 0.1 + rows * row)
    top = title_bottom + legend + 0.1
    axes = style.axes_at(figure, style.MARGIN + left, top, between, rows * row)
    axes.set(xlim=(0, 1), ylim=(rows, 0))
    axes.set_axis_off()
    segments, shades = line_segments(weights / darkest, heads, colours, only)
    axes.add_collection(LineCollection(list(segments), colors=shades, linewidths=1.5 if row > 0.15 else 0.9, capstyle="butt"))
    for side, words, offset, align in ((0.0, query_labels, -GAP, "right"), (1.0, key_labels, GAP, "left")):
        for index, word in enumerate(words):
            muted = side == 0 and only is not None and index != only
            axes.text(
                side + offset / between,
                index + 0.5,
                word,
                ha=align,
                va="center_baseline",
                fontsize=font,
                parse_math=False,
                color=style.MUTED if muted else style.TEXT,
                clip_on=False,
            )
    for index, head in enumerate(heads):
        x, y = style.MARGIN + index % per_line * 0.72, top - legend - 0.02 + index // per_line * 0.22
        style.draw_text(figure, x, y, "■", color=colours[head], fontsize=style.BODY)
        style.draw_text(figure, x + 0.15, y, f"head {label(names[head], 8)}", color=style.MUTED, fontsize=style.SMALL)
    return figure


def line_segments(
    weights: np.ndarray, heads: Sequence[int], colours: Sequence[str], only: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends (N, 2, 2) and colours (N, 4) of the heaviest lines, the heaviest last (on top)."""
    shown = weights[list(heads)].copy()  # (H, T, S)
    if only is not None:
        shown[:, np.arange(shown.shape[1]) != only] = 0
    heaviest = np.argsort(shown, axis=None, kind="stable")[-MAX_LINES:]
    head, query, key = np.unravel_index(heaviest[shown.flat[heaviest] >= MIN_WEIGHT], shown.shape)
    ends = np.stack([np.stack([np.zeros(len(query)), query + 0.5], -1), np.stack([np.ones(len(key)), key + 0.5], -1)], axis=1)
    rgb = np.array([to_rgb(colours[number]) for number in heads]).reshape(-1, 3)
    return ends, np.concatenate([rgb[head], shown[head, query, key].clip(0, 1)[:, None]], axis=1)


@style.house_style()
def model_view(maps: AttentionMaps, *, title: str | None = None) -> Figure:
    """Draw every head of every layer as a small matrix without words: layers down, heads across."""
    L, H, T, S = maps.weights.shape
    side = float(np.clip(9.0 / max(H, 4), 0.5, 1.25))
    wide, high = max(side * min(1, S / T), side / 3), max(side * min(1, T / S), side / 3)
    small: dict[str, Any] = dict(fontsize=style.SMALL, color=style.MUTED, parse_math=False)
    left = style.MARGIN + float(style.text_widths([f"layer {name}" for name in maps.layers], style.SMALL).max()) + 0.12
    width = max(left + H * (wide + THUMBNAIL_GAP) + 0.75 + style.MARGIN, 3.6)
    body = max(L * (high + THUMBNAIL_GAP), 1.15)
    figure, title_bottom = style.titled_figure(title, width, 0.24 + body)
    top = title_bottom + 0.24
    for layer in range(L):
        for head in range(H):
            axes = style.axes_at(figure, left + head * (wide + THUMBNAIL_GAP), top + layer * (high + THUMBNAIL_GAP), wide, high)
            draw_cells(axes, maps.weights[layer, head], maps.darkest)
            axes.set(xlim=(0, S), ylim=(T, 0), xticks=[], yticks=[])
            axes.spines[:].set(visible=True, linewidth=0.5)
            if layer == 0:
                axes.set_title(f"head {maps.heads[head]}" if side > 0.6 or head == 0 else maps.heads[head], pad=4, **small)
            if head == 0:
                axes.set_ylabel(f"layer {maps.layers[layer]}", rotation=0, ha="right", va="center", labelpad=6, **small)
    bar = style.axes_at(
        figure, left + H * (wide + THUMBNAIL_GAP) + 0.06, top, BAR, float(np.clip(body - THUMBNAIL_GAP, 1.0, 2.4))
    )
    draw_colour_bar(bar, maps.darkest)
    return figure


# entropies and distances of heads


def row_entropies(weights: np.ndarray) -> np.ndarray:
    """Return -Σ w ln w of the rows: (…, T, S) -> (…, T), in nats."""
    return np.asarray(-(weights * np.log(np.maximum(weights, TINY))).sum(-1))


def head_entropies(weights: np.ndarray) -> np.ndarray:
    """Return the mean entropy of the rows that attend to anything: (…, T, S) -> (…), in nats."""
    attends = weights.sum(-1) > 0.5
    return np.asarray((row_entropies(weights) * attends).sum(-1) / np.maximum(attends.sum(-1), 1))


def head_distances(weights: np.ndarray) -> np.ndarray:
    """Return the Jensen–Shannon divergence of every two heads (N, T, S), mean over queries: (N, N), in nats, at most ln 2."""
    number = len(weights)
    divergence = np.zeros((number, number))
    own = row_entropies(weights)  # (N, T)
    for one in range(number):  # (N - one, T, S) at a time
        between = row_entropies((weights[one] + weights[one:]) / 2)
        divergence[one, one:] = divergence[one:, one] = (between - (own[one] + own[one:]) / 2).mean(-1)
    np.fill_diagonal(divergence, 0)
    return divergence.clip(0)


def classical_scaling(distances: np.ndarray) -> np.ndarray:
    """Return points (N, 2) whose distances approximate these best in a plane (Torgerson 1952)."""
    number = len(distances)
    centre = np.eye(number) - 1 / number
    values, vectors = np.linalg.eigh(-centre @ distances**2 @ centre / 2)
    best = np.argsort(-values, kind="stable")[:2]
    points = np.round(vectors[:, best] * np.sqrt(values[best].clip(0)), 9)
    points *= np.where(points[np.abs(points).argmax(0), np.arange(len(best))] < 0, -1, 1)  # fix the sign, which is arbitrary
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))


@style.house_style()
def entropy_figure(maps: AttentionMaps, *, title: str | None = None) -> Figure:
    """Draw the entropy of each head by layer, and all heads in a plane where near heads attend alike."""
    L, H, _, S = maps.weights.shape
    entropy = head_entropies(maps.weights)  # (L, H)
    points = classical_scaling(np.sqrt(head_distances(maps.weights.reshape(L * H, *maps.weights.shape[2:]))))
    colours = [style.sequential_colormap()(x) for x in np.linspace(0.35, 1.0, L)]  # the higher the layer, the darker
    figure = Figure(figsize=(8.4, 4.0))
    left, right = figure.add_axes((0.075, 0.13, 0.37, 0.66)), figure.add_axes((0.55, 0.13, 0.36, 0.66))
    left.plot(np.arange(L), entropy.mean(1), color=style.FAINT, zorder=1)
    for layer in range(L):
        offset = np.linspace(-0.16, 0.16, H) if H > 1 else np.array([0])
        left.scatter(layer + offset, entropy[layer], s=22, color=[colours[layer]], linewidths=0, zorder=2)
        own = points[layer * H : (layer + 1) * H]
        right.scatter(own[:, 0], own[:, 1], s=30, color=[colours[layer]], linewidths=0, label=f"layer {maps.layers[layer]}")
        if L * H <= 48:
            for head, (x, y) in enumerate(own):
                right.annotate(
                    maps.heads[head],
                    (x, y),
                    xytext=(4, 3),
                    textcoords="offset points",
                    color=style.MUTED,
                    fontsize=style.SMALL - 1,
                    parse_math=False,
                )
    left.axhline(np.log(S), color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    left.annotate(
        "uniform",
        (1, np.log(S)),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        ha="right",
        textcoords="offset points",
        fontsize=style.SMALL,
        color=style.MUTED,
    )
    left.set(xlim=(-0.5, L - 0.5), ylim=(0, max(np.log(S), 0.1) * 1.1), xlabel="layer", ylabel="entropy, nats")
    left.set_xticks(np.arange(L), maps.layers)
    left.grid(axis="y")
    style.panel_title(left, "entropy of each head")
    style.panel_title(right, "distances between heads")
    reach = max(float(np.abs(points).max()) * 1.15, 0.05)
    right.set(xlim=(-reach, reach), ylim=(-reach, reach), xlabel="root of the Jensen–Shannon divergence, scaled to a plane")
    right.tick_params(labelsize=style.SMALL - 1)
    if L <= 12:
        right.legend(
            loc="center left", bbox_to_anchor=(1.0, 0.5), handletextpad=0.1, fontsize=style.SMALL - 0.5, borderaxespad=0.2
        )
    title = title or f"{maps.name}: entropy and distance of heads"
    figure.text(0.022, 0.965, title, fontsize=style.TITLE, fontweight="bold", va="top", parse_math=False)
    return figure


def entropy_text(maps: AttentionMaps) -> str:
    """Return the entropy of every head for a terminal, the sharpest shaded darkest."""
    entropy, most = head_entropies(maps.weights), max(float(np.log(maps.weights.shape[3])), 1e-6)
    darkest = len(SHADES) - 1
    lines = [" " * 10 + "".join(f"{'head ' + name if i == 0 else name:>8}" for i, name in enumerate(maps.heads))]
    for name, row in zip(maps.layers, entropy):
        cells = (f"{SHADES[round(darkest * float(np.clip(1 - x / most, 0, 1)))]} {x:.2f}".rjust(8) for x in row)
        lines.append(f"layer {name}".ljust(10) + "".join(cells))
    return "\n".join([*lines, "", f"{maps.name}: entropy in nats, {most:.2f} is uniform attention"])
