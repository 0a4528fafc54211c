"""The states of a model that transformers runs, layer by layer, and its own output layer applied to any of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.tasks.transformers_models import TransformersRun

PREDICTS_TOKENS = ("next_token", "masked_token", "translation")


class LayerStates(NamedTuple):
    """The residual stream (layers + 1, T, D) of a batch of one."""

    normed: Tensor
    """After the final norm, if there is one."""
    norm: nn.Module | None
    stacks: list[tuple[nn.Module, Any]]
    """The modules that return the last state, a stack and what is around it, each with its output."""


def inner_models(model: nn.Module) -> list[nn.Module]:
    """Return the models of transformers inside one with an output layer: its stacks of layers."""
    return [module for module in model.modules() if module is not model and hasattr(module, "main_input_name")]


def predicts_tokens(run: TransformersRun) -> bool:
    """Return whether the model has an output layer for tokens, apart from the layers below it."""
    return run.task.explains in PREDICTS_TOKENS and bool(inner_models(run.model))


@torch.no_grad()
def lens_logits(run: TransformersRun, inputs: dict[str, Tensor]) -> Tensor:
    """Return the logits (layers + 1, T, V) that the model gives if its last state is that of each layer."""
    states = layer_states(run, inputs)
    with ExitStack() as replaced:
        for stack, output in states.stacks:
            replaced.enter_context(replace_states(stack, type(output)(last_hidden_state=states.normed)))
        logits: Tensor = run._forward(inputs)
    return logits


@torch.no_grad()
def layer_states(run: TransformersRun, inputs: dict[str, Tensor]) -> LayerStates:
    """Return the states after the embeddings and after every layer."""
    stacks = inner_models(run.model)
    layers = [layer for one in stacks for layer in one.modules() if isinstance(layer, nn.ModuleList)]
    inside = {id(part) for one in layers for part in one.modules()}
    norms = [one for one in run.model.modules() if "norm" in type(one).__name__.lower() and id(one) not in inside]
    with record_outputs([*stacks, *norms]) as outputs:
        found = run.model(**inputs, output_hidden_states=True, return_dict=True)
    hidden = found.decoder_hidden_states if run.task.encoder_decoder else found.hidden_states
    if hidden is None or len({state.shape for state in hidden}) > 1:
        raise UserError(f"--view lens: {type(run.model).__name__} gives no states of one width, layer by layer")
    last = hidden[-1]

    def returns_last(output: Any) -> bool:
        state = getattr(output, "last_hidden_state", output)
        return isinstance(state, Tensor) and state.shape == last.shape and torch.equal(state, last)

    final = [(module, output) for module, output in outputs if returns_last(output)]
    norm = next((module for module, _ in final if module in norms), None)
    states = [state if norm is None else norm(state) for state in hidden[:-1]]
    return LayerStates(torch.cat([*states, last]), norm, [one for one in final if one[0] in stacks])


@contextmanager
def record_outputs(modules: Sequence[nn.Module]) -> Iterator[list[tuple[nn.Module, object]]]:
    """Record the outputs of these modules inside the block, in the order of their calls."""
    found: list[tuple[nn.Module, object]] = []

    def record(module: nn.Module, given: object, output: object) -> None:
        found.append((module, output))

    handles = [module.register_forward_hook(record) for module in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def replace_states(stack: Any, output: object) -> Iterator[None]:
    """Inside the block, the stack computes nothing and returns this output."""
    own: Callable[..., Any] | None = stack.__dict__.get("forward")
    stack.forward = lambda *args, **options: output
    try:
        yield
    finally:
        del stack.forward
        if own is not None:
            stack.forward = own
