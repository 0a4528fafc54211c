"""Parameters and FLOPs of every component of a model, read off its modules.

The modules are built on torch's meta device: they have shapes but no memory, so the largest model is counted in an instant.

The work is that of the matrix products in multiply–accumulate operations (FLOPs = 2 × MACs):

    Linear              positions · in · out
    patches             a Linear layer on the pixels of each patch; likewise every output position of a convolution
    recurrent cells     positions · gates · h · (in + h), per direction
    attention scores    H · K for every pair of query and key, masked or not
    attention mixing    H · J for every such pair, with J the value width

As usual, elementwise work is left out: softmax, norms, biases, activations, dropout, embedding look-ups, the optimiser.

`torch.utils.flop_counter` gives the same totals wherever it applies (tests/plan/test_plan.py and test_plan_of_tasks.py compare
them exactly), but does not replace this count: a forward pass on the meta device fails for models that pack sequences (LSTM
encoders), it does not see the matrix–vector products of additive attention or fused LSTM kernels, and it reports per module,
not scores and mixing separately. A Universal Transformer's block is counted once per step, as often
as it may be applied.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from regard.attention.multihead import Attention, MultiHeadAttention
from regard.attention.scores import SingleHeadAttention
from regard.models.cnn import ImageFeatureMap

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
OPERATIONS = {"q_proj": "queries", "k_proj": "keys", "v_proj": "values", "out_proj": "output"}


@dataclass(frozen=True)
class Location:
    """Where in a model something is counted, e.g. decoder, layer 3, cross-attention, projection to keys."""

    stack: str
    layer: int | None = None
    kind: str = ""
    operation: str = ""


@dataclass(frozen=True)
class Component:
    """The parameters at a location, and the MACs of one example's forward pass through it."""

    location: Location
    parameters: int = 0
    macs: int = 0
    positions: int = 1
    """Positions of the stack's input, for the MACs per token."""


@dataclass(frozen=True)
class ComponentTotal:
    """Sums over components."""

    parameters: int
    macs: int
    macs_per_token: float


def total_cost(components: Iterable[Component]) -> ComponentTotal:
    """Return the sums over components; MACs per token are relative to the positions of each component's own side."""
    components = list(components)
    return ComponentTotal(
        sum(c.parameters for c in components), sum(c.macs for c in components), sum(c.macs / c.positions for c in components)
    )


@dataclass(frozen=True, kw_only=True)
class ComponentPlan:
    """What is counted component by component."""

    components: list[Component]

    @property
    def total(self) -> ComponentTotal:
        return total_cost(self.components)

    @property
    def parameters(self) -> int:
        return self.total.parameters


def count_components(model: nn.Module, source: int, target: int, prefix: str = "") -> list[Component]:
    """Return the components of a model for a source and a target of these lengths; tied weights count once, where they come
    first.

    A model of a single text gets its length as both. The model itself declares what it computes once per text, or several times
    per token (`once_per_example`, `outputs_per_token`).
    """
    parameters: Counter[Location] = Counter()
    macs: Counter[Location] = Counter()
    for name, parameter in model.named_parameters():
        parameters[_locate(prefix + name)] += parameter.numel()
    for name, module in model.named_modules(remove_duplicate=False):
        positions = sequence_length(prefix + name, source, target) * (
            getattr(model, "outputs_per_token", 1) if name == "output" else 1
        )
        positions = 1 if name in getattr(model, "once_per_example", ()) else positions
        for location, count in _module_macs(module, prefix + name, positions, source):
            macs[location] += count
    locations = dict.fromkeys([*parameters, *macs])
    return [Component(at, parameters[at], macs[at], sequence_length(at.stack, source, target)) for at in locations]


def count_operations(model: nn.Module, source: int, target: int) -> int:
    """Return about how many operations the forward and the backward pass launch on a GPU, one kernel each.

    Each module counts with its share of what surrounds it (residual sums, activations): a Linear layer is one product forward and
    two backward, with the sum of its bias. A recurrent layer launches kernels at every position.
    """
    found = 0
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.RNNBase):
            steps = sequence_length(name, source, target) * (2 if module.bidirectional else 1)
            found += 3 * module.num_layers * steps
        elif isinstance(module, nn.Dropout):
            found += 4 if module.p > 0 else 0
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            found += 5
        elif isinstance(module, Attention):
            found += 6
        elif next(module.children(), None) is None and next(module.parameters(), None) is not None:
            found += 3
    return found


