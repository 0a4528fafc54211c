"""Search a set of sentences by head: what each head attends to, and where it puts the most weight on one token.

The weights are those that the other views show: of a translator, while it reads its own translation.
"""

import heapq
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from regard.corpus.examples import ImageExamples, QuestionExamples
from regard.errors import UserError
from regard.explain.explanation import ReportTable
from regard.explain.heads import HeadRole, RoleWeights, map_relations
from regard.explain.text_outputs import is_foreign, load_examples
from regard.show.figures import style
from regard.show.figures.attention_maps import AttentionMaps
from regard.show.figures.html_pages import HtmlReport, html_report
from regard.show.figures.labels import label, shorten
from regard.show.figures.matrix import attention_matrix
from regard.show.inline import InlineFigure, svg_in_both_themes
from regard.show.recording import attention_maps, record_attention
from regard.show.selection import ATTENTION_KINDS, ViewSelection, pluralize
from regard.show.token_choice import word_starts
from regard.tasks.base import Run
from regard.tasks.transformers_models import TransformersRun

NUM_SENTENCES = 64
MAX_HITS = 8
"""Sentences that are kept of each head."""
RELATIONS = ("previous word", "next word", "same word", "first token", "punctuation", "separator")
OTHER = "another word"
TITLE = "heads by what they attend to"
LINE, GAP = 0.23, 0.22  # inches: between lines and between columns of the list of hits


class HeadHit(NamedTuple):
    """Where a head puts most weight on one key in a sentence; indices count from 0."""

    weight: float
    sentence: int
    query: int
    key: int
    relation: str


@dataclass(frozen=True)
class SearchedHead:
    """A head over a set of sentences; layer and head count from 1, `kind` is None where a model has one kind of attention."""

    kind: str | None
    name: str
    layer: int
    head: int
    role: HeadRole
    hits: list[HeadHit]
    """The heaviest first, at most one of each sentence."""

    @property
    def short_name(self) -> str:
        """The name for a column: "cross 2.3"; `regard show --head` takes it too."""
        return f"{self.kind or ''} {self.layer}.{self.head}".strip()

    def matches(self, selection: ViewSelection) -> bool:
        """Return whether the head is among the selected ones."""
        pairs = ((selection.kind, self.kind), (selection.layer, self.layer), (selection.head, self.head))
        return all(given is None or given == own for given, own in pairs)


@dataclass(frozen=True)
class HeadSearch:
    """All heads over a set of sentences, and the tokens (queries, keys) of each sentence by kind of attention."""

    texts: list[str]
    heads: list[SearchedHead]
    tokens: dict[tuple[str | None, int], tuple[Sequence[str], Sequence[str]]]
    skipped: int
    """Sentences that the model does not take, or of which it has no map of single tokens."""

    @property
    def relations(self) -> list[str]:
        return [name for name in RELATIONS if any(name in head.role.weights for head in self.heads)]

    def words(self, head: SearchedHead, hit: HeadHit) -> tuple[str, str]:
        """Return the query and the key of a hit."""
        queries, keys = self.tokens[head.kind, hit.sentence]
        return queries[hit.query], keys[hit.key]

    def tables(self, selected: Sequence[SearchedHead]) -> list[ReportTable]:
        """Return the table of heads by relation, and the hits of the selected heads."""
        names = self.relations
        rows = [
            [head.name, head.role.role]
            + ["{:.2f} ({:.2f})".format(*head.role.weights[name]) if name in head.role.weights else "" for name in names]
            for head in self.heads
        ]
        number = pluralize(len(self.texts) - self.skipped, "sentence")
        tables = [ReportTable(f"heads over {number}: weight on each relation (chance)", ["head", "role", *names], rows)]
        for head in selected:
            lines = [
                [f"{hit.weight:.2f}", " → ".join(self.words(head, hit)), hit.relation, shorten(self.texts[hit.sentence], 90)]
                for hit in head.hits
            ]
            tables.append(ReportTable(head.name, ["weight", "query → key", "relation", "sentence"], lines))
        return tables


