"""The target of an attribution: the score of one model output as a function of its input features.

The output is a class, or the token at one step, scored by its log-probability; or, for CLIP, a text scored by its cosine
similarity to an image. Features are the tokens of a text or the patches of an image. R rows, N explained features, S positions,
C outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.clip import Clip

GridSize = tuple[int, int]


@dataclass(frozen=True)
class Wording:
    """The names of the features, of the score of an output, of the unit in which its losses are given, and of the examples."""

    features: str
    score: str = "probability"
    unit: str = "nats"
    examples: str = "images"


TEXT_WORDING = Wording("tokens", examples="sentences")


@dataclass(frozen=True)
class AttributionTarget(ABC):
    """A model, one example, and the output to explain."""

    model: nn.Module
    inputs: dict[str, Tensor]
    """The example by the argument names of `model.forward`: (1, …) each."""
    input_name: str
    """The input that holds the features."""
    positions: Tensor
    """(N,) The positions of the explained features among the keys of attention; special tokens are not explained."""
    output: int
    """The index of the class or token."""
    replacement: int | Tensor
    """What replaces a masked feature: a token id, or a colour (3,)."""
    step: int | None = None
    """The position that predicts the output, in a decoder or at a mask; None for a classification of the whole input."""
    further: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)
    """The further tokens of a word of several, as (step, token). A word is scored as a whole, by the sum of log-probabilities."""
    layer: int | None = field(default=None, kw_only=True)
    """The layer whose attention is shown and permuted, counted from 1 among those that attend to the features; None: the last."""
    head: int | None = field(default=None, kw_only=True)
    """Its head, counted from 1; None is the mean over heads."""
    attention_pattern: str | None = field(default=None, kw_only=True)
    """Which attention modules see the features, as `watch(kinds=…)` takes it; None is all."""
    keys: int | None = field(default=None, kw_only=True)
    """The number of keys of an attention to the input, to tell attention to anything else apart; None if there is none."""

    wording: ClassVar[Wording]
    batch_size: ClassVar[int]

    @property
    def input(self) -> Tensor:
        """The input that holds the features: (1, …)."""
        return self.inputs[self.input_name]

    @property
    def has_source(self) -> bool:
        """Whether the features are in the source of an encoder–decoder, and the output is a token of its target."""
        return self.input_name != "target" and "target" in self.inputs

    def scores(self, inputs: Tensor) -> Tensor:
        """Return the log-probability of every output for these inputs: (R, …) -> (R, C)."""
        logits = self.logits(inputs)
        return (logits if self.step is None else logits[:, self.step]).log_softmax(-1)

    def logits(self, inputs: Tensor) -> Tensor:
        """Return what the model predicts for these inputs: (R, …) -> (R, C), or (R, T, C) of a model with steps."""
        others = {
            name: part.expand(len(inputs), *part.shape[1:]) for name, part in self.inputs.items() if name != self.input_name
        }
        logits: Tensor = self.model(**others, **{self.input_name: inputs})
        return logits

    def to_probability(self, scores: Tensor) -> Tensor:
        """Return the scores on the scale that is reported: probabilities."""
        return scores.exp()

    def output_change(self, before: Tensor, after: Tensor) -> float:
        """Return the mean total variation distance between the distributions of scores (1, C) and (R, C)."""
        return float((self.to_probability(after) - self.to_probability(before)).abs().sum(-1).mean() / 2)

    def score(self, inputs: Tensor) -> Tensor:
        """Return the score of the output, of a word of several tokens that of all of them: (R, …) -> (R,)."""
        if not self.further:
            return self.scores(inputs)[:, self.output]
        steps, tokens = zip((self.step, self.output), *self.further)
        return self.logits(inputs)[:, list(steps)].log_softmax(-1)[:, range(len(steps)), list(tokens)].sum(-1)

    @torch.no_grad()
    def masked_scores(self, masked: Tensor) -> Tensor:
        """Return the score of the output with features masked (R, N), in batches: (R,)."""
        return torch.cat([self.score(self.mask(part)) for part in torch.split(masked, self.batch_size)]).double().cpu()

    def full_score(self) -> Tensor:
        """Return the score of the output for the whole input: (1,)."""
        return self.masked_scores(torch.zeros(1, len(self.positions), dtype=torch.bool))

    def step_weights(self, length: int) -> Tensor:
        """Return (length,) the positions that predict the tokens of the output, with equal weights that sum to 1."""
        assert self.step is not None
        return torch.stack([one_hot(step, length) for step in (self.step, *(step for step, _ in self.further))]).mean(0)

    @abstractmethod
    def mask(self, masked: Tensor) -> Tensor:
        """Return the input with the replacement where `masked` (R, N) is true: (R, …)."""

    @abstractmethod
    def embed(self, inputs: Tensor) -> Tensor:
        """Return the differentiable form of the input, of which gradients are taken: (R, …)."""

    @abstractmethod
    def gradients(self, vectors: Tensor) -> Tensor:
        """Return the gradient of the output's score with respect to embedded inputs, in their shape."""

    @abstractmethod
    def sum_features(self, x: Tensor) -> Tensor:
        """Sum one row in the shape of embedded inputs (1, …) over what belongs to each feature: (N,)."""

    @abstractmethod
    def query_weights(self, length: int) -> Tensor:
        """Return (length,) by how much each position of the last layer determines the output; they sum to 1."""


