"""One forward pass of a decoder or encoder that transformers runs: the calls of its modules, put together as sub-layers.

Which module does what is read off the calls: the projection after attention, the layers of the feed-forward network, the norms.
Every sum that is shown is checked against the numbers of the model; a model that puts its layers together otherwise is refused.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.calls import AttentionCall
from regard.attention.core import mix, repeat_kv
from regard.attention.interception import intercept
from regard.errors import UserError
from regard.show.forward_pass.forward_trace import SublayerTrace
from regard.show.forward_pass.transformers_states import inner_models, layer_states
from regard.tasks.transformers_models import TransformersRun

HIDDEN = -1e30
"""A score below it is that of a hidden key."""


@dataclass(frozen=True)
class ModuleOutput:
    """A call of a module without children: its first input and its output, (T, ·) each."""

    module: nn.Module
    given: Tensor
    output: Tensor

    @property
    def is_norm(self) -> bool:
        return "norm" in type(self.module).__name__.lower()

    @property
    def is_linear(self) -> bool:
        weight = getattr(self.module, "weight", None)
        return isinstance(weight, Tensor) and weight.dim() == 2 and not isinstance(self.module, nn.Embedding)


@dataclass(frozen=True)
class CallParts:
    """The parts of attention from a call of any library."""

    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    weights: Tensor
    output: Tensor
    has_bias: bool
    formula: str

    @property
    def mixed(self) -> Tensor:
        return mix(self.weights[None], repeat_kv(self.v[None], self.weights.size(0)))[0]


@dataclass
class LayerCalls:
    """What happened in one layer: x before it, the calls of its modules and of attention in order, x after it."""

    given: Tensor
    events: list[ModuleOutput | AttentionCall] = field(default_factory=list)
    output: Tensor | None = None


@dataclass(frozen=True)
class TransformersTrace:
    """A forward pass of a batch of one: embeddings, layers, states before and after the final norm, logits."""

    ids: list[int]
    embedded: Tensor
    placed: Tensor
    embedding_norm: nn.Module | None
    entering: Tensor
    layers: list[list[SublayerTrace]]
    leaving: Tensor
    final_norm: nn.Module | None
    final: Tensor
    logits: Tensor


@torch.no_grad()
def trace_transformers(run: TransformersRun, inputs: dict[str, Tensor]) -> TransformersTrace:
    """Run the model on a batch of one, and return what happened inside."""
    model, name = run.model, type(run.model).__name__
    layers = layer_list(model)
    states = layer_states(run, inputs)
    with ExitStack() as hooks:
        calls = hooks.enter_context(record_layers(model, layers))
        norms = hooks.enter_context(record_leaves([one for one in model.modules() if is_outside(one, layers)]))
        logits: Tensor = run._forward(inputs)[0]
    if len(calls) != len(layers):
        raise refusal(name, f"{len(calls)} calls of {len(layers)} layers")
    ids = inputs["input_ids"][0]
    entering, leaving = calls[0].given, last_output(calls[-1])
    embedded = run.model.get_input_embeddings()(ids)
    norm = next((one for one in norms if one.is_norm and close(one.output, entering)), None)
    placed = entering if norm is None else norm.given
    if embedded.shape != placed.shape:  # embeddings narrower than the layers are projected
        embedded = placed
    return TransformersTrace(
        ids.tolist(),
        embedded,
        placed,
        None if norm is None else norm.module,
        entering,
        [sublayers(one, name) for one in calls],
        leaving,
        states.norm,
        states.normed[-1],
        logits,
    )


def layer_list(model: nn.Module) -> nn.ModuleList:
    """Return the list of layers of the model: the longest one."""
    found = [one for inner in inner_models(model) for one in inner.modules() if isinstance(one, nn.ModuleList)]
    if not found:
        raise refusal(type(model).__name__, "no list of layers")
    return max(found, key=len)


def is_outside(module: nn.Module, layers: nn.ModuleList) -> bool:
    return not any(module is part for part in layers.modules()) and not any(True for _ in module.children())


def refusal(name: str, found: str) -> UserError:
    return UserError(f"--view flow: {name} has {found}; the flow view knows layers like those of GPT-2 and BERT: use --view lens")


@contextmanager
def record_layers(model: nn.Module, layers: Sequence[nn.Module] | nn.ModuleList) -> Iterator[list[LayerCalls]]:
    """Record the layers inside the block, with the calls of attention and of the modules in them."""
    calls: list[LayerCalls] = []

    def enter(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        x = args[0] if args else options["hidden_states"]
        calls.append(LayerCalls(x[0]))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        calls[-1].output = (output if isinstance(output, Tensor) else output[0])[0]

    def attend(call: AttentionCall, make: Any) -> Tensor:
        if calls and calls[-1].output is None:
            calls[-1].events.append(call)
        made: Tensor = make()
        return made

    def part(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if calls and calls[-1].output is None and isinstance(output, Tensor) and args and isinstance(args[0], Tensor):
            calls[-1].events.append(ModuleOutput(module, unbatched(args[0]), unbatched(output)))

    handles = []
    for layer in layers:
        handles += [layer.register_forward_pre_hook(enter, with_kwargs=True), layer.register_forward_hook(leave)]
        leaves = [one for one in layer.modules() if not any(True for _ in one.children())]
        handles += [one.register_forward_hook(part) for one in leaves]
    try:
        with intercept(model, attend):
            yield calls
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def record_leaves(modules: Sequence[nn.Module]) -> Iterator[list[ModuleOutput]]:
    """Record the calls of these modules inside the block."""
    found: list[ModuleOutput] = []

    def record(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and args and isinstance(args[0], Tensor):
            found.append(ModuleOutput(module, unbatched(args[0]), unbatched(output)))

    handles = [module.register_forward_hook(record) for module in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def unbatched(x: Tensor) -> Tensor:
    """Return the only row of a batch; some models flatten it into the tokens."""
    return x[0] if x.dim() > 2 else x


def last_output(layer: LayerCalls) -> Tensor:
    assert layer.output is not None
    return layer.output


def close(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-3 * max(1.0, float(b.abs().max())))


def sublayers(layer: LayerCalls, name: str) -> list[SublayerTrace]:
    """Return attention and feed-forward network of a layer; every sum is that of the model."""
    x, after = layer.given, last_output(layer)
    at = next((i for i, one in enumerate(layer.events) if isinstance(one, AttentionCall)), None)
    if at is None or sum(isinstance(one, AttentionCall) for one in layer.events) != 1:
        raise refusal(name, "layers without exactly one attention")
    before = [one for one in layer.events[:at] if isinstance(one, ModuleOutput)]
    later = [one for one in layer.events[at:] if isinstance(one, ModuleOutput)]
    linear = [one for one in later if one.is_linear]
    if len(linear) < 3 or linear[0].output.shape != x.shape or linear[-1].output.shape != x.shape:
        raise refusal(name, "no output projection and feed-forward network of two layers")
    projected, outer = linear[0], linear[-1]
    attention = call_parts(layer.events[at], projected.output)
    added, y = projected.output, outer.output
    first = next((one for one in before if one.is_norm and close(one.given, x)), None)
    norms = [one for one in later if one.is_norm]
    activation = next((type(one.module).__name__ for one in later if close(one.output, outer.given) and not one.is_linear), "f")
    if first is not None:  # pre-norm: GPT-2; or both sub-layers beside each other: GPT-J
        total = x + added
        second = next((one for one in [*norms, first] if close(one.given, total) or close(one.given, x)), first)
        if not close(total + y, after):
            raise refusal(name, "layers whose output is not x + attention + feed-forward")
        return [
            SublayerTrace("self", first.module, True, x, first.output, added, total, total, attention),
            SublayerTrace(
                "feed_forward", second.module, True, total, second.output, y, total + y, after, None, outer.given, activation
            ),
        ]
    middle = next((one for one in norms if close(one.given, x + added)), None)
    last = next((one for one in norms if middle is not None and close(one.given, middle.output + y)), None)
    if middle is None or last is None or not close(last.output, after):
        raise refusal(name, "layers that are neither norm(x + f(x)) nor x + f(norm(x))")
    return [
        SublayerTrace("self", middle.module, False, x, None, added, x + added, middle.output, attention),
        SublayerTrace(
            "feed_forward",
            last.module,
            False,
            middle.output,
            None,
            y,
            middle.output + y,
            after,
            None,
            outer.given,
            activation,
        ),
    ]


def call_parts(call: object, output: Tensor) -> CallParts:
    """Return the parts of a call of attention; scores of hidden keys are -∞."""
    assert isinstance(call, AttentionCall)
    pair, v, score = call.queries_and_keys(None), call.values(), call.score_function()
    if pair is None or v is None or score is None:
        raise UserError(f"--view flow: {call.name} has scores of more than queries and keys; use --view lens")
    scores = call.scores(None, slice(None))[0]
    scores = scores.masked_fill(scores < HIDDEN, -torch.inf)
    q, k = pair[0][0], pair[1][0]
    plain = score(q[None], k[None])[0]
    seen = torch.isfinite(scores)
    return CallParts(
        q, k, v[0], scores, call.weights()[0], output, not close(plain[seen], scores[seen]), score.formula(q.size(-1))
    )
