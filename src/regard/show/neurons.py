"""Record and draw how one head of a run computes its weights: queries, keys and scores."""

import re
import shutil
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from regard.attention.modules import attention_modules
from regard.attention.positions import PositionEncoding
from regard.attention.record import ModuleRecord, Record
from regard.attention.recording import AttentionRecording
from regard.errors import UserError
from regard.show.figures.figure_files import to_svg
from regard.show.figures.head_views import head_entropies
from regard.show.figures.labels import clean, shorten
from regard.show.figures.neuron_view import (
    MAX_QUERIES,
    NeuronQuery,
    NeuronView,
    heaviest_keys,
    neuron_figure,
    neuron_page,
    neuron_text,
)
from regard.show.inline import InlineFigure
from regard.show.recording import BUDGET, attention_maps, group_layers, model_inputs, query_and_key_labels
from regard.show.selection import ViewSelection, select
from regard.show.token_choice import choose_token
from regard.tasks.base import Run

HIDDEN = -1e30
"""Models of other libraries hide a key by a bias as low as their numbers go."""
POSITIONS_IN_RECURRENCE = "order is within q and k: they come from recurrent cells"
POSITIONS_ACROSS = "no positions between the two sides; within each, they are in the inputs of q and k"


def show_neurons(run: Run, text: str, selection: ViewSelection) -> InlineFigure:
    """Draw the queries and keys of one head of a run that reads a text, component by component."""
    return draw_neurons(*record_neurons(run, text, selection), title=text)


def draw_neurons(view: NeuronView, at: int, *, title: str = "") -> InlineFigure:
    """Draw a head at one of its queries; a page has all of them."""
    title = shorten(clean(title), 90) or "queries and keys"
    return InlineFigure(
        f"{view.name}: query {view.queries[at].word}, {len(view.words)} keys of {view.keys.shape[1]} components",
        lambda: neuron_figure(view, at),
        text=lambda: neuron_text(view, at, shutil.get_terminal_size((100, 40)).columns),
        page=lambda: neuron_page(view, at, to_svg(neuron_figure(view, at)), title=title),
        title=title,
        note=view.note,
    )


def record_neurons(run: Run, text: str, selection: ViewSelection) -> tuple[NeuronView, int]:
    """Record the queries and keys of the selected head of a run, by default the sharpest of the sharpest layer."""
    inputs = model_inputs(run, text)
    record = inputs.record()
    module, head, _ = select_head(record, selection)
    name = rf"^{re.escape(module.name)}$"
    _, seen = inputs.watch(kinds=name, heads=[module.heads[head]], queries=True, budget=BUDGET)
    return neuron_view(seen, record, selection, positions=position_note(run, module))


def select_head(record: Record, selection: ViewSelection, row: int = 0) -> tuple[ModuleRecord, int, str]:
    """Return the module of the selected layer, the index of the selected head among its heads, and their name."""
    choice = ViewSelection(kind=selection.kind, layer=selection.layer, head=selection.head)
    group, selected = select(attention_maps(record, row), choice)
    maps, layer = selected.maps, selected.shown_layer
    head = int(head_entropies(maps.weights[layer]).argmin()) if selected.head is None else selected.head
    return list(group_layers(record).values())[group][layer], head, f"{selected.layer_name}, head {maps.heads[head]}"


def neuron_view(
    seen: AttentionRecording, record: Record, selection: ViewSelection, *, row: int = 0, positions: str = ""
) -> tuple[NeuronView, int]:
    """Return the selected head of a record whose queries and keys were recorded, and the index of the selected query among
    those around it that a page has room for."""
    module, head, title = select_head(record, selection, row)
    if module.name not in seen.score_functions:
        why = seen.omitted.get(f"{module.name} (queries)", "watch with queries=True")
        raise UserError(f"--view neurons: {module.name} was recorded without queries and keys ({why})")
    queries, keys, _ = query_and_key_labels(module, record.tokens, row)
    if seen.omitted:
        raise UserError(f"{len(queries)} × {len(keys)} tokens: their queries and keys exceed {BUDGET}; use a shorter text")
    given = selection.token
    token, note = (len(queries) // 2, "") if given is None else choose_token(queries, given)
    first = max(0, min(token - MAX_QUERIES // 2, len(queries) - MAX_QUERIES))
    chosen = range(first, min(first + MAX_QUERIES, len(queries)))
    if len(chosen) < len(queries):
        note = note or f"queries {chosen[0] + 1:,} to {chosen[-1] + 1:,} of {len(queries):,}; --token selects others"
    index = 0 if seen.heads is not None and len(seen.heads) == 1 else head  # among the recorded heads
    vectors = max(seen.keys[module.name], key=lambda k: k.size(2))[row, index]
    view = NeuronView(
        title,
        seen.score_functions[module.name].formula(vectors.size(-1)),
        positions,
        keys,
        to_numpy(vectors),
        neuron_queries(seen, module.name, (row, index), queries, chosen),
        note,
    )
    return view, token - first


def neuron_queries(
    seen: AttentionRecording, name: str, place: tuple[int, int], words: Sequence[str], chosen: range
) -> list[NeuronQuery]:
    """Return the chosen queries of a row and head with their terms, scores and weights; recurrent cells have one query per
    call."""
    row, head = place
    rows = [
        (q[row, head, i], k[row, head], scores[row, head, i], recorded.parts["weights"][row, head, i])
        for q, k, scores, recorded in zip(seen.queries[name], seen.keys[name], seen.scores[name], seen.recorded(name))
        for i in range(q.size(2))
    ]
    found = []
    for index in chosen:
        query, k, *tensors = rows[index]
        scores, weights = map(to_numpy, tensors)
        scores = np.where(scores < HIDDEN, -np.inf, scores)
        keys = heaviest_keys(weights, scores)
        terms = seen.score_functions[name].terms(query[None, None, None].double(), k[None, None, keys].double())[0, 0, 0]
        left_out = len(scores) - len(keys)
        found.append(NeuronQuery(words[index], to_numpy(query), keys, to_numpy(terms), scores[keys], weights[keys], left_out))
    return found


def to_numpy(x: Tensor) -> np.ndarray:
    return x.detach().double().cpu().numpy()


def position_note(run: Run, module: ModuleRecord) -> str:
    """Describe where positions enter the scores of an attention module."""
    parents = [run.model.get_submodule(module.name[: end.start()]) for end in re.finditer(r"\.|$", module.name)]
    found = (getattr(parent, "positions", None) for parent in parents)
    positions = next((encoding for encoding in found if isinstance(encoding, PositionEncoding)), None)
    if positions is None:
        return POSITIONS_IN_RECURRENCE if attention_modules(run.model) else ""  # not known of models of other libraries
    return POSITIONS_ACROSS if module.kind == "cross" else positions.description
