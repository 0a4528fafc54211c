"""What a run attends to when it reads a text: a record of it, and its maps as pictures take them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.modules import attention_modules
from regard.attention.record_file import ModuleRecord, Record
from regard.attention.recording import AttentionRecording
from regard.attention.watch import watch
from regard.errors import UserError
from regard.show.figures.attention_maps import AttentionMaps, tile_attention
from regard.tasks.base import Run
from regard.tasks.shared.images import patch_grid
from regard.tokens.tokenizer import Tokenizer

BUDGET = "512MB"
ATTENTION_NAMES = {
    ("cross", "source"): "cross-attention",
    ("self", "source"): "self-attention of the encoder",
    ("self", "target"): "self-attention of the decoder",
    ("self", "text"): "self-attention",
}


@dataclass(frozen=True)
class ModelInputs:
    """What a model is given of a text, and the tokens of each side. In cross-attention, what asks is the token said in each
    place."""

    run: Run
    inputs: dict[str, Tensor]
    tokens: dict[str, Any]
    both: bool

    def watch(self, **options: Any) -> tuple[Any, AttentionRecording]:
        """What the model says of it, and what is seen meanwhile."""
        with torch.no_grad(), watch(self.run.model, **options) as seen:
            said = self.run._forward(self.inputs)
        if not seen.names():
            raise UserError(f"{self.run.folder} reads this without attention: there is nothing to show")
        return said, seen

    def record(self, budget: str = BUDGET) -> Record:
        return self.recorded(self.watch(budget=budget)[1])

    def recorded(self, seen: AttentionRecording) -> Record:
        if self.both:
            return seen.to_record(self.tokens, model=self.run.model, inputs=self.inputs)
        found = seen.to_record(model=self.run.model, inputs=self.inputs)  # whose only stack may be called a decoder
        asks = "text" if seen.rows is None else "said"
        places = {name: replace(place, queries=asks, keys="text") for name, place in found.modules.items()}
        return replace(found, modules=places, tokens=self.tokens)


def record_attention(run: Run, text: Any, *, budget: str = BUDGET) -> Record:
    """Read a text or a picture, and with a translator or captioner what it says of it, and record it all."""
    return model_inputs(run, text).record(budget)


def attention_kinds(run: Run) -> list[str]:
    """The kinds of attention to choose from, where there are several."""
    patterns = {"cross": "cross", "encoder": r"^encoder\..*self", "decoder": r"^decoder\..*self"}
    found = [kind for kind, pattern in patterns.items() if attention_modules(run.model, kinds=pattern)]
    return found if len(found) > 1 else []


def require_attention(run: Run) -> None:
    if not run._attends:
        raise UserError(f"{run.folder}: a model without attention has nothing to show")


def model_inputs(run: Run, text: Any) -> ModelInputs:
    require_attention(run)
    inputs = {name: part.to(run.device) for name, part in run._inputs(text).items()}
    both = "target" in inputs and len(inputs) > 1
    given: Any = (
        {"patches": list(patch_grid(run))}
        if "image" in run.task.reads and "pixels" in inputs
        else [token_labels(run.tokenizers[0], inputs.get("source", next(iter(inputs.values())))[0].tolist())]
    )
    if not both:
        return ModelInputs(run, inputs, {"text": given}, both)
    target = inputs["target"][0].tolist()
    return ModelInputs(
        run,
        inputs,
        {
            "source": given,
            "target": [token_labels(run.tokenizers[-1], target)],
            "said": [token_labels(run.tokenizers[-1], [*target[1:], run._special_tokens.eos])],
        },
        both,
    )


def token_labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Tokens as words to draw; a mark, or what has no letters, by its name."""
    return [piece.strip() or tokenizer.library.id_to_token(number) or "" for piece, number in zip(tokenizer.pieces(ids), ids)]


