"""How one head of a run comes to its weights: queries, keys and scores, recorded and drawn."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.attention.modules import places
from regard.attention.positions import Positions
from regard.attention.record_file import Place
from regard.attention.recording import Seen
from regard.errors import Mistake
from regard.show.attention import Choice, chosen_group, numbers_of, sharpest, token_number
from regard.show.figures.head_entropy import entropies
from regard.show.figures.labels import clean, shorten
from regard.show.figures.neuron_view import MOST_QUESTIONS, Neurons, Question, choose_keys, neurons, neurons_page, neurons_text
from regard.show.figures.style import save, svg_text, write
from regard.show.recording import BUDGET, groups, reading, sides, stacks
from regard.tasks.base import Run

IN_RECURRENCE = "order is within q and k: they are of recurrent cells, or of what those have read"
ACROSS = "no positions between the two sides; within each, they are in what q and k are made of"


def show_neurons(run: Run, text: str, choice: Choice, *, out: Path | None = None, terminal: bool = False) -> str:
    """Draw one head's questions and answers component by component. In words, what was drawn."""
    several = out is not None and out.suffix.lower() == ".html"
    found, at = ask(run, text, choice, several=several)
    title = shorten(clean(text), 90)
    if out is not None:
        if several:
            write(out, neurons_page(found, at, svg_text(neurons(found, at)), title=title).encode())
        else:
            save(neurons(found, at), out)
    asked = found.questions[at]
    said = f"{found.name}: {asked.word} asks {len(found.words)} keys of {found.keys.shape[1]} components"
    return said + ("\n\n" + neurons_text(found, at, shutil.get_terminal_size((100, 40)).columns) if terminal else "")


def ask(run: Run, text: str, choice: Choice, *, several: bool = False) -> tuple[Neurons, int]:
    """The head that was chosen, the sharpest of the sharpest layer when none is, and which of its questions was; that alone, or
    those around it too."""
    read = reading(run, text)
    record = read.record()
    maps = groups(record)
    number = chosen_group(maps, choice.kind)
    picked, group = maps[number], list(stacks(record).values())[number]
    layer, head, _ = numbers_of(picked, Choice(kind=choice.kind, layer=choice.layer, head=choice.head))
    layer = sharpest(picked) if layer is None else layer
    head = int(entropies(picked.weights[layer]).argmin()) if head is None else head
    queries, keys, _ = sides(group[0], record.tokens, 0)
    token = len(queries) // 2 if choice.token is None else token_number(queries, choice.token)
    place, name = group[layer], group[layer].name
    _, seen = read.watch(kinds=rf"^{re.escape(name)}$", heads=[place.heads[head]], queries=True, budget=BUDGET)
    if seen.dropped:
        raise Mistake(f"{len(queries)} × {len(keys)} tokens: there is no room to record what they ask; give a shorter text")
    first = max(0, min(token - MOST_QUESTIONS // 2, len(queries) - MOST_QUESTIONS)) if several else token
    chosen = range(first, min(first + MOST_QUESTIONS, len(queries)) if several else token + 1)
    found = questions(run, seen, name, queries, chosen)
    note = (
        f"queries {chosen[0] + 1:,} to {chosen[-1] + 1:,} of {len(queries):,}; --token begins elsewhere"
        if several and len(chosen) < len(queries)
        else ""
    )
    vectors = max(seen.keys[name], key=lambda k: k.size(2))[0, 0]
    formula = places(run.model)[name].sum.written(vectors.size(-1))
    title = f"{picked.name}, layer {picked.layers[layer]}, head {picked.heads[head]}"
    return Neurons(title, formula, enters(run, place), keys, vectors.double().cpu().numpy(), found, note), token - first


def questions(run: Run, seen: Seen, name: str, words: Sequence[str], chosen: range) -> list[Question]:
    """What each of the chosen queries asks; recurrent cells ask one a call."""
    calls = zip(seen.queries[name], seen.keys[name], seen.scores[name], seen.kept(name))
    rows = [
        (q[0, 0, row], k, scores[0, 0, row], kept.parts["weights"][0, 0, row])
        for q, k, scores, kept in calls
        for row in range(q.size(2))
    ]
    found = []
    for number in chosen:
        query, k, scores, weights = rows[number]
        keys = choose_keys(array(weights), array(scores))
        terms = places(run.model)[name].sum.terms(query[None, None, None].double(), k[:, :, keys].double())[0, 0, 0]
        found.append(
            Question(
                words[number],
                array(query),
                keys,
                array(terms),
                array(scores)[keys],
                array(weights)[keys],
                len(scores) - len(keys),
            )
        )
    return found


def array(x: Tensor) -> np.ndarray:
    return x.detach().double().cpu().numpy()


def enters(run: Run, place: Place) -> str:
    """Where the positions of a stack come in at one of its places."""
    above: list[Any] = [run.model.get_submodule(place.name[: end.start()]) for end in re.finditer(r"\.|$", place.name)]
    positions = next((module.positions for module in above if isinstance(getattr(module, "positions", None), Positions)), None)
    return IN_RECURRENCE if positions is None else ACROSS if place.kind == "cross" else positions.enters