@dataclass(frozen=True)
class TextTarget(AttributionTarget):
    """Inputs are token ids (R, S), embedded as token embeddings (R, S, D)."""

    pooled: tuple[int, ...] | None = field(default=None, kw_only=True)
    """The positions that a label is predicted from; None is what the model's own `pool` says."""

    wording = TEXT_WORDING
    batch_size = 64

    def mask(self, masked: Tensor) -> Tensor:
        ids = self.input.repeat(len(masked), 1)
        ids[:, self.positions] = ids[:, self.positions].masked_fill(masked.to(ids.device), self.replacement)
        return ids

    @torch.no_grad()
    def embed(self, inputs: Tensor) -> Tensor:
        found: list[Tensor] = []
        with replace_embeddings(self.model, inputs, found.append):
            self.score(inputs)
        if not found:
            raise UserError("no embeddings of the text's tokens are seen to take gradients of; use: occlusion")
        return found[0]

    def gradients(self, vectors: Tensor) -> Tensor:
        ids, leaf = self.input.repeat(len(vectors), 1), vectors.detach().requires_grad_()
        with torch.enable_grad(), replace_embeddings(self.model, ids, lambda _: leaf), without_cudnn():
            (gradient,) = torch.autograd.grad(self.score(ids).sum(), leaf, allow_unused=True)
        if gradient is None:
            raise UserError("the model reads frozen features of another model, which gradients do not reach; use: occlusion")
        return gradient

    def sum_features(self, x: Tensor) -> Tensor:
        return x[0].sum(-1)[self.positions].double().cpu()

    def query_weights(self, length: int) -> Tensor:
        if self.pooled is not None and self.step is None:
            return torch.stack([one_hot(position, length) for position in self.pooled]).mean(0)
        kind = getattr(getattr(self.model, "pool", None), "kind", "first")
        if self.step is None and not kind.startswith("first"):
            real = torch.arange(length) < int(self.inputs["lengths"][0])
            return real.double() / real.sum()  # pooled over all positions (mean, max)
        return one_hot(0, length) if self.step is None else self.step_weights(length)