def attention_maps(record: Record, row: int = 0) -> list[AttentionMaps]:
    """The maps of one row of the batch, those of a stack's layers together; cross-attention first."""
    return [stack_maps(name, places, record.tokens, row) for name, places in group_layers(record).items()]


def group_layers(record: Record) -> dict[str, list[ModuleRecord]]:
    """The places of each stack's layers that have weights, by what they are called; cross-attention first."""
    alike: dict[str, list[ModuleRecord]] = {}
    for place in record.modules.values():
        alike.setdefault(re.sub(r"\d+", "*", place.name), []).append(place)
    found: dict[str, list[ModuleRecord]] = {}
    for pattern, these in alike.items():
        lost = next((kept for place in these for kept in place.calls if kept.kind in ("entropy", "nothing")), None)
        if lost is None:
            name = ATTENTION_NAMES.get((these[0].kind, these[0].keys), pattern)
            found[pattern if name in found else name] = these
    if not found:
        why = "; ".join(dict.fromkeys(place.dropped for place in record.modules.values())) or "there are no places in it"
        raise UserError(f"this record has no weights to draw ({why}); record again with a larger budget")
    return dict(sorted(found.items(), key=lambda one: one[0] != ATTENTION_NAMES["cross", "source"]))


def stack_maps(name: str, places: list[ModuleRecord], tokens: dict[str, Any], row: int) -> AttentionMaps:
    first = places[0]
    queries, keys, steps = query_and_key_labels(first, tokens, row)
    longest, S = sum(kept.shape[2] for kept in first.calls) // steps, max(kept.shape[3] for kept in first.calls)
    size = first.calls[0].size if len(first.calls) == 1 and first.calls[0].kind == "blocks" else 1

    def layers() -> Iterator[np.ndarray]:
        for place in places:
            if size > 1 and place.calls[0].kind == "blocks" and place.calls[0].size == size and len(place.calls) == 1:
                means = place.calls[0].numpy().parts["means"][row]  # (H, T/n, S/n)
                across = np.minimum(size, S - size * np.arange(means.shape[2]))
                yield means[:, : -(-len(queries) // size), : -(-len(keys) // size)] * across[: -(-len(keys) // size)]
                continue
            weights = place.weights()[row]  # (H, T, S); universal: (H, steps · T, S)
            for step in range(steps):
                yield weights[:, step * longest :][:, : len(queries), : len(keys)]

    numbers = [str(number + 1) for number in range(len(places) * steps)]
    if steps == 1 and all(place.layer is not None for place in places):
        numbers = [str((place.layer or 0) + 1) for place in places]
    return tile_attention(
        name,
        layers(),
        queries,
        keys,
        names=numbers,
        heads=[str(head + 1) for head in first.heads],
        tiled=size,
        note="" if size > 1 else first.dropped and f"without {first.dropped}",
    )


def query_and_key_labels(place: ModuleRecord, tokens: dict[str, Any], row: int) -> tuple[list[str], list[str], int]:
    """What asks and what is looked at in a row, and how often: a universal block asks again in each step."""
    T, S = sum(kept.shape[2] for kept in place.calls), max(kept.shape[3] for kept in place.calls)
    asking = "said" if place.kind == "cross" and "said" in tokens else place.queries
    longest = max(map(len, tokens[asking])) if isinstance(tokens.get(asking), list) else T
    return (
        row_labels(tokens.get(asking), row, T),
        row_labels(tokens.get(place.keys), row, S),
        T // longest if T % longest == 0 else 1,
    )


def row_labels(said: Any, row: int, number: int) -> list[str]:
    """The tokens of a row; patches by their row and column, what is unknown by its place."""
    if isinstance(said, dict):
        down, across = said["patches"]
        marks = ["[class]", "[distilled]", *(f"[{extra}]" for extra in range(number))][: max(0, number - down * across)]
        return [*marks, *(f"{y + 1},{x + 1}" for y in range(down) for x in range(across))][:number]
    if said is None:
        return [str(place + 1) for place in range(number)]
    return list(said[row])
