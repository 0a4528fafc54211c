"""Means of weights: exponential over all steps, or plain over the last checkpoints."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.distributed.parallel import shard_like, to_local


class MovingAverage:
    """w̄ ← d w̄ + (1 − d) w, with d growing from 0 so that early weights are soon forgotten."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.step = decay, 0
        self.names = [name for name, _ in model.named_parameters()]
        self.mean = [p.detach().clone() for p in model.parameters()]
        self.live, self.own = [to_local(p.detach()) for p in model.parameters()], [to_local(mean) for mean in self.mean]

    @torch.no_grad()
    def update(self) -> None:
        self.step += 1
        decay = min(self.decay, self.step / (self.step + 10))
        torch._foreach_lerp_(self.own, self.live, 1 - decay)

    def swap(self) -> None:
        """Exchange the model's weights with their averages; twice is as before."""
        for live, mean in zip(self.live, self.own):
            kept = live.clone()
            live.copy_(mean)
            mean.copy_(kept)

    def tensors(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.mean))

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        self.step = step
        for name, mean, own in zip(self.names, self.mean, self.own):
            own.copy_(to_local(shard_like(tensors[name], mean)))


def average_weights(several: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {
        name: torch.stack([weights[name].double() for weights in several]).mean(0).to(tensor.dtype)
        for name, tensor in several[0].items()
    }
