"""The batch: the tensors of one forward pass and their labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.tokens.special_tokens import PAD

IGNORE_INDEX = -1
"""The label of positions that are excluded from the loss."""


@dataclass(frozen=True)
class MixedLabels:
    """A second label for each row, where two examples were blended (mixup, CutMix)."""

    other: Tensor  # (B,)
    weight: Tensor  # (B,) of the first label

    def to(self, device: torch.device) -> "MixedLabels":
        return MixedLabels(to_device(self.other, device), to_device(self.weight, device))

    def duplicate(self) -> "MixedLabels":
        return MixedLabels(_twice(self.other), _twice(self.weight))


@dataclass
class Batch:
    """The arguments of a model's `forward` by name, and the labels."""

    inputs: dict[str, Tensor]  # (B, …) each
    labels: Tensor  # (B, …)
    rows: np.ndarray  # (B,) the examples' numbers
    mixture: MixedLabels | None = None
    transform: "Transform | None" = None
    """Applied once the batch is on its device."""
    references: list[list[list[int]]] | None = None
    """The ids of every reference of each row, for losses that score whole outputs."""
    in_loss: bool = True
    """False for a dummy row, excluded from the loss: a rank gets one if the batch has fewer rows than there are ranks."""

    def to(self, device: torch.device) -> "Batch":
        """Copy the batch to a device and apply its transform there."""
        inputs = {name: to_device(tensor, device) for name, tensor in self.inputs.items()}
        mixture = self.mixture and self.mixture.to(device)
        moved = Batch(
            inputs, to_device(self.labels, device), self.rows, mixture, references=self.references, in_loss=self.in_loss
        )
        return moved if self.transform is None else self.transform(moved)

    def duplicate(self) -> "Batch":
        """Return every row twice: all rows, then all rows again."""
        inputs = {name: _twice(tensor) for name, tensor in self.inputs.items()}
        return Batch(
            inputs,
            _twice(self.labels),
            np.concatenate([self.rows, self.rows]),
            self.mixture and self.mixture.duplicate(),
            in_loss=self.in_loss,
        )

    def pad_to_multiple(self, multiple: int, max_lengths: Sequence[int]) -> "Batch":
        """Pad texts, and labels of their tokens, to a multiple of so many positions, but not beyond the longest row of their
        side; leave images, and labels of whole rows such as the two ends of an answer, as they are."""

        def pad(tensor: Tensor, value: int) -> Tensor:
            if tensor.dim() < 2 or tensor.dtype != torch.int64:
                return tensor
            length = tensor.size(1)
            padded = min([-(-length // multiple) * multiple, *(longest for longest in max_lengths if longest >= length)])
            return F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, padded - length), value=value)

        inputs = {name: pad(tensor, PAD) for name, tensor in self.inputs.items()}
        per_token = self.labels.dim() > 1 and any(
            tensor.dim() > 1 and tensor.size(1) == self.labels.size(1) for tensor in self.inputs.values()
        )
        return replace(self, inputs=inputs, labels=pad(self.labels, IGNORE_INDEX) if per_token else self.labels)

    @staticmethod
    def concat(batches: "Sequence[Batch]") -> "Batch":
        """Return the rows of several batches, one after another."""
        inputs = {name: _pad_and_concat([batch.inputs[name] for batch in batches], PAD) for name in batches[0].inputs}
        labels = _pad_and_concat([batch.labels for batch in batches], IGNORE_INDEX)
        return Batch(inputs, labels, np.concatenate([batch.rows for batch in batches]))

    def label_count(self) -> int:
        """Return the number of labels in the loss; real-valued labels all count."""
        if not self.in_loss:
            return 0
        return self.labels.numel() if self.labels.is_floating_point() else int((self.labels != IGNORE_INDEX).sum())


Transform = Callable[[Batch], Batch]


def _twice(x: Tensor) -> Tensor:
    """Return all rows, then all rows again. Unlike `torch.cat`, autocast leaves it alone, so that no dtype is refused."""
    return x.repeat(2, *(1,) * (x.dim() - 1))


def _pad_and_concat(tensors: Sequence[Tensor], value: int) -> Tensor:
    """Pad rows (B, T) to the longest and concatenate them; (B,) needs no padding."""
    longest = max(tensor.size(-1) for tensor in tensors)
    return torch.cat([F.pad(t, (0, longest - t.size(1)), value=value) if t.dim() > 1 else t for t in tensors])


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; to a GPU from pinned memory, without a host–device synchronisation."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" and not x.is_cuda else x.to(device)