def show_search(run: Run, texts: Sequence[str] | None, selection: ViewSelection, number: int = NUM_SENTENCES) -> InlineFigure:
    """Draw the heads of a run over sentences, by default of its validation set; `data` of the figure is the HeadSearch."""
    found = search_heads(run, search_texts(run, "valid", number) if texts is None else texts, word=selection.token)
    some = any(part is not None for part in (selection.kind, selection.layer, selection.head, selection.token))
    selected = [head for head in found.heads if some and head.matches(selection)]
    if some and not selected:
        raise UserError(f"--view search: no such head; there are {', '.join(head.name for head in found.heads[:6])} …")
    tables = found.tables(selected)
    title, names = tables[0].title, found.relations
    weights = np.array([[head.role.weights.get(name, (0.0, 0.0))[0] for name in names] for head in found.heads])

    def heat_map(title: str = TITLE) -> Figure:
        return attention_matrix(weights, names, [head.short_name for head in found.heads], title=title)

    def page() -> str:
        answer = [("The mean weight of each head.", svg_in_both_themes(lambda: heat_map("")))]
        return html_report(HtmlReport(TITLE, tables[0].title, answer=answer, tables=[*tables[1:], tables[0]]))

    def figure() -> Figure:
        return hits_figure(tables[1:]) if selected else heat_map()

    skipped = f"{pluralize(found.skipped, 'sentence')} too long or empty" if found.skipped else ""
    return InlineFigure(
        title, figure, text=lambda: table_text(tables)[len(title) + 1 :], page=page, title=title, data=found, note=skipped
    )


