"""What a model is made of and what each part costs, read off the real modules.

Modules are built on torch's meta device: they have shapes but no memory, so that the biggest model is counted in an instant.

The work is that of the matrix products, in multiplications (each goes with one addition: FLOPs = 2 × multiplications):

    a Linear        rows · in · out
    patches         each a row of a Linear map of its pixels; likewise every place that a convolution gives out
    recurrent cells rows · gates · h · (in + h), for each direction
    the scores      H · K for every pair of a query and a key, masked or not
    the mixing      H · J for every such pair

Left out, as is usual, is what is done once for each number: softmax, norms, biases, activations, dropout, the look-up of
embeddings, the optimiser.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from regard.attention.multihead import MultiHeadAttention
from regard.attention.scores import SingleHeadAttention
from regard.models.cnn import ImageFeatureMap

GATES = {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}
STEPS = {
    "q_proj": "queries",
    "k_proj": "keys",
    "v_proj": "values",
    "out_proj": "output",
    "inner": "inner",
    "gate": "gate",
    "outer": "outer",
}


@dataclass(frozen=True)
class Location:
    """Where in a model something is counted: the decoder's layer 3, its cross-attention, the projection to keys."""

    stack: str
    layer: int | None = None
    kind: str = ""
    step: str = ""


@dataclass(frozen=True)
class Component:
    """The parameters at a place, and the multiplications of one forward pass of a sentence pair through it."""

    place: Location
    parameters: int = 0
    multiplications: int = 0
    rows: int = 1
    """Positions the stack works on, by which the multiplications a token are reckoned."""


def count_components(model: nn.Module, source: int, target: int, prefix: str = "") -> list[Component]:
    """Everything in `model` for a source and a target of these lengths; tied weights count once, where they are first.

    A model that reads one text has it as both. What it computes once a text, or more than once a token, it says itself
    (`once`, `says`).
    """
    parameters: Counter[Location] = Counter()
    multiplications: Counter[Location] = Counter()
    for name, parameter in model.named_parameters():
        parameters[locate(prefix + name)] += parameter.numel()
    for name, module in model.named_modules():
        rows = sequence_length(prefix + name, source, target) * (
            getattr(model, "outputs_per_token", 1) if name == "output" else 1
        )
        rows = 1 if name in getattr(model, "once_per_example", ()) else rows
        for place, count in module_macs(module, prefix + name, rows, source):
            multiplications[place] += count
    places = dict.fromkeys([*parameters, *multiplications])
    return [
        Component(place, parameters[place], multiplications[place], sequence_length(place.stack, source, target))
        for place in places
    ]


def record_conv_grids(model: nn.Module, size: tuple[int, int]) -> None:
    """Note what the convolutions over pictures of this size give out, rows and columns (`grid`), where they do not say."""

    def note(module: nn.Conv2d, args: tuple, output: torch.Tensor) -> None:
        module.grid = tuple(output.shape[2:])  # type: ignore[assignment]

    for found in model.modules():
        if isinstance(found, ImageFeatureMap):
            hooks = [part.register_forward_hook(note) for part in found.modules() if isinstance(part, nn.Conv2d)]
            found.channels(torch.empty(1, 3, *size, device=next(found.parameters()).device))
            for hook in hooks:
                hook.remove()


def sequence_length(name: str, source: int, target: int) -> int:
    """The encoder, and a tower that reads pictures, work on the source; the decoder, the output and a tower that reads texts on
    the target."""
    return source if name.startswith(("encoder", "source", "image")) else target


def module_macs(module: nn.Module, name: str, rows: int, source: int) -> Iterator[tuple[Location, int]]:
    """The multiplications of one module's own matrix products."""
    if isinstance(module, nn.RNNBase):
        hidden, directions = module.hidden_size, 2 if module.bidirectional else 1
        yield locate(f"{name}.weight"), rows * directions * GATES[type(module)] * hidden * (module.input_size + hidden)
    elif isinstance(module, SingleHeadAttention):
        keys = source if name.endswith("cross_attention") else max(rows, source)
        yield locate(f"{name}.scores"), rows * keys * module.width
        yield locate(f"{name}.mixing"), rows * keys * module.source_width
    elif isinstance(module, nn.Conv2d):
        rows, columns = module.grid  # type: ignore[misc]
        yield locate(f"{name}.weight"), int(rows) * int(columns) * module.weight.numel()
    elif isinstance(module, nn.Conv1d):
        yield locate(f"{name}.weight"), rows * module.weight.numel()
    elif isinstance(module, nn.Linear):
        projects_source = name.endswith(("cross_attention.k_proj", "cross_attention.v_proj"))
        yield locate(f"{name}.weight"), (source if projects_source else rows) * module.in_features * module.out_features
    elif isinstance(module, MultiHeadAttention):
        pairs = rows * (source if name.endswith("cross_attention") else rows)
        yield locate(f"{name}.scores"), pairs * module.q_proj.out_features  # H·K
        yield locate(f"{name}.mixing"), pairs * module.out_proj.in_features  # H·J


def locate(name: str) -> Location:
    """The place that a parameter's name, such as `encoder.blocks.0.self_attention.q_proj.bias`, stands for."""
    match name.replace(".stack.", ".").split("."):
        case [*stack, "layers", layer, _] if stack:
            return Location(" ".join(stack), int(layer), "cells")
        case [stack, "blocks", layer, around, "norm" | "scale", *_] if around.endswith("_residual"):
            return Location(stack, int(layer), "norms")
        case [stack, "blocks", layer, around, "skip", *_] if around.endswith("_residual"):
            return Location(stack, int(layer), "residual projection")
        case ["encoder" as stack, "convolution", *_]:
            return Location(stack, None, "convolutions")
        case ["encoder" | "image" as stack, "network" | "blocks" as kind, *_, "weight" | "bias"] if (
            "attention" not in name and "feed_forward" not in name
        ):
            return Location(stack, None, "convolutions")
        case [stack, "blocks", layer, kind, step, *_]:
            return Location(stack, int(layer), kind.replace("_", "-"), STEPS.get(step, step))
        case ["encoder" | "decoder" | "image" | "text" as stack, kind, *_]:
            return Location(stack, None, "norms" if kind == "norm" else kind)
        case [stack, *_]:
            return Location(stack.replace("_", " "))
    raise AssertionError(name)


@dataclass(frozen=True)
class ComponentTotal:
    parameters: int
    multiplications: int
    multiplications_a_token: float


def total_cost(of: Iterable[Component]) -> ComponentTotal:
    """The sum of some parts. A token's share is reckoned by the positions of its own side."""
    of = list(of)
    return ComponentTotal(
        sum(p.parameters for p in of), sum(p.multiplications for p in of), sum(p.multiplications / p.rows for p in of)
    )
