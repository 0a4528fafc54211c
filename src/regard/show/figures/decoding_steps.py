"""Generation step by step: each token that was said, how likely it was, what else it might have been, and what was looked at."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.attention_maps import tile_labels, tile_weights
from regard.show.figures.html_view import encode_bytes, script_page
from regard.show.figures.labels import label, terminal_width
from regard.show.figures.matrix import BAR, GAP, MARGIN, CellSize, axes_at, draw_cells, draw_colour_bar, label_axes, label_extent
from regard.show.figures.terminal import SHADES

MAX_STEPS, MAX_FIGURE_KEYS, MAX_PAGE_KEYS = 60, 72, 48
"""Rows and keys of a picture; keys that a page has of one step, the heaviest."""
ROW, BARS = 0.25, 0.85  # inches: a step, the bar of a certain token
MIN_SHOWN = 0.005
"""Less is not worth a word."""
STYLE = """
.bar button { min-width: 2.4rem; }
#stage { max-height: none; line-height: 1.75; font-size: 15px; }
#stage h3 { font-size: 11.5px; font-weight: 400; color: #646b78; margin: .7rem 0 .15rem; line-height: 1.3; }
#stage h3:first-child { margin-top: 0; }
#stage .text { max-height: 22vh; overflow: auto; overflow-wrap: anywhere; padding: 2px; }
#stage .text span { padding: .1rem .22rem; border-radius: 3px; white-space: pre-wrap; }
#stage .text .now { font-weight: 700; outline: 1.5px solid #d55e00; }
#stage .text .later { opacity: .22; }
#stage .ways { display: grid; grid-template-columns: max-content 1fr; gap: 2px 10px; align-items: center; max-width: 34rem;
               font-size: 13px; line-height: 1.4; font-variant-numeric: tabular-nums; min-height: 8.2rem; align-content: start; }