def search_texts(run: Run, data: str, number: int) -> list[str]:
    """Return sentences of a set of the run or of a file, spread over all of it."""
    examples = load_examples(run, data)
    if isinstance(examples, ImageExamples | QuestionExamples):
        raise UserError(f"--view search: {run.folder} {run.task.does}; the search is for runs that read sentences")
    texts = examples.keys()
    return [texts[i] for i in range(0, len(texts), max(1, -(-len(texts) // number)))]


def search_heads(run: Run, texts: Sequence[str], *, word: str | int | None = None, words_only: bool = True) -> HeadSearch:
    """Run the model on each sentence; return what every head attends to, and its heaviest pair of tokens in each sentence.

    `word` restricts the queries to one word. With `words_only`, pairs with a special token are no hits, though they count as a
    relation; a query that sees a single key is never a hit.
    """
    sums, special = RoleWeights(), special_labels(run)
    hits: dict[tuple[str, int], list[HeadHit]] = defaultdict(list)
    stacks: dict[str, tuple[str | None, str]] = {}
    tokens: dict[tuple[str | None, int], tuple[Sequence[str], Sequence[str]]] = {}
    error: UserError | None = None
    skipped = 0
    for sentence, text in enumerate(texts):
        try:
            groups = attention_maps(record_attention(run, text))
        except UserError as refused:  # too long, or empty
            error, skipped = refused, skipped + 1
            continue
        if any(maps.tile > 1 for maps in groups):
            skipped += 1
            continue
        for maps in groups:
            kind = {name: kind for kind, name in ATTENTION_KINDS.items()}.get(maps.name)
            tokens[kind, sentence] = maps.queries, maps.keys
            relations = relations_of_map(maps, special)
            allowed = allowed_pairs(maps, special if words_only else set(), word)
            for layer, weights in zip(maps.layers, torch.from_numpy(maps.weights)):
                place = f"{maps.name}, layer {layer}"
                stacks[place] = kind, layer
                sums.add(place, weights, relations)
                for head, hit in enumerate(heaviest_pairs(weights, allowed, relations, sentence)):
                    keep_hit(hits[place, head], hit)
    if error is not None and skipped == len(texts):
        raise error
    if not stacks:
        raise UserError("--view search: no sentence could be read one token at a time; give shorter ones")
    heads = [
        SearchedHead(kind, f"{role.module}, head {role.head + 1}", int(layer), role.head + 1, role, best)
        for role in sums.roles()
        for kind, layer in [stacks[role.module]]
        for best in [sorted(hits[role.module, role.head], reverse=True)]
    ]
    return HeadSearch(list(texts), heads, tokens, skipped)


def special_labels(run: Run) -> set[str]:
    """Return the special tokens of a run as figures label them."""
    if is_foreign(run):
        return set(cast(TransformersRun, run)._parts.tokenizer.all_special_tokens)
    found: set[str] = set()
    for tokenizer, tokens in zip((run.tokenizers[0], run.tokenizers[-1]), (run._special_tokens, run._output_special_tokens())):
        ids = {*tokens.prefix, *tokens.suffix, *tokens.output_start, tokens.eos, tokens.bos}
        found |= {label for number in ids if number >= 0 for label in tokenizer.labels([number])}
    return found


def relations_of_map(maps: AttentionMaps, special: set[str]) -> dict[str, Tensor]:
    """Return the relations between queries and keys (T, S); of cross-attention, those that two texts can have."""
    same_text = maps.name != ATTENTION_KINDS["cross"]
    separators = [key in special for key in maps.keys]
    found = map_relations(maps.queries, maps.keys, separators, same_text=same_text)
    T = len(maps.queries)
    found["punctuation"] = torch.tensor([is_punctuation(key) for key in maps.keys]).expand(T, -1)
    found["first token"] = (torch.arange(len(maps.keys)) == 0).expand(T, -1)
    return found


def is_punctuation(token: str) -> bool:
    return bool(token) and all(unicodedata.category(character)[0] == "P" for character in token.removeprefix("·"))


def allowed_pairs(maps: AttentionMaps, special: set[str], word: str | int | None) -> Tensor:
    """Return which pairs (T, S) may be hits: no special token, and only the word's queries where one is named."""
    T = len(maps.queries)
    rows = torch.tensor([query not in special for query in maps.queries])
    if word is not None:
        starts = set(word_starts(maps.queries, str(word)))
        rows &= torch.tensor([position in starts for position in range(T)])
    visible = torch.from_numpy(maps.weights > 0).any(0).any(0)
    columns = torch.tensor([key not in special for key in maps.keys])
    return rows[:, None] & columns & (visible.sum(-1, keepdim=True) > 1)


def heaviest_pairs(weights: Tensor, allowed: Tensor, relations: dict[str, Tensor], sentence: int) -> Iterable[HeadHit | None]:
    """Yield the allowed pair of most weight of each head (H, T, S); None where no pair is allowed."""
    best, where = weights.masked_fill(~allowed, -1.0).flatten(1).max(-1)
    for weight, place in zip(best.tolist(), where.tolist()):
        query, key = divmod(place, weights.size(-1))
        name = next((name for name in RELATIONS if name in relations and bool(relations[name][query, key])), OTHER)
        yield HeadHit(weight, sentence, query, key, name) if weight > 0 else None


def keep_hit(kept: list[HeadHit], hit: HeadHit | None) -> None:
    """Keep the MAX_HITS heaviest hits as a heap."""
    if hit is not None:
        heapq.heappush(kept, hit) if len(kept) < MAX_HITS else heapq.heappushpop(kept, hit)


@style.house_style()
def hits_figure(tables: Sequence[ReportTable]) -> Figure:
    """Draw the hits of heads as a list: the weight, the pair of tokens, the relation, the sentence."""
    rows = [[label(cell, 100) for cell in row] for table in tables for row in table.rows]
    fonts = ("normal", "bold", "normal", "normal")
    widths = [float(style.text_widths([row[i] for row in rows] or [""], style.BODY, font).max()) for i, font in enumerate(fonts)]
    starts = np.cumsum([style.MARGIN, *(width + GAP for width in widths)])
    lines = len(rows) + 1.8 * len(tables) - 0.8
    figure, top = style.titled_figure(tables[0].title, max(float(starts[-1]), 4.0), lines * LINE + style.MARGIN)
    top += LINE / 2
    for number, table in enumerate(tables):
        if number:
            top += 0.8 * LINE
            style.draw_text(figure, style.MARGIN, top, table.title, fontsize=style.BODY, fontweight="bold")
            top += LINE
        for row in table.rows:
            for cell, font, left in zip(row, fonts, starts):
                muted = font == "normal" and left == starts[2]
                colour = style.theme().muted if muted else style.theme().text
                style.draw_text(figure, float(left), top, label(cell, 100), fontsize=style.BODY, fontweight=font, color=colour)
            top += LINE
    return figure


def table_text(tables: Sequence[ReportTable]) -> str:
    """Return tables for a terminal."""
    parts = []
    for table in tables:
        rows = [table.header, *table.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(table.header))]
        lines = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        parts.append("\n".join([table.title, *lines]))
    return "\n\n".join(parts)
