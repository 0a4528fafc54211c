"""Generation step by step: each token with its probability, the alternatives, and what it attended to."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.attention_maps import tile_labels, tile_weights
from regard.show.figures.html_pages import script_page
from regard.show.figures.labels import SHADES, label, terminal_width
from regard.show.figures.matrix import (
    BAR,
    GAP,
    CellSize,
    draw_cells,
    draw_colour_bar,
    draw_grid,
    label_axes,
    label_extent,
    weight_scale,
)

MAX_STEPS, MAX_FIGURE_KEYS, MAX_PAGE_KEYS = 60, 72, 48
"""Steps and keys of a figure; keys of one step in a page, the heaviest."""
ROW, BARS = 0.25, 0.85  # inches: a step, the bar of probability 1
MIN_SHOWN = 0.005
"""Smaller probabilities and weights are not listed."""
STYLE = """
.bar button { min-width: 2.4rem; }
#stage { max-height: none; line-height: 1.75; font-size: 15px; }
#stage h3 { font-size: 11.5px; font-weight: 400; color: var(--soft); margin: .7rem 0 .15rem; line-height: 1.3; }
#stage h3:first-child { margin-top: 0; }
#stage .text { max-height: 22vh; overflow: auto; overflow-wrap: anywhere; padding: 2px; }
#stage .text span { padding: .1rem .22rem; border-radius: 3px; white-space: pre-wrap; }
#stage .text .now { font-weight: 700; outline: 1.5px solid var(--rust); }
#stage .text .later { opacity: .22; }
#stage .alternatives { display: grid; grid-template-columns: max-content 1fr; gap: 2px 10px; align-items: center;
               max-width: 34rem;
               font-size: 13px; line-height: 1.4; font-variant-numeric: tabular-nums; min-height: 8.2rem; align-content: start; }
