"""The neuron view: how one head computes its weights, component by component: q, k, their product, its sum, the softmax.

After BertViz (Vig 2019). A figure shows one query; a page lets the reader choose among several.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from regard.show.figures import style
from regard.show.figures.html_pages import encode_bytes, script_page
from regard.show.figures.labels import SHADES, label, terminal_width

MAX_KEYS, MAX_QUERIES = 40, 160
"""Keys drawn for one query, and queries of a page."""
STRIP, ROW, GAP, NUMBER = 2.3, 0.23, 0.2, 0.62  # inches: a vector, a line, between columns, a column of numbers
MASKED = "−∞"
STYLE = """
.queries { display: flex; flex-wrap: wrap; gap: .15rem .1rem; margin: 0 0 .8rem; max-height: 9.5rem; overflow: auto;
         font-size: .95rem; line-height: 1.5; }
.queries button { font: inherit; color: var(--ink); background: none; border: 1px solid transparent; border-radius: 3px;
                padding: 0 .3rem; cursor: pointer; white-space: pre; }
.queries button:hover { border-color: var(--line); }
.queries button[aria-pressed=true] { background: var(--ink); color: var(--paper); }
.sums { display: grid; gap: 2px 12px; align-items: center; font-variant-numeric: tabular-nums; }
.sums .title { color: var(--soft); font-size: 11.5px; padding-bottom: 3px; white-space: pre; }
.sums .word { text-align: right; white-space: pre; overflow: hidden; text-overflow: ellipsis; max-width: 13rem;
              line-height: 17px; }
.sums .query { font-weight: 700; }
.sums .title.under { padding-top: 7px; }
.sums .number { text-align: right; }
.sums canvas { display: block; width: 100%; height: 15px; image-rendering: pixelated; cursor: crosshair; }
.sums .weight { display: flex; align-items: center; gap: 6px; }
.sums .weight i { display: block; height: 11px; background: var(--accent); }
.sums .masked { opacity: .35; }
@media (max-width: 40rem) {
  .sums { gap: 2px 5px; font-size: 11px; } .sums .title { font-size: 10px; } .sums .word { max-width: 5rem; } }
"""


@dataclass(frozen=True)
class NeuronQuery:
    """One query, and its scores and weights at some of the keys."""

    word: str
    query: np.ndarray  # (K,)
    keys: np.ndarray  # (N,) indices
    terms: np.ndarray
    """(N, K) What each component adds to each score."""
    scores: np.ndarray
    """(N,) The input of the softmax, -∞ where a key is masked."""
    weights: np.ndarray  # (N,)
    others: int = 0
    """The number of keys left out."""

    @property
    def sums(self) -> np.ndarray:
        return np.asarray(self.terms.sum(-1))

    @property
    def bias(self) -> np.ndarray:
        """(N,) What is added to the sums."""
        return np.where(np.isfinite(self.scores), self.scores - self.sums, 0.0)

    @property
    def masked(self) -> np.ndarray:
        return np.asarray(~np.isfinite(self.scores))

    @property
    def left_out(self) -> str:
        """A note on the keys left out, empty if none."""
        if not self.others:
            return ""
        return f"the {len(self.keys)} heaviest of {len(self.keys) + self.others:,} keys, {self.weights.sum():.2f} of the weight"


@dataclass(frozen=True)
class NeuronView:
    """One head: its keys, and some of its queries."""

    name: str
    formula: str
    """Of the score, before any bias."""
    positions: str
    """Where positions enter, in words."""
    words: Sequence[str]
    keys: np.ndarray  # (S, K)
    queries: Sequence[NeuronQuery]
    note: str = ""
    """Which queries these are, where not all."""

    @property
    def biased(self) -> bool:
        return any(np.abs(query.bias).max() > 1e-4 for query in self.queries)

    @property
    def titles(self) -> list[str]:
        """The column titles: keys, terms, sums, bias, scores, weights."""
        added = ["+ bias", "= score"] if self.biased else []
        return ["k", self.formula.replace("·", "∘", 1), self.formula, *added, "softmax"]

    def key_labels(self, query: NeuronQuery) -> list[str]:
        """Return the labels of a query's keys, with their numbers (from 1) where keys are left out."""
        return [
            f"{key + 1} {label(self.words[key], 20)}" if query.others else label(self.words[key], 24)
            for key in query.keys.tolist()
        ]

    def numbers(self, query: NeuronQuery) -> list[list[str]]:
        """Return the columns of numbers for each key."""
        rows = []
        for total, bias, score in zip(query.sums, query.bias, query.scores):
            end = format_signed(score) if np.isfinite(score) else MASKED
            rows.append([format_signed(total), format_signed(bias), end] if self.biased else [end])
        return rows


