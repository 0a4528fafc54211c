"""The attention of one sentence or picture as paths from the answer down to its pieces."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.attention.modules import layer_index
from regard.attention.watch import AttentionRecording, watch
from regard.errors import UserError
from regard.explain.target import AttributionTarget, without_cudnn

Combine = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class AttentionStage:
    """One attention: the weights (H, T, S) of every head, and of which module."""

    name: str
    weights: Tensor
    across: bool = False
    """Whether it looks at the source."""


@dataclass(frozen=True)
class AttentionGraph:
    """From the pieces up: the stages of the encoder where there is a source, and of the stack that says the answer."""

    stages: list[AttentionStage]
    source: list[AttentionStage]
    asks: Tensor
    """(T,) how much each position of the last stage has to do with the answer; they sum to 1."""
    columns: Tensor
    """(N,) those of the inputs that are explained; the source's come after the target's own."""

    @property
    def last(self) -> AttentionStage:
        """What one sees first: the last attention from which the answer looks at the pieces."""
        return next(stage for stage in reversed(self.stages) if stage.across or not self.source_size)

    @property
    def source_size(self) -> int:
        return next((stage.weights.size(-1) for stage in self.stages if stage.across), 0)

    @property
    def unseen(self) -> int:
        """Marks before a source that its encoder reads, and the target does not look at."""
        return self.source[0].weights.size(-1) - self.source_size if self.source else 0

    def climb(self, combine: Combine) -> Tensor:
        """What every position has to do with every input: (T, inputs). At each stage `combine(weights (T, S), seen (S, inputs),
        own (T, inputs))`, where `own` is what comes past it by the residual."""
        own, S = self.stages[0].weights.size(-2), self.source_size + self.unseen
        everything = torch.eye(own + S, dtype=torch.float64)
        below, above = everything[own:], everything[:own]
        for stage in self.source:
            below = combine(stage.weights.mean(0), below, below)
        for stage in self.stages:
            above = combine(stage.weights.mean(0), below[self.unseen :] if stage.across else above, above)
        return above

    def answer(self, above: Tensor) -> Tensor:
        """The answer's share of (T, inputs): (N,)."""
        return (self.asks @ above)[self.columns]


def split_stages(
    seen: AttentionRecording, target: AttributionTarget, weights: Callable[[str], Tensor]
) -> tuple[list[AttentionStage], list[AttentionStage]]:
    found = [AttentionStage(name, weights(name)[0].double().cpu(), "cross" in name) for name in seen.names()]
    encoder = [stage for stage in found if target.translates and stage.name.startswith("encoder")]
    return [stage for stage in found if stage not in encoder], encoder


def attention_graph(target: AttributionTarget, *, deep: str | None = None) -> AttentionGraph:
    """Watch the model while it says the answer. `deep` is a method that needs attention layer upon layer."""
    with torch.no_grad(), watch(target.model, kinds=target.kinds) as seen:
        target.said(target.read)
    return build_graph(seen, target, lambda name: seen[name], deep)


def gradient_attention_graph(target: AttributionTarget) -> AttentionGraph:
    """Each weight times its gradient, where that speaks for the answer: (∇A ⊙ A)⁺ (Chefer et al. 2021, eq. 5)."""
    parameters = [p for p in target.model.parameters() if p.requires_grad]
    with torch.enable_grad(), watch(target.model, kinds=target.kinds, gradients=True) as seen, without_cudnn():
        torch.autograd.grad(target.said(target.read).sum(), parameters, allow_unused=True)

    def weighed(name: str) -> Tensor:
        if all(kept is None for kept in seen.gradient_calls[name]):
            return torch.zeros_like(seen[name])
        return (seen.gradient(name) * seen[name]).clamp(min=0)

    return build_graph(seen, target, weighed)


def build_graph(
    seen: AttentionRecording, target: AttributionTarget, weights: Callable[[str], Tensor], deep: str | None = None
) -> AttentionGraph:
    if not seen.names():
        raise UserError(
            "a model without attention has none to explain it by; use: occlusion, input-gradient, integrated-gradients"
        )
    if deep is not None and any(layer_index(name) is None for name in seen.names()):
        raise UserError(
            f"{deep} follows attention through the layers of a Transformer; this model is recurrent, and mixes its "
            "words otherwise too; use: attention, norms or a method of gradients"
        )
    stages, source = split_stages(seen, target, weights)
    found = AttentionGraph(stages, source, target.asking(stages[-1].weights.size(-2)), target.places.cpu())
    first = stages[0].weights.size(-2) + found.unseen if target.translates else 0
    return replace(found, columns=found.columns + first)
