"""An objective compiled beside its model, which stays as it is for all who look into it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.batches.batch import Batch

Objective = Callable[[nn.Module, Batch], Tensor]


class CompiledObjective:
    """Compiled for any shape; or, where nearly all batches are `alike`, for the shape of the largest, and the few others run as
    they are: for them it would take longer than it saves."""

    def __init__(self, objective: Objective, alike: bool):
        self.plain, self.alike, self.most = objective, alike, 0
        self.fast = torch.compile(lambda model, batch: objective(model, batch), dynamic=not alike)

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        self.most = max(self.most, batch.labels.numel())
        return self.plain(model, batch) if self.alike and batch.labels.numel() < self.most else self.fast(model, batch)