def format_signed(number: float) -> str:
    return f"{number:.2f}".replace("-", "−").replace("−0.00", "0.00")


def heaviest_keys(weights: np.ndarray, scores: np.ndarray, most: int = MAX_KEYS) -> np.ndarray:
    """Return the indices of the heaviest keys, in order; of equal ones the one with the greater score, or the earlier."""
    heaviest = np.lexsort((np.arange(len(weights)), -scores, -weights))
    return np.sort(heaviest[:most])


@style.house_style()
def neuron_figure(view: NeuronView, number: int = 0, *, title: str | None = None) -> Figure:
    """Draw one query: q above the keys, the products beside them, their sums, and the softmax as bars."""
    query = view.queries[number]
    names, numbers, rows = view.key_labels(query), view.numbers(query), len(query.keys)
    small = dict(fontsize=style.SMALL, color=style.theme().muted)
    left = style.MARGIN + float(style.text_widths([*names, label(query.word, 24)], style.BODY + 0.5, "bold").max()) + 0.12
    at_terms, at_numbers = left + STRIP + GAP, left + 2 * (STRIP + GAP)
    at_bars = at_numbers + len(numbers[0]) * NUMBER + GAP
    width = at_bars + 1.5 + style.MARGIN
    notes = [style.wrap_text(note, style.SMALL, width - 2 * style.MARGIN) for note in (view.positions, query.left_out) if note]
    above = sum(0.15 * (note.count("\n") + 1) for note in notes) + 0.34
    figure, down = style.titled_figure(title or view.name, width, above + 1.75 * ROW + rows * ROW + 0.5, gap=0)
    top, body = down + above, down + above + 1.75 * ROW
    for note in notes:
        style.draw_text(figure, style.MARGIN, down + 0.03, note, va="top", linespacing=1.25, **small)
        down += 0.15 * (note.count("\n") + 1)
    ends = [at_numbers + (i + 1) * NUMBER - 0.06 for i in range(len(numbers[0]))]
    style.draw_text(figure, left, top - 0.1, "q", **small)
    style.draw_text(
        figure,
        left - 0.08,
        top + ROW / 2,
        label(query.word, 24),
        fontsize=style.BODY + 0.5,
        fontweight="bold",
        ha="right",
    )
    for text, x in zip(view.titles, (left, at_terms, *ends, at_bars)):
        style.draw_text(figure, x, body - 0.1, text, ha="right" if x in ends else "left", **small)
    vectors = np.vstack([view.keys[query.keys], query.query])
    reach, most = (max(float(np.abs(part).max()), 1e-9) for part in (vectors, query.terms))
    draw_vectors(style.axes_at(figure, left, top, STRIP, ROW * 0.86), query.query[None], reach)
    draw_vectors(style.axes_at(figure, left, body, STRIP, rows * ROW), view.keys[query.keys], reach, query.masked)
    draw_vectors(style.axes_at(figure, at_terms, body, STRIP, rows * ROW), query.terms, most, query.masked)
    style.draw_bars(style.axes_at(figure, at_bars, body, 1.05, rows * ROW), query.weights, 0.62)
    for row, (name, cells) in enumerate(zip(names, numbers)):
        y, colour = body + (row + 0.5) * ROW, style.theme().muted if query.masked[row] else style.theme().text
        style.draw_text(figure, left - 0.08, y, name, fontsize=style.BODY, ha="right", color=colour)
        for x, cell in zip(ends, cells):
            style.draw_text(figure, x, y, cell, fontsize=style.SMALL, ha="right", color=colour)
        weight = float(query.weights[row])
        style.draw_text(figure, at_bars + 1.05 * weight + 0.06, y, f"{weight:.2f}", **small)
    for x, limit in ((left, reach), (at_terms, most)):
        axes = style.axes_at(figure, x, body + rows * ROW + 0.16, STRIP / 2, 0.07)
        style.colour_bar(axes, Normalize(-limit, limit), style.diverging_colormap(), pad=2, orientation="horizontal")
        axes.set_xticks([-limit, 0, limit], [f"−{limit:.2g}", "0", f"{limit:.2g}"])
    return figure


