"""What a model is given at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.tokens.special_tokens import PAD

IGNORE_INDEX = -1
"""The label where a model is not asked to say anything."""


@dataclass(frozen=True)
class MixedLabels:
    """A second label for each row, where two examples were blended into one."""

    other: Tensor  # (B,)
    share: Tensor  # (B,) how much the first one counts

    def to(self, device: torch.device) -> "MixedLabels":
        return MixedLabels(to_device(self.other, device), to_device(self.share, device))

    def duplicate(self) -> "MixedLabels":
        return MixedLabels(torch.cat([self.other, self.other]), torch.cat([self.share, self.share]))


@dataclass
class Batch:
    """What a model reads, by the names of its `forward`, and what it should say of it."""

    inputs: dict[str, Tensor]  # (B, …) each
    labels: Tensor  # (B, …)
    rows: np.ndarray  # (B,) which examples
    mixture: MixedLabels | None = None
    change: "Transform | None" = None
    """What is done to it once it is on its device."""
    counts: bool = True
    """Of fewer rows than there are ranks, some have none: theirs is another's, read for company, and counts for nothing."""

    def to(self, device: torch.device) -> "Batch":
        inputs = {name: to_device(part, device) for name, part in self.inputs.items()}
        moved = Batch(
            inputs, to_device(self.labels, device), self.rows, self.mixture and self.mixture.to(device), counts=self.counts
        )
        return moved if self.change is None else self.change(moved)

    def duplicate(self) -> "Batch":
        """Every row again after all of them."""
        inputs = {name: torch.cat([part, part]) for name, part in self.inputs.items()}
        return Batch(
            inputs,
            torch.cat([self.labels, self.labels]),
            np.concatenate([self.rows, self.rows]),
            self.mixture and self.mixture.duplicate(),
            counts=self.counts,
        )

    def filled(self, multiple: int, longest: Sequence[int]) -> "Batch":
        """Texts filled up to a multiple of so many positions, or to as long as any is on their side; pictures as they are."""

        def fill(part: Tensor, value: int) -> Tensor:
            if part.dim() < 2 or part.dtype != torch.int64:
                return part
            long = part.size(1)
            longer = min([-(-long // multiple) * multiple, *(most for most in longest if most >= long)]) - long
            return F.pad(part, (0, 0) * (part.dim() - 2) + (0, longer), value=value)

        inputs = {name: fill(part, PAD) for name, part in self.inputs.items()}
        return replace(self, inputs=inputs, labels=fill(self.labels, IGNORE_INDEX))

    @staticmethod
    def join(batches: "Sequence[Batch]") -> "Batch":
        """The rows of several batches, one after another."""
        inputs = {name: pad_and_concat([batch.inputs[name] for batch in batches], PAD) for name in batches[0].inputs}
        return Batch(
            inputs, pad_and_concat([batch.labels for batch in batches], IGNORE_INDEX), np.concatenate([b.rows for b in batches])
        )

    def label_count(self) -> int:
        """How many labels are asked for; of numbers, all."""
        if not self.counts:
            return 0
        return self.labels.numel() if self.labels.is_floating_point() else int((self.labels != IGNORE_INDEX).sum())


Transform = Callable[[Batch], Batch]


def pad_and_concat(parts: Sequence[Tensor], pad: int) -> Tensor:
    """Rows of different lengths, filled up to the longest: (B, T) each, or (B,)."""
    longest = max(part.size(-1) for part in parts)
    return torch.cat([F.pad(part, (0, longest - part.size(1)), value=pad) if part.dim() > 1 else part for part in parts])


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; from pinned memory, so that a GPU is not waited for."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" and not x.is_cuda else x.to(device)
