"""How one head of a run comes to its weights: queries, keys and scores, recorded and drawn."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.attention.modules import attention_modules
from regard.attention.positions import PositionEncoding
from regard.attention.record import ModuleRecord
from regard.attention.watch import AttentionRecording
from regard.errors import UserError
from regard.show.attention import ViewSelection, resolve_indices, select_group, sharpest_layer, token_index
from regard.show.figures.head_entropy import head_entropies
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
from regard.show.figures.style import save_figure, to_svg, write_file
from regard.show.recording import BUDGET, attention_maps, group_layers, model_inputs, query_and_key_labels
from regard.tasks.base import Run

POSITIONS_IN_RECURRENCE = "order is within q and k: they are of recurrent cells, or of what those have read"
POSITIONS_ACROSS = "no positions between the two sides; within each, they are in what q and k are made of"


def show_neurons(run: Run, text: str, choice: ViewSelection, *, out: Path | None = None, terminal: bool = False) -> str:
    """Draw one head's questions and answers component by component. In words, what was drawn."""
    several = out is not None and out.suffix.lower() == ".html"
    found, at = record_neurons(run, text, choice, several=several)
    title = shorten(clean(text), 90)
    if out is not None:
        if several:
            write_file(out, neuron_page(found, at, to_svg(neuron_figure(found, at)), title=title).encode())
        else:
            save_figure(neuron_figure(found, at), out)
    asked = found.questions[at]
    said = f"{found.name}: {asked.word} asks {len(found.words)} keys of {found.keys.shape[1]} components"
    return said + ("\n\n" + neuron_text(found, at, shutil.get_terminal_size((100, 40)).columns) if terminal else "")


def record_neurons(run: Run, text: str, choice: ViewSelection, *, several: bool = False) -> tuple[NeuronView, int]:
    """The head that was chosen, the sharpest of the sharpest layer when none is, and which of its questions was; that alone, or
    those around it too."""
    read = model_inputs(run, text)
    record = read.record()
    maps = attention_maps(record)
    number = select_group(maps, choice.kind)
    picked, group = maps[number], list(group_layers(record).values())[number]
    layer, head, _ = resolve_indices(picked, ViewSelection(kind=choice.kind, layer=choice.layer, head=choice.head))
    layer = sharpest_layer(picked) if layer is None else layer
    head = int(head_entropies(picked.weights[layer]).argmin()) if head is None else head
    queries, keys, _ = query_and_key_labels(group[0], record.tokens, 0)
    token = len(queries) // 2 if choice.token is None else token_index(queries, choice.token)
    place, name = group[layer], group[layer].name
    _, seen = read.watch(kinds=rf"^{re.escape(name)}$", heads=[place.heads[head]], queries=True, budget=BUDGET)
    if seen.dropped:
        raise UserError(f"{len(queries)} × {len(keys)} tokens: there is no room to record what they ask; give a shorter text")
    first = max(0, min(token - MAX_QUERIES // 2, len(queries) - MAX_QUERIES)) if several else token
    chosen = range(first, min(first + MAX_QUERIES, len(queries)) if several else token + 1)
    found = neuron_queries(run, seen, name, queries, chosen)
    note = (
        f"queries {chosen[0] + 1:,} to {chosen[-1] + 1:,} of {len(queries):,}; --token begins elsewhere"
        if several and len(chosen) < len(queries)
        else ""
    )
    vectors = max(seen.keys[name], key=lambda k: k.size(2))[0, 0]
    formula = attention_modules(run.model)[name].decomposable_score.formula(vectors.size(-1))
    title = f"{picked.name}, layer {picked.layers[layer]}, head {picked.heads[head]}"
    return NeuronView(title, formula, position_note(run, place), keys, vectors.double().cpu().numpy(), found, note), token - first


def neuron_queries(run: Run, seen: AttentionRecording, name: str, words: Sequence[str], chosen: range) -> list[NeuronQuery]:
    """What each of the chosen queries asks; recurrent cells ask one a call."""
    calls = zip(seen.queries[name], seen.keys[name], seen.scores[name], seen.recorded(name))
    rows = [
        (q[0, 0, row], k, scores[0, 0, row], kept.parts["weights"][0, 0, row])
        for q, k, scores, kept in calls
        for row in range(q.size(2))
    ]
    found = []
    for number in chosen:
        query, k, scores, weights = rows[number]
        keys = heaviest_keys(to_numpy(weights), to_numpy(scores))
        terms = attention_modules(run.model)[name].decomposable_score.terms(
            query[None, None, None].double(), k[:, :, keys].double()
        )[0, 0, 0]
        found.append(
            NeuronQuery(
                words[number],
                to_numpy(query),
                keys,
                to_numpy(terms),
                to_numpy(scores)[keys],
                to_numpy(weights)[keys],
                len(scores) - len(keys),
            )
        )
    return found


def to_numpy(x: Tensor) -> np.ndarray:
    return x.detach().double().cpu().numpy()


def position_note(run: Run, place: ModuleRecord) -> str:
    """Where the positions of a stack come in at one of its places."""
    above: list[Any] = [run.model.get_submodule(place.name[: end.start()]) for end in re.finditer(r"\.|$", place.name)]
    positions = next(
        (module.positions for module in above if isinstance(getattr(module, "positions", None), PositionEncoding)), None
    )
    return POSITIONS_IN_RECURRENCE if positions is None else POSITIONS_ACROSS if place.kind == "cross" else positions.description
