"""What is explained: the log-probability of one answer, as a function of the tokens a model reads.

The answer is a class, or the word at one step of an output. R rows, N tokens that are explained, S positions that are read.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.errors import Mistake

AT_ONCE = 64
"""Rows that are read together."""


@dataclass(frozen=True)
class Target:
    model: nn.Module
    inputs: dict[str, Tensor]
    """One example as the model reads it, by the names of its `forward`: (1, …) each."""
    side: str
    """The input that the tokens are in."""
    places: Tensor
    """(N,) where in it those are that are explained; its marks are not."""
    answer: int
    stand_in: int
    """The token that takes the place of one that is hidden."""
    step: int | None = None
    """At which position of the output the answer is said; None where one thing is said of the whole."""

    @property
    def ids(self) -> Tensor:
        """(1, S)."""
        return self.inputs[self.side]

    @property
    def translates(self) -> bool:
        """Whether the tokens are in a source, and the answer is in its target."""
        return self.side != "target" and self.step is not None

    def log_probabilities(self, ids: Tensor) -> Tensor:
        """Of every answer, had these been read: (R, S) -> (R, C)."""
        others = {name: part.expand(len(ids), *part.shape[1:]) for name, part in self.inputs.items() if name != self.side}
        logits = self.model(**others, **{self.side: ids})
        return (logits if self.step is None else logits[:, self.step]).log_softmax(-1)

    def said(self, ids: Tensor) -> Tensor:
        """The log-probability of the answer: (R, S) -> (R,)."""
        return self.log_probabilities(ids)[:, self.answer]

    @torch.no_grad()
    def measure(self, ids: Tensor) -> Tensor:
        """The same, a few rows at a time and without gradients."""
        return torch.cat([self.said(part) for part in ids.split(AT_ONCE)]).double().cpu()

    def hide(self, hidden: Tensor) -> Tensor:
        """The ids with the stand-in where `hidden` (R, N) is true: (R, S)."""
        ids = self.ids.repeat(len(hidden), 1)
        ids[:, self.places] = ids[:, self.places].masked_fill(hidden.to(ids.device), self.stand_in)
        return ids

    @torch.no_grad()
    def vectors(self, ids: Tensor) -> Tensor:
        """The word vectors of what is read: (R, S) -> (R, S, D)."""
        found: list[Tensor] = []

        def keep(x: Tensor) -> Tensor:
            found.append(x)
            return x

        with embedded(self.model, ids, keep):
            self.said(ids)
        if not found:
            raise Mistake("the model reads no word vectors of its own that have gradients; use: occlusion")
        return found[0]

    def gradients(self, vectors: Tensor) -> Tensor:
        """Of the answer's log-probability with respect to word vectors (R, S, D)."""
        ids, leaf = self.ids.repeat(len(vectors), 1), vectors.detach().requires_grad_()
        with torch.enable_grad(), embedded(self.model, ids, lambda _: leaf), recurrent_backward():
            (gradient,) = torch.autograd.grad(self.said(ids).sum(), leaf, allow_unused=True)
        if gradient is None:
            raise Mistake("the model reads the frozen vectors of another, which gradients do not reach; use: occlusion")
        return gradient


@contextmanager
def embedded(model: nn.Module, ids: Tensor, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While the block runs, the word vectors of `ids` (that very tensor) are what `change` makes of them."""
    def hook(module: nn.Module, args: tuple, output: Tensor) -> Tensor | None:
        return change(output) if args[0] is ids else None

    hooks = [module.register_forward_hook(hook) for module in model.modules() if isinstance(module, nn.Embedding)]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def recurrent_backward():
    """cuDNN's cells go backward in training only; torch's own always do."""
    return torch.backends.cudnn.flags(enabled=False)