def draw_vectors(axes: Axes, vectors: np.ndarray, reach: float, masked: np.ndarray | None = None) -> None:
    """Draw vectors (N, K) one under another, masked ones faded."""
    rows, across = vectors.shape
    style.draw_signed(axes, vectors, reach, aspect="auto", extent=(0, across, rows, 0))
    axes.hlines(np.arange(1, rows), 0, across, color=style.theme().paper, linewidth=2.2)
    for row in np.flatnonzero(masked).tolist() if masked is not None else ():
        axes.axhspan(row, row + 1, color=style.theme().paper, alpha=0.65, linewidth=0)
    axes.set(xticks=[], yticks=[], xlim=(0, across), ylim=(rows, 0))
    axes.spines[:].set_visible(False)


def neuron_text(view: NeuronView, number: int = 0, width: int = 100) -> str:
    """Return one query for a terminal; of the components, the three that add most, by number."""
    query = view.queries[number]
    names = view.key_labels(query)
    margin = max(map(terminal_width, names))
    lines = [f"query {label(query.word)}; {view.name}"]
    lines += [" " * margin + "  " + "".join(f"{title:>14}" for title in view.titles[2:-1]) + "  softmax"]
    for name, cells, weight, terms in zip(names, view.numbers(query), query.weights, query.terms):
        order = np.argsort(-np.abs(terms), kind="stable")[:3]
        line = " " * (margin - terminal_width(name)) + name + "  " + "".join(f"{cell:>14}" for cell in cells)
        line += f"  {weight:.2f} {SHADES[-1] * round(20 * float(weight))}".ljust(29)
        most = "" if cells[-1] == MASKED else " ".join(f"{i + 1}:{format_signed(terms[i])}" for i in order)
        lines.append((line + most if terminal_width(line + most) <= width else line).rstrip())
    return "\n".join([*lines, "", *(note for note in (view.positions, query.left_out) if note)])


def neuron_page(view: NeuronView, number: int, still: str, *, title: str) -> str:
    """Return a page in which a query can be chosen; without a script, it shows the figure `still` (SVG)."""
    used = np.unique(np.concatenate([query.keys for query in view.queries]))
    reach = max(float(np.abs(np.vstack([view.keys[used], *(query.query for query in view.queries)])).max()), 1e-9)
    data = {
        "titles": view.titles,
        "at": number,
        "reach": reach,
        "width": int(view.keys.shape[1]),
        "keys": encode_signed(view.keys[used], reach),
        "queries": [query_json(view, query, used, reach) for query in view.queries],
    }
    about = "; ".join(note for note in (view.name, view.positions, view.note) if note)
    body = (
        f'<p class="lead">{escape(about)}</p>\n<div class="queries" id="queries"></div>\n<div id="stage"></div>\n'
        f'<p id="status"></p>\n<noscript><figure><div class="card">{still}</div></figure></noscript>\n'
    )
    return script_page(title, body, data, "neurons.js", STYLE)


def query_json(view: NeuronView, query: NeuronQuery, used: np.ndarray, reach: float) -> dict[str, object]:
    most = max(float(np.abs(query.terms).max()), 1e-9)
    return {
        "word": label(query.word, 24),
        "query": encode_signed(query.query, reach),
        "reach": most,
        "words": view.key_labels(query),
        "terms": encode_signed(query.terms, most),
        "note": query.left_out,
        "keys": np.searchsorted(used, query.keys).tolist(),
        "numbers": view.numbers(query),
        "masked": np.flatnonzero(query.masked).tolist(),
        "weights": [round(float(x), 4) for x in query.weights],
    }


def encode_signed(numbers: np.ndarray, reach: float) -> str:
    """Encode -reach to reach as bytes 0 to 254."""
    return encode_bytes(np.round(numbers / reach * 127) + 127)
