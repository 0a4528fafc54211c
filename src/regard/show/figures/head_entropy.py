"""How widely heads look, and how alike they are: entropies over layers, and the Jensen–Shannon distances of all heads on a plane.

After Clark et al. 2019, secs. 3 and 6.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.attention_maps import AttentionMaps

TINY = 1e-12


def head_entropies(weights: np.ndarray) -> np.ndarray:
    """-Σ w ln w of the rows (…, T, S), the mean over those that look anywhere: (…), in nats."""
    looks = weights.sum(-1) > 0.5
    each = -(weights * np.log(np.maximum(weights, TINY))).sum(-1)
    return (each * looks).sum(-1) / np.maximum(looks.sum(-1), 1)


def head_distances(weights: np.ndarray) -> np.ndarray:
    """The Jensen–Shannon divergence of every two heads (N, T, S), the mean over queries: (N, N), in nats, at most ln 2."""
    number = len(weights)
    found = np.zeros((number, number))
    own = row_entropies(weights)  # (N, T)
    for one in range(number):  # (N - one, T, S) at a time
        between = row_entropies((weights[one] + weights[one:]) / 2)
        found[one, one:] = found[one:, one] = (between - (own[one] + own[one:]) / 2).mean(-1)
    np.fill_diagonal(found, 0)
    return found.clip(0)


def row_entropies(weights: np.ndarray) -> np.ndarray:
    return -(weights * np.log(np.maximum(weights, TINY))).sum(-1)


def classical_scaling(apart: np.ndarray) -> np.ndarray:
    """Classical scaling (Torgerson 1952): places (N, 2) whose distances are as near to these as a plane allows."""
    number = len(apart)
    centre = np.eye(number) - 1 / number
    values, vectors = np.linalg.eigh(-centre @ apart**2 @ centre / 2)
    best = np.argsort(-values, kind="stable")[:2]
    places = np.round(vectors[:, best] * np.sqrt(values[best].clip(0)), 9)
    places *= np.where(places[np.abs(places).argmax(0), np.arange(len(best))] < 0, -1, 1)  # the sign is free: choose it
    return np.pad(places, ((0, 0), (0, 2 - places.shape[1])))


def entropy_figure(found: AttentionMaps, *, title: str | None = None) -> Figure:
    """On the left the entropy of each head, layer by layer; on the right all heads, those that look alike side by side."""
    L, H, _, S = found.weights.shape
    entropy = head_entropies(found.weights)  # (L, H)
    places = classical_scaling(np.sqrt(head_distances(found.weights.reshape(L * H, *found.weights.shape[2:]))))
    shades = layer_colours(L)
    with style.house_style():
        figure = Figure(figsize=(8.4, 4.0))
        left, right = figure.add_axes((0.075, 0.13, 0.37, 0.66)), figure.add_axes((0.55, 0.13, 0.36, 0.66))
        at = np.arange(L)
        left.plot(at, entropy.mean(1), color=style.FAINT, zorder=1)
        for layer in range(L):
            nudge = np.linspace(-0.16, 0.16, H) if H > 1 else [0]
            left.scatter(layer + np.array(nudge), entropy[layer], s=22, color=[shades[layer]], linewidths=0, zorder=2)
            mine = places[layer * H : (layer + 1) * H]
            right.scatter(mine[:, 0], mine[:, 1], s=30, color=[shades[layer]], linewidths=0, label=f"layer {found.layers[layer]}")
            if L * H <= 48:
                for head, (x, y) in enumerate(mine):
                    right.annotate(
                        found.heads[head],
                        (x, y),
                        xytext=(4, 3),
                        textcoords="offset points",
                        color=style.MUTED,
                        fontsize=style.SMALL - 1,
                        parse_math=False,
                    )
        left.axhline(np.log(S), color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        left.annotate(
            "everywhere alike",
            (1, np.log(S)),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            ha="right",
            textcoords="offset points",
            fontsize=style.SMALL,
            color=style.MUTED,
        )
        left.set(xlim=(-0.5, L - 0.5), ylim=(0, max(np.log(S), 0.1) * 1.1), xlabel="layer", ylabel="entropy, nats")
        left.set_xticks(at, found.layers)
        left.grid(axis="y")
        style.panel_title(left, "how widely each head looks")
        style.panel_title(right, "which heads look alike")
        reach = max(float(np.abs(places).max()) * 1.15, 0.05)
        right.set(xlim=(-reach, reach), ylim=(-reach, reach), xlabel="root of the Jensen–Shannon divergence, scaled to a plane")
        right.tick_params(labelsize=style.SMALL - 1)
        if L <= 12:
            right.legend(
                loc="center left", bbox_to_anchor=(1.0, 0.5), handletextpad=0.1, fontsize=style.SMALL - 0.5, borderaxespad=0.2
            )
        figure.text(
            0.022,
            0.965,
            title or f"{found.name}: entropy and distance of heads",
            fontsize=style.TITLE,
            fontweight="bold",
            va="top",
            parse_math=False,
        )
    return figure


def layer_colours(number: int) -> list[Sequence[float]]:
    """A layer's colour: the higher, the darker."""
    return [style.sequential_colormap()(x) for x in np.linspace(0.35, 1.0, number)]
