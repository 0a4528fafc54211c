"""Record and draw how one head of a run computes its weights: queries, keys and scores."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from regard.attention.modules import attention_modules
from regard.attention.positions import PositionEncoding
from regard.attention.record import ModuleRecord
from regard.attention.recording import AttentionRecording
from regard.errors import UserError
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
from regard.show.figures.style import to_svg, write_view
from regard.show.recording import BUDGET, attention_maps, group_layers, model_inputs, query_and_key_labels
from regard.show.selection import ViewSelection, select, token_index
from regard.tasks.base import Run

POSITIONS_IN_RECURRENCE = "order is within q and k: they come from recurrent cells"
POSITIONS_ACROSS = "no positions between the two sides; within each, they are in the inputs of q and k"


def show_neurons(run: Run, text: str, selection: ViewSelection, *, out: Path | None = None, terminal: bool = False) -> str:
    """Draw the queries and keys of one head component by component. Return a description."""
    several = out is not None and out.suffix.lower() == ".html"
    view, at = record_neurons(run, text, selection, several=several)
    write_view(
        out,
        lambda: neuron_figure(view, at),
        lambda: neuron_page(view, at, to_svg(neuron_figure(view, at)), title=shorten(clean(text), 90)),
    )
    word = view.queries[at].word
    description = f"{view.name}: query {word}, {len(view.words)} keys of {view.keys.shape[1]} components"
    return description + ("\n\n" + neuron_text(view, at, shutil.get_terminal_size((100, 40)).columns) if terminal else "")


def record_neurons(run: Run, text: str, selection: ViewSelection, *, several: bool = False) -> tuple[NeuronView, int]:
    """Return the selected head, by default the sharpest of the sharpest layer, and the index of the selected query; with
    `several`, the queries around it too."""
    inputs = model_inputs(run, text)
    record = inputs.record()
    group, selected = select(
        attention_maps(record), ViewSelection(kind=selection.kind, layer=selection.layer, head=selection.head)
    )
    maps, layer = selected.maps, selected.shown_layer
    head = int(head_entropies(maps.weights[layer]).argmin()) if selected.head is None else selected.head
    modules = list(group_layers(record).values())[group]
    queries, keys, _ = query_and_key_labels(modules[0], record.tokens, 0)
    token = len(queries) // 2 if selection.token is None else token_index(queries, selection.token)
    module, name = modules[layer], modules[layer].name
    _, seen = inputs.watch(kinds=rf"^{re.escape(name)}$", heads=[module.heads[head]], queries=True, budget=BUDGET)
    if seen.dropped:
        raise UserError(f"{len(queries)} × {len(keys)} tokens: their queries and keys exceed {BUDGET}; use a shorter text")
    first = max(0, min(token - MAX_QUERIES // 2, len(queries) - MAX_QUERIES)) if several else token
    chosen = range(first, min(first + MAX_QUERIES, len(queries)) if several else token + 1)
    note = ""
    if several and len(chosen) < len(queries):
        note = f"queries {chosen[0] + 1:,} to {chosen[-1] + 1:,} of {len(queries):,}; --token selects others"
    vectors = max(seen.keys[name], key=lambda k: k.size(2))[0, 0]
    view = NeuronView(
        f"{selected.layer_name}, head {maps.heads[head]}",
        attention_modules(run.model)[name].decomposable_score.formula(vectors.size(-1)),
        position_note(run, module),
        keys,
        vectors.double().cpu().numpy(),
        neuron_queries(run, seen, name, queries, chosen),
        note,
    )
    return view, token - first


def neuron_queries(run: Run, seen: AttentionRecording, name: str, words: Sequence[str], chosen: range) -> list[NeuronQuery]:
    """Return the chosen queries with their terms, scores and weights; recurrent cells have one query per call."""
    rows = [
        (q[0, 0, row], k, scores[0, 0, row], recorded.parts["weights"][0, 0, row])
        for q, k, scores, recorded in zip(seen.queries[name], seen.keys[name], seen.scores[name], seen.recorded(name))
        for row in range(q.size(2))
    ]
    score = attention_modules(run.model)[name].decomposable_score
    found = []
    for index in chosen:
        query, k, *tensors = rows[index]
        scores, weights = map(to_numpy, tensors)
        keys = heaviest_keys(weights, scores)
        terms = score.terms(query[None, None, None].double(), k[:, :, keys].double())[0, 0, 0]
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
    return POSITIONS_IN_RECURRENCE if positions is None else POSITIONS_ACROSS if module.kind == "cross" else positions.description
