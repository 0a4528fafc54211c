"""One forward pass with everything in it: the inputs and outputs of the parts of every block, recorded by hooks.

The numbers are those of the model's own modules. Only scores and attention weights, which fused kernels never write down, are
computed again, by the core and from the queries and keys that the model used.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard.attention.core import attention_scores, attention_weights
from regard.attention.multihead import Attention
from regard.layers.block import Block
from regard.layers.norm import Residual
from regard.layers.stack import Stack


@dataclass(frozen=True)
class RecordedCall:
    """One call of a module: its arguments and its output."""

    module: nn.Module
    given: tuple[Any, ...]
    options: dict[str, Any]
    output: Tensor


class AttentionParts(Protocol):
    """The parts of an attention sub-layer, of a batch of one: q (H, T, K), k and v (G, S, ·), scores and weights (H, T, S), mixed
    (H, T, J), output (T, D)."""

    @property
    def q(self) -> Tensor: ...
    @property
    def k(self) -> Tensor: ...
    @property
    def v(self) -> Tensor: ...
    @property
    def scores(self) -> Tensor: ...
    @property
    def weights(self) -> Tensor: ...
    @property
    def mixed(self) -> Tensor: ...
    @property
    def output(self) -> Tensor: ...
    @property
    def has_bias(self) -> bool: ...
    @property
    def formula(self) -> str: ...


@dataclass(frozen=True)
class AttentionTrace:
    """The parts of an attention sub-layer of ours, from the call of its `attend`."""

    call: RecordedCall
    output: Tensor

    @property
    def _module(self) -> Attention:
        module = self.call.module
        assert isinstance(module, Attention)
        return module

    @property
    def q(self) -> Tensor:
        return self.call.given[0][0]  # type: ignore[no-any-return]

    @property
    def k(self) -> Tensor:
        return self.call.given[1][0]  # type: ignore[no-any-return]

    @property
    def v(self) -> Tensor:
        return self.call.given[2][0]  # type: ignore[no-any-return]

    @property
    def mixed(self) -> Tensor:
        """The output of attention in each head, from the kernel that the model used."""
        return self.call.output[0]

    @property
    def _arguments(self) -> dict[str, Any]:
        bias, mask = self.call.options.get("bias"), self.call.options.get("mask")
        return {"score": self._module.score, "scale": self._module.scale, "bias": bias, "mask": mask}

    @cached_property
    def scores(self) -> Tensor:
        """The input of the softmax (H, T, S), -∞ where the mask hides a key."""
        return attention_scores(self.call.given[0], self.call.given[1], **self._arguments)[0]

    @cached_property
    def weights(self) -> Tensor:
        """The attention weights (H, T, S)."""
        return attention_weights(self.call.given[0], self.call.given[1], **self._arguments)[0]

    @property
    def has_bias(self) -> bool:
        return self.call.options.get("bias") is not None

    @property
    def formula(self) -> str:
        return self._module.decomposable_score.formula(self.q.size(-1))


@dataclass(frozen=True)
class SublayerTrace:
    """A sub-layer and its residual connection: x (T, D) before, `normed` with the norm first, `added`, the sum, the result."""

    kind: str
    """"self", "cross" or "feed_forward"."""
    norm: nn.Module
    norm_first: bool
    x: Tensor
    normed: Tensor | None
    added: Tensor
    sum: Tensor
    result: Tensor
    attention: AttentionParts | None = None
    inner: Tensor | None = None
    """Of a feed-forward layer, the activations (T, F)."""
    activation: str = ""


@dataclass
class BlockCalls:
    """The calls of the parts of one block, by name, in one forward pass."""

    block: Block
    calls: dict[str, RecordedCall] = field(default_factory=dict)

    def sublayers(self) -> list[SublayerTrace]:
        kinds = [kind for kind in ("self", "cross", "feed_forward") if f"{kind}_residual" in self.calls]
        return [self._sublayer(kind) for kind in kinds]

    def _sublayer(self, kind: str) -> SublayerTrace:
        call = self.calls[f"{kind}_residual"]
        residual, x = call.module, call.given[0]
        assert isinstance(residual, Residual)
        name = "feed_forward" if kind == "feed_forward" else f"{kind}_attention.out_proj"
        output = self.calls[name].output
        attention = None if kind == "feed_forward" else AttentionTrace(self.calls[f"{kind}_attention.attend"], output[0])
        inner = self.calls["feed_forward.outer"].given[0][0] if kind == "feed_forward" else None
        norm = self.calls.get(f"{kind}_residual.norm")
        skipped = residual.skip(x) if residual.residual else torch.zeros_like(output)
        added = residual._regularize(residual.output_norm(output) if residual.norm_first else output.reshape(x.shape))
        return SublayerTrace(
            kind,
            residual.norm,
            residual.norm_first,
            x[0],
            norm.output[0] if norm is not None and residual.norm_first else None,
            added[0],
            (skipped + added)[0],
            call.output[0],
            attention,
            inner,
            self.block.feed_forward.activation,
        )


@dataclass
class StackTrace:
    """The calls of one stack: the embeddings (T, D) that enter it, its blocks, its final norm."""

    stack: Stack
    embedded: Tensor | None = None
    blocks: list[BlockCalls] = field(default_factory=list)
    final: RecordedCall | None = None

    @property
    def entering(self) -> Tensor:
        """What the first block reads (T, D)."""
        return self.blocks[0].calls["self_residual"].given[0][0]  # type: ignore[no-any-return]


@dataclass
class ForwardTrace:
    """All stacks of one forward pass in order, and the output of the model."""

    stacks: list[StackTrace]
    output: Tensor


@torch.no_grad()
def trace_forward(model: nn.Module, forward: Any) -> ForwardTrace:
    """Call `forward()`, which runs the model on a batch of one, and return what happened inside."""
    stacks = [StackTrace(module) for module in model.modules() if isinstance(module, Stack)]
    with ExitStack() as hooks:
        for trace in stacks:
            hooks.enter_context(record_stack(trace))
        output = forward()
    return ForwardTrace(stacks, output)


@contextmanager
def record_stack(trace: StackTrace) -> Iterator[None]:
    """Record the calls of a stack and of the modules of its blocks inside the block. Blocks may share modules (ALBERT): a call
    belongs to the block that is running."""

    def enter_stack(module: nn.Module, given: tuple[Tensor, ...], options: Any) -> None:
        segment = options.get("segment")
        trace.embedded = given[0][0] if segment is None else given[0][0] + segment
        trace.blocks.clear()

    def enter_block(module: nn.Module, given: Any) -> None:
        assert isinstance(module, Block)
        trace.blocks.append(BlockCalls(module))

    def leave_part(name: str) -> Any:
        def leave(module: nn.Module, given: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
            if trace.blocks:
                trace.blocks[-1].calls[name] = RecordedCall(module, given, options, output)

        return leave

    def leave_norm(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        trace.final = RecordedCall(module, given, {}, output)

    handles = [
        trace.stack.register_forward_pre_hook(enter_stack, with_kwargs=True),
        trace.stack.norm.register_forward_hook(leave_norm),
    ]
    hooked: set[int] = set()
    for block in trace.stack.layers():
        handles.append(block.register_forward_pre_hook(enter_block))
        for name, module in block.named_modules():
            if name and id(module) not in hooked:
                hooked.add(id(module))
                handles.append(module.register_forward_hook(leave_part(name), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