#stage .alternatives b, #stage .alternatives span { text-align: right; white-space: pre; }
#stage .alternatives div, td .p { display: flex; align-items: center; gap: 6px; }
#stage .alternatives i, td .p i { display: block; height: .65rem; background: var(--accent); }
#stage .alternatives span + div i { background: color-mix(in srgb, var(--accent) 45%, transparent); }
td .p i { background: var(--soft); } td .p { min-width: 7.5rem; }
.steps td, .steps th { padding-right: 1.1rem; }
.steps td:nth-child(n + 4) { min-width: 12rem; }
.steps td.token { font-weight: 600; white-space: pre; }
.steps .key { border-radius: 3px; padding: 0 .25rem; margin-right: .3rem; white-space: nowrap; }
.steps .other { margin-right: .6rem; white-space: nowrap; }
.scripted .scroll { max-height: 46vh; overflow: auto; margin-top: 1.4rem; }
.scripted .steps tbody tr { cursor: pointer; }
.steps tr[aria-current] td { background: color-mix(in srgb, var(--ink) 12%, transparent); }
"""


@dataclass(frozen=True)
class GenerationStep:
    """A generated token, its probability, and the most probable alternatives."""

    word: str
    probability: float
    others: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class GenerationTrace:
    """The steps of a generated text, and the weight of each step on every key."""

    name: str
    """Of the attention."""
    keys: Sequence[str]
    steps: Sequence[GenerationStep]
    weights: np.ndarray  # (steps, S)
    own: int | None = None
    """The index of the first generated token among the keys; None if generated tokens are not keys (cross-attention)."""
    note: str = ""

    def __post_init__(self) -> None:
        assert self.weights.shape == (len(self.steps), len(self.keys)) and self.steps, self.weights.shape

    def window(self, first: int, most: int) -> "tuple[range, str]":
        """Return at most `most` steps from `first` on, and a note on which they are, empty if all."""
        first = max(0, min(first, len(self.steps) - most))
        shown = range(first, min(first + most, len(self.steps)))
        return shown, f"steps {first + 1} to {shown[-1] + 1} of {len(self.steps):,}" if len(shown) < len(self.steps) else ""

    def top_keys(self, step: int, most: int) -> list[tuple[int, float]]:
        """Return the heaviest keys of a step with their weights; of equal ones the earlier first."""
        row = self.weights[step]
        best = np.argsort(-row, kind="stable")[:most]
        return [(int(key), float(row[key])) for key in best if row[key] >= MIN_SHOWN]

    def without_top_keys(self, step: int) -> str:
        """Describe a step that has no key of any weight worth listing."""
        return "spread over all keys" if self.weights[step].sum() > MIN_SHOWN else "no key"


@style.house_style()
def generation_figure(trace: GenerationTrace, *, title: str | None = None, first: int = 0, absolute: bool = False) -> Figure:
    """Draw a row per step: the token, its probability as a bar, the alternatives, its attention weights."""
    shown, window_note = trace.window(first, MAX_STEPS)
    steps = [trace.steps[index] for index in shown]
    size = -(-len(trace.keys) // MAX_FIGURE_KEYS)
    keys, weights = tile_labels(trace.keys, size), tile_weights(trace.weights[None, shown.start : shown.stop], 1)[0]
    if size > 1:
        weights = np.add.reduceat(weights, np.arange(0, len(trace.keys), size), axis=1)
    end = weight_scale(weights, absolute)
    notes = [note for note in (trace.name, window_note, f"tiles of {size} keys" if size > 1 else "", trace.note) if note]
    words, numbers = [label(step.word, 20) for step in steps], [str(index + 1) for index in shown]
    others = [[f"{label(word, 14)} {p:.2f}" for word, p in step.others if p >= MIN_SHOWN] for step in steps]
    cell = CellSize(ROW if len(keys) <= 40 else 0.17, 9 if len(keys) <= 40 else 7.5, 55)
    small = dict(fontsize=style.SMALL, color=style.theme().muted)
    at_words = style.MARGIN + float(style.text_widths(numbers, style.SMALL).max()) + 0.12
    at_bars = at_words + float(style.text_widths(words, style.BODY, "bold").max()) + 0.14
    at_others = [at_bars + BARS + 0.42]
    for column in range(max(map(len, others), default=0)):
        texts = [row[column] for row in others if column < len(row)]
        at_others.append(at_others[-1] + float(style.text_widths(texts, style.SMALL).max()) + 0.16)
    left = max(at_others[-1] + 0.1, at_others[0] + 1.1)
    over, beyond = label_extent(keys, cell)
    width = left + len(keys) * cell.cell + max(2 * GAP + BAR + 0.62, beyond) + style.MARGIN
    about = style.wrap_text("; ".join(notes), style.SMALL, width - 2 * style.MARGIN)
    above = 0.15 * (about.count("\n") + 1) + 0.1 + max(over, 0.2)
    figure, title_bottom = style.titled_figure(title, width, above + max(len(steps) * ROW, 1.15), gap=0)
    top = title_bottom + above
    style.draw_text(figure, style.MARGIN, title_bottom + 0.03, about, va="top", linespacing=1.25, **small)
    for x, text in ((at_words, "token"), (at_bars, "probability"), (at_others[0], "alternatives")):
        style.draw_text(figure, x, top - 0.1, text, **small)
    style.draw_bars(style.axes_at(figure, at_bars, top, BARS, len(steps) * ROW), [step.probability for step in steps], 0.6)
    for row, step in enumerate(steps):
        y = top + (row + 0.5) * ROW
        style.draw_text(figure, at_words - 0.12, y, numbers[row], ha="right", **small)
        style.draw_text(figure, at_words, y, words[row], fontsize=style.BODY, fontweight="bold")
        style.draw_text(figure, at_bars + BARS * step.probability + 0.06, y, f"{step.probability:.2f}", **small)
        for x, text in zip(at_others, others[row]):
            style.draw_text(figure, x, y, text, **small)
    axes = style.axes_at(figure, left, top, len(keys) * cell.cell, len(steps) * ROW)
    draw_cells(axes, weights, end)
    draw_grid(axes, weights.shape, (cell.cell, ROW))
    label_axes(axes, keys, [""] * len(steps), cell)
    high = float(np.clip(len(steps) * ROW, 1.15, 2.4))
    draw_colour_bar(style.axes_at(figure, left + len(keys) * cell.cell + 2 * GAP, top, BAR, high), end)
    return figure


def generation_text(trace: GenerationTrace, first: int = 0) -> str:
    """Return a line per step for a terminal."""
    shown, note = trace.window(first, MAX_STEPS)
    words = [label(trace.steps[index].word, 20) for index in shown]
    margin, lines = max(map(terminal_width, words)), []
    for word, index in zip(words, shown):
        step = trace.steps[index]
        others = ", ".join(f"{label(other, 16)} {p:.2f}" for other, p in step.others if p >= MIN_SHOWN)
        keys = ", ".join(f"{label(trace.keys[key], 16)} {weight:.2f}" for key, weight in trace.top_keys(index, 3))
        bar = f"{step.probability:.2f} {SHADES[-1] * round(10 * step.probability):<10}"
        lines.append(
            f"{index + 1:>4}  {word}{' ' * (margin - terminal_width(word))}  {bar}  ← "
            f"{keys or trace.without_top_keys(index)}" + (f"  | {others}" if others else "")
        )
    return "\n".join([*lines, "", "; ".join(part for part in (trace.name, note, trace.note) if part)])


def generation_page(trace: GenerationTrace, *, title: str, first: int = 0, absolute: bool = False) -> str:
    """Return a page with all steps as a table, readable without a script; with one, buttons and arrow keys go through them."""
    end = weight_scale(trace.weights, absolute)
    top_keys = [trace.top_keys(step, MAX_PAGE_KEYS) for step in range(len(trace.steps))]
    data: dict[str, Any] = {
        "at": first,
        "end": end,
        "own": trace.own,
        "keys": [label(key, 40) for key in trace.keys],
        "weights": [[[key, float(f"{weight:.4g}")] for key, weight in row] for row in top_keys],
        "steps": [
            {
                "word": label(step.word, 40),
                "p": round(step.probability, 4),
                "others": [[label(word, 40), round(p, 4)] for word, p in step.others],
            }
            for step in trace.steps
        ],
    }
    rows = "\n".join(table_row(trace, step, top_keys[step][:5], end) for step in range(len(trace.steps)))
    shaded = (
        f"of the {len(trace.keys):,} keys, the {MAX_PAGE_KEYS} heaviest are shaded" if len(trace.keys) > MAX_PAGE_KEYS else ""
    )
    about = "; ".join(part for part in (trace.name, shaded, trace.note) if part)
    body = (
        f'<p class="lead">{escape(about)}</p>\n<div class="bar" id="choose"></div>\n<div id="stage" hidden></div>\n'
        '<div class="scroll"><table class="steps"><thead><tr><th></th><th>token</th><th>probability</th><th>attends to</th>'
        f"<th>alternatives</th></tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n"
    )
    return script_page(title, body, data, "generation.js", STYLE)


def table_row(trace: GenerationTrace, index: int, top_keys: Sequence[tuple[int, float]], end: float) -> str:
    step = trace.steps[index]
    others = "".join(
        f'<span class="other">{escape(label(word, 24))} {p:.2f}</span> ' for word, p in step.others if p >= MIN_SHOWN
    )
    chips = "".join(
        f'<span class="key" style="{shade_css(weight / end)}">{escape(label(trace.keys[key], 24))} '
        f"{style.format_weight(weight)}</span> "
        for key, weight in top_keys
    )
    return (
        f'<tr><td class="number">{index + 1}</td><td class="token">{escape(label(step.word, 24))}</td>'
        f'<td><div class="p"><i style="width: {60 * step.probability:.1f}%"></i>{step.probability:.2f}</div></td>'
        f"<td>{chips or trace.without_top_keys(index)}</td><td>{others}</td></tr>"
    )


def shade_css(strength: float) -> str:
    """Return the style of a word as strong as its weight, from 0 to 1, readable in both themes."""
    return f"background: color-mix(in srgb, var(--accent) {round(45 * strength)}%, transparent)"