@dataclass(frozen=True)
class ImageTarget(AttributionTarget):
    """Inputs are normalized pixels (R, 3, H, W); the mean colour of the image replaces a masked patch."""

    patch_of_pixel: Tensor = field(kw_only=True)
    """(H, W) The index of the patch that each pixel is in, -1 if none."""
    pooled: tuple[int, ...] | None = field(default=None, kw_only=True)
    """The positions that a label is predicted from; None is all of them."""

    wording = Wording("patches")
    batch_size = 16

    def mask(self, masked: Tensor) -> Tensor:
        assert isinstance(self.replacement, Tensor)
        none = torch.zeros(len(masked), 1, dtype=torch.bool)  # index -1: pixels that are in no patch
        where = torch.cat([masked.cpu(), none], dim=1)[:, self.patch_of_pixel.cpu()].to(self.input.device)  # (R, H, W)
        return torch.where(where[:, None], self.replacement.to(self.input)[:, None, None], self.input)

    def embed(self, inputs: Tensor) -> Tensor:
        return inputs

    def gradients(self, vectors: Tensor) -> Tensor:
        found: list[Tensor] = []
        for part in torch.split(vectors, self.batch_size):
            leaf = part.detach().requires_grad_()
            with torch.enable_grad(), without_cudnn():
                found += torch.autograd.grad(self.score(leaf).sum(), leaf)
        return torch.cat(found)

    def sum_features(self, x: Tensor) -> Tensor:
        patch = self.patch_of_pixel.flatten().cpu()
        values = x[0].sum(0).flatten().double().cpu()
        return torch.zeros(len(self.positions), dtype=torch.float64).index_add(0, patch[patch >= 0], values[patch >= 0])

    def query_weights(self, length: int) -> Tensor:
        if self.step is not None:
            return self.step_weights(length)
        positions = range(length) if self.pooled is None else self.pooled
        return torch.stack([one_hot(position, length) for position in positions]).mean(0)


@dataclass(frozen=True)
class ImageTextTarget(ImageTarget):
    """The cosine similarity of an image to each of some texts (C, …), which are further inputs of the model (CLIP)."""

    attention_pattern: str | None = field(default=r"^image\.", kw_only=True)

    wording = Wording("patches", "similarity", "cosine similarity")

    def scores(self, inputs: Tensor) -> Tensor:
        model = cast(Clip, self.model)
        texts = model.text_features(**{name: part for name, part in self.inputs.items() if name != self.input_name})
        return model.image_features(inputs) @ texts.T

    def to_probability(self, scores: Tensor) -> Tensor:
        """Return the similarities as they are."""
        return scores

    def output_change(self, before: Tensor, after: Tensor) -> float:
        """Return the mean change of the output's own similarity: there may be no other text."""
        return float((after - before)[:, self.output].abs().mean())


def patch_indices(size: GridSize, grid: GridSize, patch: GridSize | None = None) -> Tensor:
    """Return the index, row by row, of the patch that each pixel is in: (H, W). Without a patch size, the grid divides the image
    into equal parts."""

    def along(pixels: int, patches: int, length: int | None) -> Tensor:
        index = torch.arange(pixels) * patches // pixels if length is None else torch.arange(pixels) // length
        return index.masked_fill(index >= patches, -1)

    down, across = (along(*one) for one in zip(size, grid, patch or (None, None)))
    return torch.where((down[:, None] < 0) | (across < 0), -1, down[:, None] * grid[1] + across)


def one_hot(position: int, length: int) -> Tensor:
    return (torch.arange(length) == position).double()


@contextmanager
def replace_embeddings(model: nn.Module, ids: Tensor, change: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Inside the block, replace the embeddings of `ids` (this very tensor) by `change(embeddings)` unless that is None.

    Where the model names its `token_embeddings`, which may get a copy of `ids`, the first lookup of equal ids is replaced."""
    named: list[nn.Module] | None = getattr(model, "token_embeddings", None)
    done = False

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        nonlocal done
        if named is None:
            return change(output) if args[0] is ids else None
        for axes in ((0, 1), (1, 0)):  # XLNet reads (S, B)
            if not done and args and args[0].dim() == 2 and torch.equal(args[0].permute(axes), ids):
                done, changed = True, change(output.permute(*axes, 2))
                return None if changed is None else changed.permute(*axes, 2)
        return None

    modules = [module for module in model.modules() if isinstance(module, nn.Embedding)] if named is None else named
    hooks = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def without_cudnn() -> AbstractContextManager[None]:
    """Disable cuDNN, whose recurrent cells have no backward pass in eval mode."""
    return torch.backends.cudnn.flags(enabled=False)
