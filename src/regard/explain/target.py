"""What is explained: how much a model is for one answer, as a function of the pieces it reads.

The answer is a class, or the word at one step of an output, and counts by its log-probability; or a text that a picture fits, by
its likeness. Pieces are the tokens of a text or the patches of a picture. R rows, N pieces that are explained, S positions.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.errors import UserError


@dataclass(frozen=True)
class AttributionTarget:
    model: nn.Module
    inputs: dict[str, Tensor]
    """One example as the model reads it, by the names of its `forward`: (1, …) each."""
    side: str
    """The input that the pieces are in."""
    places: Tensor
    """(N,) at which positions of what attention looks at those are that are explained; marks are not."""
    answer: int
    stand_in: int | Tensor
    """What takes the place of a piece that is hidden: a token, or a colour (3,)."""
    step: int | None = None
    """At which position of the output the answer is said; None where one thing is said of the whole."""

    pieces: ClassVar[str]
    """What they are called."""
    counts: ClassVar[str] = "probability"
    """What an answer counts by."""
    kinds: ClassVar[str | None] = None
    """Which places of attention look at them, as `watch` takes it; None is all."""
    at_once: ClassVar[int]
    """Rows that are read together."""

    @property
    def read(self) -> Tensor:
        """What was read: (1, …)."""
        return self.inputs[self.side]

    @property
    def translates(self) -> bool:
        """Whether the pieces are in a source, and the answer is in its target."""
        return self.side != "target" and self.step is not None

    def scores(self, read: Tensor) -> Tensor:
        """The log-probability of every answer, had this been read: (R, …) -> (R, C)."""
        others = {name: part.expand(len(read), *part.shape[1:]) for name, part in self.inputs.items() if name != self.side}
        logits = self.model(**others, **{self.side: read})
        return (logits if self.step is None else logits[:, self.step]).log_softmax(-1)

    def amounts(self, scores: Tensor) -> Tensor:
        """What the scores count as: probabilities."""
        return scores.exp()

    def moved(self, before: Tensor, after: Tensor) -> float:
        """How far apart two sets of scores (1, C), (R, C) are, on the average: total variation."""
        return float((self.amounts(after) - self.amounts(before)).abs().sum(-1).mean() / 2)

    def said(self, read: Tensor) -> Tensor:
        """The score of the answer: (R, …) -> (R,)."""
        return self.scores(read)[:, self.answer]

    @torch.no_grad()
    def without(self, hidden: Tensor) -> Tensor:
        """The same where pieces are hidden (R, N), a few rows at a time and without gradients."""
        return torch.cat([self.said(self.hide(part)) for part in hidden.split(self.at_once)]).double().cpu()

    def whole(self) -> Tensor:
        """The same where none is: (1,)."""
        return self.without(torch.zeros(1, len(self.places), dtype=torch.bool))

    def hide(self, hidden: Tensor) -> Tensor:
        """What is read with the stand-in where `hidden` (R, N) is true: (R, …)."""
        raise NotImplementedError

    def vectors(self, read: Tensor) -> Tensor:
        """The numbers of what is read, of which there are gradients: (R, …)."""
        raise NotImplementedError

    def gradients(self, vectors: Tensor) -> Tensor:
        """Of the answer's score with respect to such numbers, in their shape."""
        raise NotImplementedError

    def summed(self, x: Tensor) -> Tensor:
        """What belongs to each piece of numbers in the shape of one row of vectors (1, …), added up: (N,)."""
        raise NotImplementedError

    def asking(self, length: int) -> Tensor:
        """(length,) how much each position of the last layer has to do with the answer; they sum to 1."""
        raise NotImplementedError


class TextTarget(AttributionTarget):
    """What is read are the ids of tokens (R, S), and their numbers are word vectors (R, S, D)."""

    pieces = "tokens"
    at_once = 64

    def hide(self, hidden: Tensor) -> Tensor:
        ids = self.read.repeat(len(hidden), 1)
        ids[:, self.places] = ids[:, self.places].masked_fill(hidden.to(ids.device), self.stand_in)
        return ids

    @torch.no_grad()
    def vectors(self, read: Tensor) -> Tensor:
        found: list[Tensor] = []

        def keep(x: Tensor) -> Tensor:
            found.append(x)
            return x

        with replace_embeddings(self.model, read, keep):
            self.said(read)
        if not found:
            raise UserError("the model reads no word vectors of its own that have gradients; use: occlusion")
        return found[0]

    def gradients(self, vectors: Tensor) -> Tensor:
        ids, leaf = self.read.repeat(len(vectors), 1), vectors.detach().requires_grad_()
        with torch.enable_grad(), replace_embeddings(self.model, ids, lambda _: leaf), without_cudnn():
            (gradient,) = torch.autograd.grad(self.said(ids).sum(), leaf, allow_unused=True)
        if gradient is None:
            raise UserError("the model reads the frozen vectors of another, which gradients do not reach; use: occlusion")
        return gradient

    def summed(self, x: Tensor) -> Tensor:
        return x[0].sum(-1)[self.places].double().cpu()

    def asking(self, length: int) -> Tensor:
        kind = getattr(getattr(self.model, "pool", None), "kind", "first")
        if self.step is None and not kind.startswith("first"):
            real = torch.arange(length) < int(self.inputs["lengths"][0])
            return real.double() / real.sum()  # all of them (mean, max)
        return one_hot(0 if self.step is None else self.step, length)


def one_hot(position: int, length: int) -> Tensor:
    return (torch.arange(length) == position).double()


@contextmanager
def replace_embeddings(model: nn.Module, ids: Tensor, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While the block runs, the word vectors of `ids` (that very tensor) are what `change` makes of them."""

    def hook(module: nn.Module, args: tuple, output: Tensor) -> Tensor | None:
        return change(output) if args[0] is ids else None

    hooks = [module.register_forward_hook(hook) for module in model.modules() if isinstance(module, nn.Embedding)]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def without_cudnn():
    """cuDNN's cells go backward in training only; torch's own always do."""
    return torch.backends.cudnn.flags(enabled=False)
