"""The neuron view: how one head comes to its weights, component by component: q, k, their product, its sum, the softmax.

After BertViz (Vig 2019). One query at a time; a page has more of them to point at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.html_view import encode_bytes, script_page
from regard.show.figures.labels import label, terminal_width
from regard.show.figures.matrix import MARGIN, axes_at
from regard.show.figures.terminal import SHADES

MAX_KEYS, MAX_QUERIES = 40, 160
"""That are drawn of one query, and queries of a page."""
STRIP, ROW, GAP, NUMBER = 2.3, 0.23, 0.2, 0.62  # inches: a vector, a line, between columns, a column of numbers
HIDDEN = "−∞"
STYLE = """
.asked { display: flex; flex-wrap: wrap; gap: .15rem .1rem; margin: 0 0 .8rem; max-height: 9.5rem; overflow: auto;
         font: .95rem/1.5 ui-sans-serif, system-ui, sans-serif; }
.asked button { font: inherit; color: var(--ink); background: none; border: 1px solid transparent; border-radius: 3px;
                padding: 0 .3rem; cursor: pointer; white-space: pre; }
.asked button:hover { border-color: var(--line); }
.asked button[aria-pressed=true] { background: var(--ink); color: var(--paper); }
.sums { display: grid; gap: 2px 12px; align-items: center; font-variant-numeric: tabular-nums; }
.sums .title { color: #646b78; font-size: 11.5px; padding-bottom: 3px; white-space: pre; }
.sums .word { text-align: right; white-space: pre; overflow: hidden; text-overflow: ellipsis; max-width: 13rem;
              line-height: 17px; }
.sums .asks { font-weight: 700; }
.sums .title.under { padding-top: 7px; }
.sums .number { text-align: right; }
.sums canvas { display: block; width: 100%; height: 15px; image-rendering: pixelated; cursor: crosshair; }
.sums .share { display: flex; align-items: center; gap: 6px; }
.sums .share i { display: block; height: 11px; background: #24476f; }
.sums .hidden { opacity: .35; }
@media (max-width: 40rem) {
  .sums { gap: 2px 5px; font-size: 11px; } .sums .title { font-size: 10px; } .sums .word { max-width: 5rem; } }
"""


@dataclass(frozen=True)
class NeuronQuery:
    """What one query asks, and what comes of it at some of the keys, by their numbers."""

    word: str
    query: np.ndarray  # (K,)
    keys: np.ndarray  # (N,)
    terms: np.ndarray
    """(N, K) What each component adds to each score;"""
    scores: np.ndarray
    """(N,) what the softmax is taken of, -∞ where a key is hidden;"""
    weights: np.ndarray  # (N,)
    others: int = 0
    """Keys besides these."""

    @property
    def sums(self) -> np.ndarray:
        return self.terms.sum(-1)

    @property
    def bias(self) -> np.ndarray:
        """(N,) What is added to the sums."""
        return np.where(np.isfinite(self.scores), self.scores - self.sums, 0.0)

    @property
    def left(self) -> str:
        """What is not shown, in words."""
        if not self.others:
            return ""
        return f"the {len(self.keys)} heaviest of {len(self.keys) + self.others:,} keys, {self.weights.sum():.2f} of the weight"


@dataclass(frozen=True)
class NeuronView:
    """One head: its keys, and some of its questions."""

    name: str
    formula: str
    """Of the score, before anything is added."""
    enters: str
    """Where positions come in, in words."""
    words: Sequence[str]
    keys: np.ndarray  # (S, K)
    questions: Sequence[NeuronQuery]
    note: str = ""
    """Which questions there are, where not all."""

    @property
    def biased(self) -> bool:
        return any(np.abs(one.bias).max() > 1e-4 for one in self.questions)

    @property
    def titles(self) -> list[str]:
        """Of the columns: keys, terms, sums, what is added, scores, weights."""
        added = ["+ bias", "= score"] if self.biased else []
        return ["k", self.formula.replace("·", "∘", 1), self.formula, *added, "softmax"]

    def named(self, question: NeuronQuery) -> list[str]:
        """The keys of a question; where they are chosen out of many, with their numbers, counted from 1."""
        return [
            f"{key + 1} {label(self.words[key], 20)}" if question.others else label(self.words[key], 24)
            for key in question.keys.tolist()
        ]

    def numbers(self, question: NeuronQuery) -> list[list[str]]:
        """A row of what stands in the columns of numbers for each key."""
        rows = []
        for total, bias, score in zip(question.sums, question.bias, question.scores):
            end = format_signed(score) if np.isfinite(score) else HIDDEN
            rows.append([format_signed(total), format_signed(bias), end] if self.biased else [end])
        return rows


def format_signed(number: float) -> str:
    return f"{number:.2f}".replace("-", "−").replace("−0.00", "0.00")


def heaviest_keys(weights: np.ndarray, scores: np.ndarray, most: int = MAX_KEYS) -> np.ndarray:
    """The numbers of the heaviest keys, in order; of equals the one with the greater score, or the earlier."""
    heaviest = np.lexsort((np.arange(len(weights)), -scores, -weights))
    return np.sort(heaviest[:most])


def neuron_figure(found: NeuronView, number: int = 0, *, title: str | None = None) -> Figure:
    """One question as a picture: q over the keys, the products beside them, their sums, and the softmax as bars."""
    asked = found.questions[number]
    names, rows = found.named(asked), len(asked.keys)
    hidden = ~np.isfinite(asked.scores)
    numbers = found.numbers(asked)
    with style.house_style():
        left = MARGIN + float(style.text_widths([*names, label(asked.word, 24)], style.BODY + 0.5, "bold").max()) + 0.12
        at_terms, at_numbers = left + STRIP + GAP, left + 2 * (STRIP + GAP)
        at_bars = at_numbers + len(numbers[0]) * NUMBER + GAP
        width = at_bars + 1.5 + MARGIN
        lines = style.wrap_text(title or found.name, style.TITLE, width - 2 * MARGIN)
        notes = [style.wrap_text(note, style.SMALL, width - 2 * MARGIN) for note in (found.enters, asked.left) if note]
        top = MARGIN + 0.2 * (lines.count("\n") + 1) + sum(0.15 * (note.count("\n") + 1) for note in notes) + 0.34
        body = top + 1.75 * ROW
        height = body + rows * ROW + 0.5 + MARGIN
        figure = Figure(figsize=(width, height))

        def write(x: float, y: float, text: str, **look: Any) -> None:
            figure.text(x / width, 1 - y / height, text, parse_math=False, **{"va": "center_baseline", **look})

        write(MARGIN, MARGIN, lines, fontsize=style.TITLE, fontweight="bold", va="top", linespacing=1.25)
        down = MARGIN + 0.2 * (lines.count("\n") + 1) + 0.03
        for note in notes:
            write(MARGIN, down, note, fontsize=style.SMALL, color=style.MUTED, va="top", linespacing=1.25)
            down += 0.15 * (note.count("\n") + 1)
        ends = [at_numbers + (i + 1) * NUMBER - 0.06 for i in range(len(numbers[0]))]
        write(left, top - 0.1, "q", fontsize=style.SMALL, color=style.MUTED)
        write(left - 0.08, top + ROW / 2, label(asked.word, 24), fontsize=style.BODY + 0.5, fontweight="bold", ha="right")
        for text, x in zip(found.titles, (left, at_terms, *ends, at_bars)):
            write(x, body - 0.1, text, fontsize=style.SMALL, color=style.MUTED, ha="right" if x in ends else "left")
        vectors = np.vstack([found.keys[asked.keys], asked.query])
        reach, most = (max(float(np.abs(part).max()), 1e-9) for part in (vectors, asked.terms))
        strip(axes_at(figure, left, top, STRIP, ROW * 0.86), asked.query[None], reach)
        strip(axes_at(figure, left, body, STRIP, rows * ROW), found.keys[asked.keys], reach, hidden)
        strip(axes_at(figure, at_terms, body, STRIP, rows * ROW), asked.terms, most, hidden)
        bars = axes_at(figure, at_bars, body, 1.05, rows * ROW)
        bars.barh(np.arange(rows) + 0.5, asked.weights, height=0.62, color=style.sequential_colormap()(0.82))
        bars.set(xlim=(0, 1), ylim=(rows, 0), xticks=[], yticks=[])
        bars.spines[:].set_visible(False)
        bars.spines["left"].set_visible(True)
        for row, (name, cells) in enumerate(zip(names, numbers)):
            y, colour = body + (row + 0.5) * ROW, style.MUTED if hidden[row] else style.TEXT
            write(left - 0.08, y, name, fontsize=style.BODY, ha="right", color=colour)
            for x, cell in zip(ends, cells):
                write(x, y, cell, fontsize=style.SMALL, ha="right", color=colour)
            weight = float(asked.weights[row])
            write(at_bars + 1.05 * weight + 0.06, y, f"{weight:.2f}", fontsize=style.SMALL, color=style.MUTED)
        for x, far in ((left, reach), (at_terms, most)):
            scale_bar(figure, axes_at(figure, x, body + rows * ROW + 0.16, STRIP / 2, 0.07), far)
    return figure


def strip(axes: Axes, vectors: np.ndarray, reach: float, hidden: np.ndarray | None = None) -> None:
    """Vectors (N, K), one under another."""
    rows, across = vectors.shape
    axes.imshow(
        vectors,
        cmap=style.diverging_colormap(),
        vmin=-reach,
        vmax=reach,
        aspect="auto",
        interpolation="none",
        extent=(0, across, rows, 0),
    )
    axes.hlines(np.arange(1, rows), 0, across, color=style.PAPER, linewidth=2.2)
    for row in np.flatnonzero(hidden).tolist() if hidden is not None else ():
        axes.axhspan(row, row + 1, color=style.PAPER, alpha=0.65, linewidth=0)
    axes.set(xticks=[], yticks=[], xlim=(0, across), ylim=(rows, 0))
    axes.spines[:].set_visible(False)


def scale_bar(figure: Figure, axes: Axes, reach: float) -> None:
    bar = figure.colorbar(
        ScalarMappable(Normalize(-reach, reach), style.diverging_colormap()), cax=axes, orientation="horizontal"
    )
    bar.outline.set(edgecolor=style.FAINT, linewidth=0.6)
    axes.set_xticks([-reach, 0, reach], [f"−{reach:.2g}", "0", f"{reach:.2g}"])
    axes.tick_params(labelsize=style.SMALL - 0.5, length=0, pad=2)


def neuron_text(found: NeuronView, number: int = 0, width: int = 100) -> str:
    """The same in plain text: of the components, the three that count most by their numbers, and what they add."""
    asked = found.questions[number]
    names = found.named(asked)
    margin = max(map(terminal_width, names))
    lines = [f"{label(asked.word)} asks; {found.name}"]
    lines += [" " * margin + "  " + "".join(f"{title:>14}" for title in found.titles[2:-1]) + "  softmax"]
    for name, cells, weight, terms in zip(names, found.numbers(asked), asked.weights, asked.terms):
        order = np.argsort(-np.abs(terms), kind="stable")[:3]
        said = " " * (margin - terminal_width(name)) + name + "  " + "".join(f"{cell:>14}" for cell in cells)
        said += f"  {weight:.2f} {SHADES[-1] * round(20 * float(weight))}".ljust(29)
        most = "" if cells[-1] == HIDDEN else " ".join(f"{i + 1}:{format_signed(terms[i])}" for i in order)
        lines.append((said + most if terminal_width(said + most) <= width else said).rstrip())
    return "\n".join([*lines, "", *(note for note in (found.enters, asked.left) if note)])


def neuron_page(found: NeuronView, number: int, still: str, *, title: str) -> str:
    """A page in which another query can be pointed at; without a script, it shows the picture `still` (SVG)."""
    used = np.unique(np.concatenate([one.keys for one in found.questions]))
    reach = max(float(np.abs(np.vstack([found.keys[used], *(one.query for one in found.questions)])).max()), 1e-9)
    said = {
        "ramp": encode_bytes(np.round(style.diverging_colormap()(np.arange(255))[:, :3] * 255)),
        "titles": found.titles,
        "at": number,
        "reach": reach,
        "width": int(found.keys.shape[1]),
        "keys": encode_signed(found.keys[used], reach),
        "questions": [query_json(found, one, used, reach) for one in found.questions],
    }
    about = "; ".join(note for note in (found.name, found.enters, found.note) if note)
    body = (
        f'<p class="lead">{escape(about)}</p>\n<div class="asked" id="asked"></div>\n<div id="stage"></div>\n'
        f'<p id="said"></p>\n<noscript><figure><div class="card">{still}</div></figure></noscript>\n'
    )
    return script_page(title, body, said, "neurons.js", STYLE)


def query_json(found: NeuronView, asked: NeuronQuery, used: np.ndarray, reach: float) -> dict[str, object]:
    most = max(float(np.abs(asked.terms).max()), 1e-9)
    return {
        "word": label(asked.word, 24),
        "query": encode_signed(asked.query, reach),
        "reach": most,
        "words": found.named(asked),
        "terms": encode_signed(asked.terms, most),
        "left": asked.left,
        "keys": np.searchsorted(used, asked.keys).tolist(),
        "numbers": found.numbers(asked),
        "hidden": np.flatnonzero(~np.isfinite(asked.scores)).tolist(),
        "weights": [round(float(x), 4) for x in asked.weights],
    }


def encode_signed(numbers: np.ndarray, reach: float) -> str:
    """-reach to reach as 0 to 254."""
    return encode_bytes(np.round(numbers / reach * 127) + 127)
