"""Views of many heads: the head view (lines), the model view (thumbnails), and the entropies and distances of heads.

Head view: after Vaswani et al. 2017, figs. 3 to 5, and BertViz (Vig 2019). Entropies and distances: Clark et al. 2019, secs. 3
and 6.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.show.figures import style
from regard.show.figures.attention_maps import TINY, AttentionMaps
from regard.show.figures.labels import SHADES, label
from regard.show.figures.matrix import BAR, GAP, draw_cells, draw_colour_bar, weight_scale

MIN_WEIGHT, MAX_LINES = 0.02, 6000
"""Lighter lines are not drawn, as a fraction of the scale, and only this many of the heaviest."""
LINE_WIDTH = 2.6  # inches between the two columns of words
THUMBNAIL_GAP = 0.07  # inches


def head_colours(number: int) -> list[str]:
    """Return a colour for each head: the series of the theme; beyond it, hues in two alternating lightnesses."""
    series, brighter = style.theme().series, 0.14 * (style.theme().name == "dark")
    if number <= len(series):
        return list(series[:number])
    hue = 2 * np.pi * np.arange(number) / number + 0.5
    light = np.where(np.arange(number) % 2, 0.5, 0.66) + brighter
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
    absolute: bool = False,
) -> Figure:
    """Draw the heads (H, T, S) of one layer: queries on the left, keys on the right, a line per weight, a colour per head.

    The lines of the heads run side by side, and beside each word a bar per head is as opaque as its heaviest line there (as in
    BertViz, Vig 2019), so that heads that attend alike stay visible. `chosen` restricts the heads, `only` the query."""
    assert weights.shape == (len(names), len(queries), len(keys)), weights.shape
    heads = list(range(len(names))) if chosen is None else list(chosen)
    shown = weights[heads] if only is None else np.where(np.arange(len(queries))[:, None] == only, weights[heads], 0)
    colours = [head_colours(len(names))[head] for head in heads]
    rows = max(len(queries), len(keys))
    row, font = next(size for most, size in ((24, (0.25, 9.5)), (60, (0.19, 8)), (10**9, (0.13, 6.5))) if rows <= most)
    labels = [[label(word, 24) for word in words] for words in (queries, keys)]
    bar = float(np.clip(0.56 / len(heads), 0.03, 0.075)) if len(heads) > 1 else 0.0
    left, right = (float(style.text_widths(words, font).max()) + GAP + (len(heads) * bar + GAP) * (bar > 0) for words in labels)
    width = max(2 * style.MARGIN + left + LINE_WIDTH + right, 4.2)
    between = width - 2 * style.MARGIN - left - right
    per_line = max(1, int((width - 2 * style.MARGIN) / 0.72))
    legend = -(-len(heads) // per_line) * 0.22
    figure, title_bottom = style.titled_figure(title, width, legend + 0.1 + rows * row + 0.44)
    top = title_bottom + legend + 0.1
    axes = style.axes_at(figure, style.MARGIN + left, top, between, rows * row)
    axes.set(xlim=(0, 1), ylim=(rows, 0))
    axes.set_axis_off()
    end = weight_scale(shown, absolute)
    segments, shades = line_segments(shown / end, colours)
    axes.add_collection(LineCollection(list(segments), colors=shades, linewidths=1.5 if row > 0.15 else 0.9, capstyle="butt"))
    for side, words in enumerate(labels):
        if bar:
            edge = 1 + GAP / between if side else -(GAP + len(heads) * bar) / between
            draw_head_bars(axes, shown.max(2 - side) / end, colours, edge, bar / between)
        for index, word in enumerate(words):
            away = (GAP + (GAP + len(heads) * bar) * (bar > 0)) / between
            axes.text(
                1 + away if side else -away,
                index + 0.5,
                word,
                ha="left" if side else "right",
                va="center_baseline",
                fontsize=font,
                parse_math=False,
                color=style.theme().muted if side == 0 and only not in (None, index) else style.theme().text,
                clip_on=False,
            )
    for index, head in enumerate(heads):
        x, y = style.MARGIN + index % per_line * 0.72, top - legend - 0.02 + index // per_line * 0.22
        style.draw_text(figure, x, y, "■", color=colours[index], fontsize=style.BODY)
        style.draw_text(figure, x + 0.15, y, f"head {label(names[head], 8)}", color=style.theme().muted, fontsize=style.SMALL)
    draw_opacity_legend(
        figure, top + rows * row + 0.18, colours[0], end, "attention weight" + ("; bars: the heaviest line" if bar else "")
    )
    return figure


def head_offsets(number: int) -> np.ndarray:
    """Return how far the lines of each head are from the middle of a word, in rows (as `headOffset` of show/web)."""
    return np.linspace(-0.5, 0.5, number) * min(0.6, 0.12 * (number - 1)) if number > 1 else np.zeros(1)


def line_segments(weights: np.ndarray, colours: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends (N, 2, 2) and colours (N, 4) of the heaviest lines of heads (H, T, S), the heaviest last (on top)."""
    heaviest = np.argsort(weights, axis=None, kind="stable")[-MAX_LINES:]
    head, query, key = np.unravel_index(heaviest[weights.flat[heaviest] >= MIN_WEIGHT], weights.shape)
    offset = head_offsets(len(weights))[head] + 0.5
    ends = np.stack(
        [np.stack([np.zeros(len(query)), query + offset], -1), np.stack([np.ones(len(key)), key + offset], -1)], axis=1
    )
    rgb = np.array([to_rgb(colour) for colour in colours]).reshape(-1, 3)
    return ends, np.concatenate([rgb[head], weights[head, query, key].clip(0, 1)[:, None]], axis=1)


