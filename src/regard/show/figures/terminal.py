"""The alignment matrix as plain text."""

from collections.abc import Sequence

import numpy as np

from regard.show.figures.attention_maps import AttentionMaps
from regard.show.figures.head_entropy import head_entropies
from regard.show.figures.labels import label, terminal_width

SHADES = " ·░▒▓█"


def matrix_text(weights: np.ndarray, source: Sequence[str], target: Sequence[str], width: int = 100) -> str:
    """Shaded cells under upright source words; where that is too wide, a list of what each word looked at."""
    source, target = [label(word) for word in source], [label(word) for word in target]
    margin = max(map(terminal_width, target), default=0) + 2
    if margin + 2 * len(source) > width:
        return top_keys_text(weights, source, target)
    tall = max(map(len, source), default=0)
    lines = [" " * margin + " ".join(word.rjust(tall)[row] for word in source) for row in range(tall)]
    darkest = len(SHADES) - 1
    for word, row in zip(target, weights):
        shades = " ".join(SHADES[min(darkest, round(float(x) * darkest))] for x in row)
        lines.append(" " * (margin - 1 - terminal_width(word)) + word + " " + shades)
    return "\n".join(line.rstrip() for line in lines)


def top_keys_text(weights: np.ndarray, source: Sequence[str], target: Sequence[str], most: int = 3) -> str:
    margin = max(map(terminal_width, target), default=0)
    lines = []
    for word, row in zip(target, weights):
        best = np.argsort(-row, kind="stable")[:most]
        found = ", ".join(f"{source[i]} {row[i]:.2f}" for i in best if row[i] >= 0.05)
        lines.append(f"{' ' * (margin - terminal_width(word))}{word} ← {found}")
    return "\n".join(lines)


def entropy_text(found: AttentionMaps) -> str:
    """How widely every head of every layer looks, in nats, the sharpest shaded darkest."""
    each, most = head_entropies(found.weights), max(float(np.log(found.weights.shape[3])), 1e-6)
    darkest = len(SHADES) - 1
    lines = [" " * 10 + "".join(f"{'head ' + name if i == 0 else name:>8}" for i, name in enumerate(found.heads))]
    for name, row in zip(found.layers, each):
        cells = (f"{SHADES[round(darkest * float(np.clip(1 - x / most, 0, 1)))]} {x:.2f}".rjust(8) for x in row)
        lines.append(f"layer {name}".ljust(10) + "".join(cells))
    return "\n".join([*lines, "", f"{found.name}: entropy in nats, {most:.2f} is everywhere alike"])