#stage .ways b, #stage .ways span { text-align: right; white-space: pre; }
#stage .ways div, td .p { display: flex; align-items: center; gap: 6px; }
#stage .ways i, td .p i { display: block; height: .65rem; background: #24476f; }
#stage .ways span + div i { background: #9fb6d1; }
td .p i { background: var(--soft); } td .p { min-width: 7.5rem; }
.steps td, .steps th { padding-right: 1.1rem; }
.steps td:nth-child(n + 4) { min-width: 12rem; }
.steps td.said { font-weight: 600; white-space: pre; }
.steps .look { border-radius: 3px; padding: 0 .25rem; margin-right: .3rem; white-space: nowrap; }
.steps .other { margin-right: .6rem; white-space: nowrap; }
.scripted .scroll { max-height: 46vh; overflow: auto; margin-top: 1.4rem; }
.scripted .steps tbody tr { cursor: pointer; }
.steps tr[aria-current] td { background: color-mix(in srgb, var(--ink) 12%, transparent); }
"""


@dataclass(frozen=True)
class GenerationStep:
    """A token that was said, how likely it was, and the likeliest others."""

    word: str
    probability: float
    others: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class GenerationTrace:
    """The steps of a text, and how much each looked at every key."""

    name: str
    """Of the attention."""
    keys: Sequence[str]
    steps: Sequence[GenerationStep]
    weights: np.ndarray  # (steps, S)
    own: int | None = None
    """Of the keys, the number of the first that was said; where what is said is looked at too."""
    note: str = ""

    def __post_init__(self) -> None:
        assert self.weights.shape == (len(self.steps), len(self.keys)) and self.steps, self.weights.shape

    def part(self, first: int, most: int) -> "tuple[range, str]":
        """The steps that are drawn, and in words which they are, where not all."""
        first = max(0, min(first, len(self.steps) - most))
        shown = range(first, min(first + most, len(self.steps)))
        return shown, f"steps {first + 1} to {shown[-1] + 1} of {len(self.steps):,}" if len(shown) < len(self.steps) else ""


def generation_figure(found: GenerationTrace, *, title: str | None = None, first: int = 0) -> Figure:
    """A row a step: the token, its probability as a bar, what else it might have been, what it looked at."""
    shown, note = found.part(first, MAX_STEPS)
    steps = [found.steps[number] for number in shown]
    size = -(-len(found.keys) // MAX_FIGURE_KEYS)
    names, across = tile_labels(found.keys, size), tile_weights(found.weights[None, shown.start : shown.stop], 1)[0]
    if size > 1:
        across = np.add.reduceat(across, np.arange(0, len(found.keys), size), axis=1)
    darkest = 1.0 if size == 1 else float(np.clip(across.max(), 1e-6, 1))
    notes = [part for part in (note, f"tiles of {size} keys" if size > 1 else "", found.note) if part]
    said, numbers = [label(step.word, 20) for step in steps], [str(number + 1) for number in shown]
    ways = [[f"{label(word, 14)} {p:.2f}" for word, p in step.others if p >= MIN_SHOWN] for step in steps]
    cell = CellSize(ROW if len(names) <= 40 else 0.17, 9 if len(names) <= 40 else 7.5, 55)
    with style.house_style():
        at_said = MARGIN + float(style.text_widths(numbers, style.SMALL).max()) + 0.12
        at_bars = at_said + float(style.text_widths(said, style.BODY, "bold").max()) + 0.14
        at_ways = [at_bars + BARS + 0.42]
        for column in range(max(map(len, ways), default=0)):
            texts = [row[column] for row in ways if column < len(row)]
            at_ways.append(at_ways[-1] + float(style.text_widths(texts, style.SMALL).max()) + 0.16)
        left = max(at_ways[-1] + 0.1, at_ways[0] + 1.1)
        over, beyond = label_extent(names, cell)
        right = max(2 * GAP + BAR + 0.62, beyond) + MARGIN
        width = left + len(names) * cell.cell + right
        lines = style.wrap_text(title, style.TITLE, width - 2 * MARGIN) if title else ""
        about = style.wrap_text("; ".join([found.name, *notes]), style.SMALL, width - 2 * MARGIN)
        top = MARGIN + 0.2 * (lines.count("\n") + 1) * bool(lines) + 0.15 * (about.count("\n") + 1) + 0.1 + max(over, 0.2)
        height = top + max(len(steps) * ROW, 1.15) + MARGIN
        figure = Figure(figsize=(width, height))

        def write(x: float, y: float, text: str, **look: Any) -> None:
            figure.text(x / width, 1 - y / height, text, parse_math=False, **{"va": "center_baseline", **look})

        write(MARGIN, MARGIN, lines, fontsize=style.TITLE, fontweight="bold", va="top", linespacing=1.25)
        write(
            MARGIN,
            MARGIN + 0.2 * (lines.count("\n") + 1) * bool(lines) + 0.03,
            about,
            fontsize=style.SMALL,
            color=style.MUTED,
            va="top",
            linespacing=1.25,
        )
        for x, text in ((at_said, "said"), (at_bars, "probability"), (at_ways[0], "might have been")):
            write(x, top - 0.1, text, fontsize=style.SMALL, color=style.MUTED)
        axes = axes_at(figure, at_bars, top, BARS, len(steps) * ROW)
        axes.barh(
            np.arange(len(steps)) + 0.5, [step.probability for step in steps], height=0.6, color=style.sequential_colormap()(0.82)
        )
        axes.set(xlim=(0, 1), ylim=(len(steps), 0), xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.spines["left"].set_visible(True)
        for row, step in enumerate(steps):
            y = top + (row + 0.5) * ROW
            write(at_said - 0.12, y, numbers[row], fontsize=style.SMALL, color=style.MUTED, ha="right")
            write(at_said, y, said[row], fontsize=style.BODY, fontweight="bold")
            write(at_bars + BARS * step.probability + 0.06, y, f"{step.probability:.2f}", fontsize=style.SMALL, color=style.MUTED)
            for x, way in zip(at_ways, ways[row]):
                write(x, y, way, fontsize=style.SMALL, color=style.MUTED)
        axes = axes_at(figure, left, top, len(names) * cell.cell, len(steps) * ROW)
        draw_cells(axes, across, darkest)
        axes.vlines(np.arange(len(names) + 1), 0, len(steps), color=style.PAPER, linewidth=cell.cell * 3.6)
        axes.hlines(np.arange(len(steps) + 1), 0, len(names), color=style.PAPER, linewidth=ROW * 3.6)
        label_axes(axes, names, [""] * len(steps), cell)
        high = float(np.clip(len(steps) * ROW, 1.15, 2.4))
        draw_colour_bar(figure, axes_at(figure, left + len(names) * cell.cell + 2 * GAP, top, BAR, high), darkest)
    return figure


def top_keys(found: GenerationTrace, number: int, most: int) -> list[tuple[int, float]]:
    """The keys that a step looked at most, and how much; of equals the earlier."""
    row = found.weights[number]
    best = np.argsort(-row, kind="stable")[:most]
    return [(int(key), float(row[key])) for key in best if row[key] >= MIN_SHOWN]


def no_top_keys(found: GenerationTrace, number: int) -> str:
    """In words, where a step looked that looked at no key much."""
    return "everywhere a little" if found.weights[number].sum() > MIN_SHOWN else "nowhere"


def generation_text(found: GenerationTrace, first: int = 0) -> str:
    """A line a step in plain text."""
    shown, note = found.part(first, MAX_STEPS)
    words = [label(found.steps[number].word, 20) for number in shown]
    margin, lines = max(map(terminal_width, words)), []
    for word, number in zip(words, shown):
        step = found.steps[number]
        ways = ", ".join(f"{label(other, 16)} {p:.2f}" for other, p in step.others if p >= MIN_SHOWN)
        looks = ", ".join(f"{label(found.keys[key], 16)} {weight:.2f}" for key, weight in top_keys(found, number, 3))
        likely = f"{step.probability:.2f} {SHADES[-1] * round(10 * step.probability):<10}"
        lines.append(
            f"{number + 1:>4}  {word}{' ' * (margin - terminal_width(word))}  {likely}  ← "
            f"{looks or no_top_keys(found, number)}" + (f"  | {ways}" if ways else "")
        )
    return "\n".join([*lines, "", "; ".join(part for part in (found.name, note, found.note) if part)])


def generation_page(found: GenerationTrace, *, title: str, first: int = 0) -> str:
    """All steps as a table that can be read without a script; with one, they are gone through by buttons and arrow keys."""
    looks = [top_keys(found, number, MAX_PAGE_KEYS) for number in range(len(found.steps))]
    said = {
        "ramp": encode_bytes(np.round(style.sequential_colormap()(np.arange(256))[:, :3] * 255)),
        "at": first,
        "own": found.own,
        "keys": [label(key, 40) for key in found.keys],
        "looks": [[[key, round(255 * weight)] for key, weight in row] for row in looks],
        "steps": [
            {
                "word": label(step.word, 40),
                "p": round(step.probability, 4),
                "others": [[label(word, 40), round(p, 4)] for word, p in step.others],
            }
            for step in found.steps
        ],
    }
    rows = "\n".join(table_row(found, number, looks[number][:5]) for number in range(len(found.steps)))
    shaded = (
        f"of the {len(found.keys):,} keys, the {MAX_PAGE_KEYS} heaviest are shaded" if len(found.keys) > MAX_PAGE_KEYS else ""
    )
    about = "; ".join(part for part in (found.name, shaded, found.note) if part)
    body = (
        f'<p class="lead">{escape(about)}</p>\n<div class="bar" id="choose"></div>\n<div id="stage" hidden></div>\n'
        '<div class="scroll"><table class="steps"><thead><tr><th></th><th>said</th><th>probability</th><th>looked at</th>'
        f"<th>might have been</th></tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n"
    )
    return script_page(title, body, said, "generation.js", STYLE)


def table_row(found: GenerationTrace, number: int, looks: Sequence[tuple[int, float]]) -> str:
    step = found.steps[number]
    others = "".join(
        f'<span class="other">{escape(label(word, 24))} {p:.2f}</span> ' for word, p in step.others if p >= MIN_SHOWN
    )
    chips = "".join(
        f'<span class="look" style="{shade(weight)}">{escape(label(found.keys[key], 24))} {weight:.2f}</span> '
        for key, weight in looks
    )
    return (
        f'<tr><td class="number">{number + 1}</td><td class="said">{escape(label(step.word, 24))}</td>'
        f'<td><div class="p"><i style="width: {60 * step.probability:.1f}%"></i>{step.probability:.2f}</div></td>'
        f"<td>{chips or no_top_keys(found, number)}</td><td>{others}</td></tr>"
    )


def shade(weight: float) -> str:
    red, green, blue = (round(255 * float(part)) for part in style.sequential_colormap()(min(1.0, weight))[:3])
    return f"background: rgb({red} {green} {blue}); color: {'#fff' if weight > 0.45 else '#1d2330'}"