def record_conv_grids(model: nn.Module, size: tuple[int, int]) -> None:
    """Set `grid`, the rows and columns of the output, on every convolution over images of this size."""

    def record(module: nn.Conv2d, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        module.grid = tuple(output.shape[2:])  # type: ignore[assignment]

    for module in model.modules():
        if isinstance(module, ImageFeatureMap):
            hooks = [conv.register_forward_hook(record) for conv in module.modules() if isinstance(conv, nn.Conv2d)]
            module.channels(torch.empty(1, 3, *size, device=next(module.parameters()).device))
            for hook in hooks:
                hook.remove()


def sequence_length(name: str, source: int, target: int) -> int:
    """Return the input length of a module: the source's for encoders and image towers, the target's for all others."""
    return source if name.startswith(("encoder", "source", "image")) else target


def _module_macs(module: nn.Module, name: str, positions: int, source: int) -> Iterator[tuple[Location, int]]:
    """Yield the MACs of one module's own matrix products."""
    if isinstance(module, nn.RNNBase):
        hidden, directions = module.hidden_size, 2 if module.bidirectional else 1
        gates = GATES[type(module).__name__.lower()]
        yield _locate(f"{name}.weight"), positions * directions * gates * hidden * (module.input_size + hidden)
    elif isinstance(module, SingleHeadAttention):
        keys = source if name.endswith("cross_attention") else max(positions, source)
        yield _locate(f"{name}.scores"), positions * keys * module.width
        yield _locate(f"{name}.mixing"), positions * keys * module.source_width
    elif isinstance(module, nn.Conv2d):
        rows, columns = module.grid  # type: ignore[misc]
        yield _locate(f"{name}.weight"), int(rows) * int(columns) * module.weight.numel()
    elif isinstance(module, nn.Conv1d):
        yield _locate(f"{name}.weight"), positions * module.weight.numel()
    elif isinstance(module, nn.Linear):
        projects_source = name.endswith(("cross_attention.k_proj", "cross_attention.v_proj"))
        yield _locate(f"{name}.weight"), (source if projects_source else positions) * module.in_features * module.out_features
    elif isinstance(module, MultiHeadAttention):
        pairs = positions * (source if name.endswith("cross_attention") else positions)
        yield _locate(f"{name}.scores"), pairs * module.q_proj.out_features  # H·K
        yield _locate(f"{name}.mixing"), pairs * module.out_proj.in_features  # H·J


def _locate(name: str) -> Location:
    """Return the location of a parameter's name such as `encoder.blocks.0.self_attention.q_proj.bias`."""
    match name.replace(".stack.", ".").split("."):
        case [*stack, "layers", layer, _] if stack:
            return Location(" ".join(stack), int(layer), "cells")
        case [stack, "blocks", layer, around, "norm" | "scale", *_] if around.endswith("_residual"):
            return Location(stack, int(layer), "norms")
        case [stack, "blocks", layer, around, "skip", *_] if around.endswith("_residual"):
            return Location(stack, int(layer), "residual projection")
        case ["encoder" as stack, "convolution", *_]:
            return Location(stack, None, "convolutions")
        case ["encoder" | "image" as stack, "network" | "blocks", *_, "weight" | "bias"] if (
            "attention" not in name and "feed_forward" not in name
        ):
            return Location(stack, None, "convolutions")
        case [stack, "blocks", layer, kind, operation, *_]:
            return Location(stack, int(layer), kind.replace("_", "-"), OPERATIONS.get(operation, operation))
        case ["encoder" | "decoder" | "image" | "text" as stack, kind, *_]:
            return Location(stack, None, "norms" if kind == "norm" else kind)
        case [stack, *_]:
            return Location(stack.replace("_", " "))
    raise AssertionError(name)
