"""Record what a run attends to when it reads a text or an image, and turn the record into maps to draw."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.modules import STACK_NAMES, attention_modules
from regard.attention.record import ModuleRecord, Record
from regard.attention.recording import AttentionRecording
from regard.attention.watch import watch
from regard.errors import UserError
from regard.show.figures.attention_maps import AttentionMaps, tile_attention
from regard.show.selection import ATTENTION_KINDS
from regard.show.token_choice import readable_tokens
from regard.tasks.base import Run, SideTokens, TokensBySide
from regard.tasks.shared.images import ImageInput

BUDGET = "512MB"
ATTENTION_NAMES = {
    ("cross", "source"): STACK_NAMES["cross"],
    ("self", "source"): STACK_NAMES["encoder"],
    ("self", "target"): STACK_NAMES["decoder"],
    ("self", "text"): STACK_NAMES["text"],
}


@dataclass(frozen=True)
class ModelInputs:
    """The inputs of a model, and the token labels of each side. In cross-attention, the label of a query is the token that it
    predicts."""

    run: Run
    inputs: dict[str, Tensor]
    tokens: TokensBySide
    is_encoder_decoder: bool
    last_of_prompt: int | None = None
    """The token before the generated ones, where a prompt is continued."""

    def watch(self, **options: Any) -> tuple[Tensor, AttentionRecording]:
        """Run the model; return its output and the recorded attention."""
        with torch.no_grad(), watch(self.run.model, **options) as seen:
            output: Tensor = self.run._forward(self.inputs)
        if not seen.names():
            raise UserError(f"{self.run.folder} reads this without attention: there is nothing to show")
        return output, seen

    def record(self, budget: str = BUDGET) -> Record:
        return self.to_record(self.watch(budget=budget)[1])

    def to_record(self, seen: AttentionRecording) -> Record:
        if self.is_encoder_decoder:
            return seen.to_record(self.tokens, model=self.run.model, inputs=self.inputs)
        record = seen.to_record(model=self.run.model, inputs=self.inputs)  # the only stack may be called a decoder
        queries = "text" if seen.rows is None else "predicted"
        modules = {name: replace(module, queries=queries, keys="text") for name, module in record.modules.items()}
        return replace(record, modules=modules, tokens=self.tokens)


def record_attention(run: Run, text: ImageInput, *, budget: str = BUDGET) -> Record:
    """Record the attention of a run that reads a text or an image; of a translator or captioner, also while it generates."""
    return model_inputs(run, text).record(budget)


def attention_kinds(run: Run) -> list[str]:
    """Return the kinds of attention to choose from; none if there is only one."""
    if not attention_modules(run.model):  # a model of transformers
        return list(ATTENTION_KINDS) if run.task.encoder_decoder else []
    patterns = {"cross": "cross", "encoder": r"^encoder\..*self", "decoder": r"^decoder\..*self"}
    found = [kind for kind, pattern in patterns.items() if attention_modules(run.model, kinds=pattern)]
    return found if len(found) > 1 else []


def require_attention(run: Run) -> None:
    if not run._attends:
        raise UserError(f"{run.folder}: a model without attention has nothing to show")


def model_inputs(run: Run, text: ImageInput) -> ModelInputs:
    """Return the inputs and token labels of a text or an image; of a translator or captioner, with its own output as target."""
    require_attention(run)
    inputs = {name: part.to(run.device) for name, part in run._inputs(text).items()}
    tokens = run._side_tokens(inputs)
    return ModelInputs(run, inputs, tokens, "target" in tokens)


def attention_maps(record: Record, row: int = 0) -> list[AttentionMaps]:
    """Return the maps of one row of the batch, one group per stack of layers; cross-attention first."""
    return [stack_maps(name, modules, record.tokens, row) for name, modules in group_layers(record).items()]


def group_layers(record: Record) -> dict[str, list[ModuleRecord]]:
    """Group the modules that have weights by stack, by the name of its attention; cross-attention first. The stages of an image
    model whose maps are of different shapes are stacks of their own."""
    stacks: dict[tuple[str, int, int], list[ModuleRecord]] = {}
    for module in record.modules.values():
        keys = max(call.shape[3] for call in module.calls)
        stacks.setdefault((re.sub(r"\d+", "*", module.name), len(module.heads), keys), []).append(module)
    found: dict[str, list[ModuleRecord]] = {}
    for (pattern, heads, keys), modules in stacks.items():
        if not any(call.kind in ("entropy", "nothing") for module in modules for call in module.calls):
            names = (ATTENTION_NAMES.get((modules[0].kind, modules[0].keys), pattern), pattern, f"{pattern} ({heads} × {keys})")
            found[next(name for name in names if name not in found)] = modules
    if not found:
        why = "; ".join(dict.fromkeys(module.dropped for module in record.modules.values())) or "it has no attention modules"
        raise UserError(f"this record has no weights to draw ({why}); record again with a larger budget")
    return dict(sorted(found.items(), key=lambda one: one[0] != ATTENTION_NAMES["cross", "source"]))


def stack_maps(name: str, modules: list[ModuleRecord], tokens: TokensBySide, row: int) -> AttentionMaps:
    """Return the maps of the layers of one stack; the steps of a universal block count as layers."""
    first = modules[0]
    queries, keys, steps = query_and_key_labels(first, tokens, row)
    T, S = sum(call.shape[2] for call in first.calls) // steps, max(call.shape[3] for call in first.calls)
    size = first.calls[0].size if len(first.calls) == 1 and first.calls[0].kind == "blocks" else 1

    def layers() -> Iterator[np.ndarray]:
        for module in modules:
            call = module.calls[0]
            if size > 1 and call.kind == "blocks" and call.size == size and len(module.calls) == 1:
                means = call.numpy().parts["means"][row]  # (H, T/n, S/n)
                widths = np.minimum(size, S - size * np.arange(means.shape[2]))[: -(-len(keys) // size)]
                yield means[:, : -(-len(queries) // size), : -(-len(keys) // size)] * widths
                continue
            weights = module.weights()[row]  # (H, T, S); universal: (H, steps · T, S)
            for step in range(steps):
                yield weights[:, step * T :][:, : len(queries), : len(keys)]

    numbers = [str(layer + 1) for layer in range(len(modules) * steps)]
    if steps == 1 and all(module.layer is not None for module in modules):
        numbers = [str((module.layer or 0) + 1) for module in modules]
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


def query_and_key_labels(module: ModuleRecord, tokens: TokensBySide, row: int) -> tuple[list[str], list[str], int]:
    """Return the labels of queries and keys in a row, and how many steps attend (more than one in a universal block)."""
    T, S = sum(call.shape[2] for call in module.calls), max(call.shape[3] for call in module.calls)
    side = "predicted" if module.kind == "cross" and "predicted" in tokens else module.queries
    labels = tokens.get(side)
    longest = max(map(len, labels)) if isinstance(labels, list) else T
    queries, keys = row_labels(labels, row, T), row_labels(tokens.get(module.keys), row, S)
    return queries, keys, T // longest if T % longest == 0 else 1


def row_labels(tokens: SideTokens | None, row: int, number: int) -> list[str]:
    """Return the labels of a row: tokens; patches by row and column; positions where tokens are unknown."""
    if isinstance(tokens, dict):
        down, across = tokens["patches"]
        if number < down * across:  # attention within windows of the image
            return [str(position + 1) for position in range(number)]
        special = ["[class]", "[distilled]", *(f"[{extra}]" for extra in range(number))][: max(0, number - down * across)]
        return [*special, *(f"{y + 1},{x + 1}" for y in range(down) for x in range(across))][:number]
    if tokens is None:
        return [str(position + 1) for position in range(number)]
    return readable_tokens(tokens[row])
