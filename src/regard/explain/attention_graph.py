"""The attention of one example as a graph from the output down to its input features (Abnar & Zuidema 2020)."""

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from regard.attention.modules import layer_index
from regard.attention.recording import AttentionRecording
from regard.attention.watch import watch
from regard.errors import UserError
from regard.explain.target import AttributionTarget, without_cudnn

MIN_GRADIENT = 1e-9
"""The gradient of a query that the output depends on, as a fraction of the largest."""
WITHOUT_ATTENTION = "occlusion, input-gradient, integrated-gradients"
"""The methods that need no attention."""
OTHER_LAYERS = "{} needs layers of self-attention over the same positions; this model has others"
Nodes = TypeVar("Nodes", Tensor, list[int])
"""One row or node per position."""


@dataclass(frozen=True)
class AttentionStage:
    """One attention module: its name and the weights (H, T, S) of its heads."""

    name: str
    weights: Tensor
    cross: bool = False


@dataclass(frozen=True)
class AttentionGraph:
    """The stages of the stack that predicts the output, and those of its encoder where there is a source, bottom up."""

    stages: list[AttentionStage]
    encoder: list[AttentionStage]
    query_weights: Tensor
    """(T,) By how much each position of the last stage determines the output; they sum to 1."""
    columns: Tensor
    """(N,) The explained features among all inputs; those of the source come after the target's own."""

    @property
    def attending(self) -> list[AttentionStage]:
        """The stages that attend to the features."""
        return [stage for stage in self.stages if stage.cross or not self.source_size]

    @property
    def last(self) -> AttentionStage:
        """The last stage that attends to the features."""
        return self.attending[-1]

    def shown(self, target: AttributionTarget) -> AttentionStage:
        """Return the stage of the layer that is shown: the last one unless the target has another."""
        layers, heads = len(self.attending), self.attending[0].weights.size(0)
        if not 1 <= (target.layer or layers) <= layers:
            raise UserError(f"--layer {target.layer}: {layers} layers attend to the {target.wording.features}; use 1 to {layers}")
        if not 1 <= (target.head or 1) <= heads:
            raise UserError(f"--head {target.head}: the layer has {heads} heads; use 1 to {heads}")
        return self.attending[(target.layer or layers) - 1]

    def call_from_the_end(self, stage: AttentionStage) -> int:
        """Return which call of its module a stage is, -1 for the last: layers may share a module, as in ALBERT."""
        calls = [one for one in self.stages if one.name == stage.name]
        return next(index for index, one in enumerate(calls) if one is stage) - len(calls)

    def shown_weights(self, target: AttributionTarget) -> Tensor:
        """Return the weights of the layer that is shown, of its head or the mean over heads: (T, S)."""
        weights = self.shown(target).weights
        return weights.mean(0) if target.head is None else weights[target.head - 1]

    @property
    def source_size(self) -> int:
        """The number of source positions that the decoder attends to."""
        return next((stage.weights.size(-1) for stage in self.stages if stage.cross), 0)

    @property
    def source_offset(self) -> int:
        """The number of special tokens before the source that the encoder reads and the decoder does not attend to."""
        return self.encoder[0].weights.size(-1) - self.source_size if self.encoder else 0

    @property
    def input_size(self) -> int:
        """The number of all inputs: the target's own, then those of the source."""
        return self.stages[0].weights.size(-2) + self.source_size + self.source_offset

    def propagate(self, inputs: Nodes, combine: Callable[[Tensor, Nodes, Nodes], Nodes]) -> Nodes:
        """Return what becomes of the inputs at the last stage.

        Each stage applies `combine(weights (T, S), attended, residual)`."""
        T = self.stages[0].weights.size(-2)
        above, source = inputs[:T], inputs[T:]
        for stage in self.encoder:
            source = combine(stage.weights.mean(0), source, source)
        for stage in self.stages:
            above = combine(stage.weights.mean(0), source[self.source_offset :] if stage.cross else above, above)
        return above

    def output_relevance(self, combine: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """Return the relevance of the features for the output: (N,).

        Each stage applies `combine(weights (T, S), attended (S, inputs), residual (T, inputs))`."""
        return (self.query_weights @ self.propagate(torch.eye(self.input_size, dtype=torch.float64), combine))[self.columns]


def attention_graph(target: AttributionTarget, *, method: str | None = None) -> AttentionGraph:
    """Record the attention behind the output. `method` names a method that needs attention in every layer."""
    with torch.no_grad():
        seen = watch_score(target, lambda score: None)
    return build_graph(seen, target, lambda name: seen[name], method)


def gradient_attention_graph(target: AttributionTarget) -> AttentionGraph:
    """Record each weight times its gradient where that is positive: (∇A ⊙ A)⁺ (Chefer et al. 2021, eq. 5)."""
    seen = watch_gradients(target)

    def relevance(name: str) -> Tensor:
        if all(call is None for call in seen.gradient_calls[name]):
            return torch.zeros_like(seen[name])
        return (seen.gradient(name) * seen[name]).clamp(min=0)

    return build_graph(seen, target, relevance)


def watch_gradients(target: AttributionTarget) -> AttentionRecording:
    """Record the attention behind the output, with the gradients of the output's score."""
    parameters = [p for p in target.model.parameters() if p.is_floating_point()]
    with ExitStack() as stack:
        for p in parameters:
            if not p.requires_grad:
                stack.callback(p.requires_grad_(True).requires_grad_, False)
        stack.enter_context(torch.enable_grad())
        stack.enter_context(without_cudnn())
        return watch_score(target, lambda score: torch.autograd.grad(score.sum(), parameters, allow_unused=True), gradients=True)


def watch_score(target: AttributionTarget, use: Callable[[Tensor], object], *, gradients: bool = False) -> AttentionRecording:
    """Record the attention while the output's score is computed and used."""
    try:
        with watch(target.model, kinds=target.attention_pattern, gradients=gradients) as seen:
            use(target.score(target.input))
    except UserError as error:
        if "no attention" not in str(error):
            raise
        raise UserError(f"the model has no attention that is seen; use: {WITHOUT_ATTENTION}") from None
    return seen


def determining_attention(target: AttributionTarget) -> tuple[str | None, tuple[int, ...]]:
    """Return a pattern of the modules whose attention the output depends on, None if it is all of them, and the queries of the
    last one that it depends on: the positions that a label is predicted from."""
    seen = watch_gradients(target)
    names = [name for name in seen.names() if any(call is not None for call in seen.gradient_calls[name])]
    if not names:
        raise UserError(f"the output depends on no attention; use: {WITHOUT_ATTENTION}")
    gradient = stage_maps(seen, names[-1], seen.gradient(names[-1]))[-1]  # (1, H, T, S)
    size = gradient[0].abs().sum((0, 2))  # (T,)
    queries = torch.nonzero(size > MIN_GRADIENT * size.max()).flatten().tolist()
    pattern = f"^({'|'.join(map(re.escape, names))})$"
    return target.attention_pattern if names == seen.names() else pattern, tuple(queries)


def build_graph(
    seen: AttentionRecording, target: AttributionTarget, weights: Callable[[str], Tensor], method: str | None = None
) -> AttentionGraph:
    if not seen.names():
        raise UserError(f"the model has no attention to explain it by; use: {WITHOUT_ATTENTION}")
    if method is not None and any(layer_index(name) is None for name in seen.names()):
        if target.keys is not None:
            raise UserError(OTHER_LAYERS.format(method))
        raise UserError(
            f"{method} follows attention through the layers of a Transformer; this model is recurrent and also mixes its "
            "tokens in other ways; use: attention, norms or a gradient method"
        )
    stages = [
        AttentionStage(name, part[0].double().cpu(), seen.kinds[name] == "cross")
        for name in seen.names()
        for part in stage_maps(seen, name, weights(name))
    ]
    has_source = target.has_source or any(stage.cross for stage in stages)
    encoder = [stage for stage in stages if has_source and in_encoder(stage.name)]
    stages = [stage for stage in stages if not (has_source and in_encoder(stage.name))]
    graph = AttentionGraph(stages, encoder, target.query_weights(stages[-1].weights.size(-2)), target.positions.cpu())
    check_keys(graph, target, method)
    first = stages[0].weights.size(-2) + graph.source_offset if has_source else 0
    return replace(graph, columns=graph.columns + first)


def stage_maps(seen: AttentionRecording, name: str, whole: Tensor) -> list[Tensor]:
    """Return the maps (1, H, T, S) of a module: one for each call where layers share it, as in ALBERT."""
    if whole.size(0) != 1:
        raise UserError(f"{name} attends within parts of the input, not to all of it; use: {WITHOUT_ATTENTION}")
    shapes = {call.shape for call in seen.recorded(name)}
    (T, S), calls = next(iter(shapes))[2:], len(seen.recorded(name))
    is_shared = calls > 1 and len(shapes) == 1 and T == S and layer_index(name) is not None
    return list(whole.split(S, dim=-2)) if is_shared else [whole]


def in_encoder(name: str) -> bool:
    parts = name.split(".")
    return "encoder" in parts and "decoder" not in parts


def check_keys(graph: AttentionGraph, target: AttributionTarget, method: str | None) -> None:
    """Refuse a model whose attention is not over the features, or for `method` not so in every layer."""
    if target.keys is not None and graph.last.weights.size(-1) != target.keys:
        raise UserError(
            f"{graph.last.name} attends to {graph.last.weights.size(-1)} positions, which are not those of the "
            f"{target.wording.features}; use: {WITHOUT_ATTENTION}"
        )
    for stack in (graph.stages, graph.encoder):
        sizes = {stage.weights.shape[-2:] for stage in stack if not stage.cross}
        if method is not None and stack and (len(sizes) > 1 or any(T != S for T, S in sizes)):
            raise UserError(OTHER_LAYERS.format(method))