def draw_head_bars(axes: Axes, strength: np.ndarray, colours: Sequence[str], left: float, wide: float) -> None:
    """Draw a bar per head beside each word, as opaque as the strength (H, words), from an edge on."""
    H, words = strength.shape
    rgb = np.array([to_rgb(colour) for colour in colours])
    head, word = (index.ravel() for index in np.indices((H, words)))
    frames = [Rectangle((left + h * wide, w + 0.16), 0.85 * wide, 0.68) for h, w in zip(head, word)]
    shades = np.concatenate([rgb[head], strength.clip(0, 1)[head, word][:, None]], axis=1)
    for colour in (style.theme().faint, shades):
        alpha = 0.35 if isinstance(colour, str) else None
        axes.add_collection(PatchCollection(frames, facecolors=colour, alpha=alpha, linewidths=0, clip_on=False))


def draw_opacity_legend(figure: Figure, top: float, colour: str, end: float, text: str) -> None:
    """Draw the legend of lines that are as opaque as they are heavy: from nothing to the end of the scale."""
    axes = style.axes_at(figure, style.MARGIN, top, 1.1, 0.085)
    ramp = np.ones((1, 64, 4))
    ramp[0, :, :3], ramp[0, :, 3] = to_rgb(colour), np.linspace(0, 1, 64)
    axes.imshow(ramp, extent=(0, end, 0, 1), aspect="auto", interpolation="none")
    axes.set(yticks=[])
    axes.set_xticks([0, end], ["0", style.format_weight(end)])
    axes.tick_params(labelsize=style.SMALL - 0.5, length=0, pad=2)
    axes.spines[:].set(visible=True, linewidth=0.5)
    style.draw_text(figure, style.MARGIN + 1.22, top + 0.04, text, fontsize=style.SMALL, color=style.theme().muted)


@style.house_style()
def model_view(maps: AttentionMaps, *, title: str | None = None, absolute: bool = False) -> Figure:
    """Draw every head of every layer as a small matrix without words: layers down, heads across."""
    L, H, T, S = maps.weights.shape
    side = float(np.clip(9.0 / max(H, 4), 0.5, 1.25))
    wide, high = max(side * min(1, S / T), side / 3), max(side * min(1, T / S), side / 3)
    small: dict[str, Any] = dict(fontsize=style.SMALL, color=style.theme().muted, parse_math=False)
    left = style.MARGIN + float(style.text_widths([f"layer {name}" for name in maps.layers], style.SMALL).max()) + 0.12
    width = max(left + H * (wide + THUMBNAIL_GAP) + 0.75 + style.MARGIN, 3.6)
    body = max(L * (high + THUMBNAIL_GAP), 1.15)
    figure, title_bottom = style.titled_figure(title, width, 0.24 + body)
    top, end = title_bottom + 0.24, weight_scale(maps.weights, absolute)
    for layer in range(L):
        for head in range(H):
            axes = style.axes_at(figure, left + head * (wide + THUMBNAIL_GAP), top + layer * (high + THUMBNAIL_GAP), wide, high)
            draw_cells(axes, maps.weights[layer, head], end)
            axes.set(xlim=(0, S), ylim=(T, 0), xticks=[], yticks=[])
            axes.spines[:].set(visible=True, linewidth=0.5)
            if layer == 0:
                axes.set_title(f"head {maps.heads[head]}" if side > 0.6 or head == 0 else maps.heads[head], pad=4, **small)
            if head == 0:
                axes.set_ylabel(f"layer {maps.layers[layer]}", rotation=0, ha="right", va="center", labelpad=6, **small)
    bar = style.axes_at(
        figure, left + H * (wide + THUMBNAIL_GAP) + 0.06, top, BAR, float(np.clip(body - THUMBNAIL_GAP, 1.0, 2.4))
    )
    draw_colour_bar(bar, end)
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
    left.plot(np.arange(L), entropy.mean(1), color=style.theme().faint, zorder=1)
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
                    color=style.theme().muted,
                    fontsize=style.SMALL - 1,
                    parse_math=False,
                )
    left.axhline(np.log(S), color=style.theme().muted, linewidth=0.8, linestyle=(0, (4, 3)))
    left.annotate(
        "uniform",
        (1, np.log(S)),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        ha="right",
        textcoords="offset points",
        fontsize=style.SMALL,
        color=style.theme().muted,
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
