"""A picture that is explained patch by patch. What is read are its normalised pixels (R, 3, H, W); what takes the place of a
hidden patch is the mean colour of the picture.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.explain.target import AttributionTarget, one_hot, without_cudnn

GridSize = tuple[int, int]


@dataclass(frozen=True)
class ImageTarget(AttributionTarget):
    cells: Tensor = field(kw_only=True)
    """(H, W) the number of the patch that each pixel is in, -1 where it is in none."""
    pooled: tuple[int, ...] | None = field(default=None, kw_only=True)
    """The positions that a label is said from; None is all of them."""

    pieces = "patches"
    at_once = 16

    def hide(self, hidden: Tensor) -> Tensor:
        assert isinstance(self.stand_in, Tensor)
        none = torch.zeros(len(hidden), 1, dtype=torch.bool)  # the last column: pixels that are in no patch
        where = torch.cat([hidden.cpu(), none], dim=1)[:, self.cells.cpu()].to(self.read.device)  # (R, H, W)
        return torch.where(where[:, None], self.stand_in.to(self.read)[:, None, None], self.read)

    def vectors(self, read: Tensor) -> Tensor:
        return read

    def gradients(self, vectors: Tensor) -> Tensor:
        found = []
        for part in vectors.split(self.at_once):
            leaf = part.detach().requires_grad_()
            with torch.enable_grad(), without_cudnn():
                found += torch.autograd.grad(self.said(leaf).sum(), leaf)
        return torch.cat(found)

    def summed(self, x: Tensor) -> Tensor:
        inside, of = self.cells.flatten().cpu() >= 0, self.cells.flatten().cpu()
        values = x[0].sum(0).flatten().double().cpu()
        return torch.zeros(len(self.places), dtype=torch.float64).index_add(0, of[inside], values[inside])

    def asking(self, length: int) -> Tensor:
        if self.step is not None:
            return one_hot(self.step, length)
        positions = range(length) if self.pooled is None else self.pooled
        return torch.stack([one_hot(position, length) for position in positions]).mean(0)


class ImageTextTarget(ImageTarget):
    """How like a picture is to each of some texts (C, …), which CLIP reads beside it: the cosine of their vectors."""

    counts = "likeness"
    kinds = r"^image\."

    def scores(self, read: Tensor) -> Tensor:
        model: Any = self.model
        texts = model.text_features(**{name: part for name, part in self.inputs.items() if name != self.side})
        return model.image_features(read) @ texts.T

    def amounts(self, scores: Tensor) -> Tensor:
        return scores

    def moved(self, before: Tensor, after: Tensor) -> float:
        """Of the answer's own likeness: there may be no other."""
        return float((after - before)[:, self.answer].abs().mean())


def cells(size: GridSize, grid: GridSize, patch: GridSize | None = None) -> Tensor:
    """Which patch of a grid, counted row by row, each pixel of a picture is in: (H, W). Without the size of a patch, the grid
    covers the picture in equal parts."""

    def along(pixels: int, places: int, length: int | None) -> Tensor:
        number = torch.arange(pixels) * places // pixels if length is None else torch.arange(pixels) // length
        return number.masked_fill(number >= places, -1)

    down, across = (along(*one) for one in zip(size, grid, patch or (None, None)))
    return torch.where((down[:, None] < 0) | (across < 0), -1, down[:, None] * grid[1] + across)
