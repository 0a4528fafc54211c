"""Weight averaging: an exponential moving average over all steps, or the mean of the last checkpoints."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.distributed.parallel import shard_like, to_local
from regard.training.checkpoint import named_weights

STATISTICS = ("running_mean", "running_var")
"""Names of a batch norm's buffers."""


class MovingAverage:
    """w̄ ← d w̄ + (1 − d) w, with d rising from 0 to the decay, so that the initial weights are soon forgotten. A batch norm's
    statistics are averaged too: those of the last step belong to other weights."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.step = decay, 0
        parameters = dict(model.named_parameters())
        weights = {
            name: weight for name, weight in named_weights(model).items() if name in parameters or name.endswith(STATISTICS)
        }
        self.names = list(weights)
        self.averages = [weight.clone() for weight in weights.values()]
        self._local_weights = [to_local(weight) for weight in weights.values()]
        self._local_averages = [to_local(average) for average in self.averages]

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the current weights."""
        self.step += 1
        decay = min(self.decay, self.step / (self.step + 10))
        torch._foreach_lerp_(self._local_averages, self._local_weights, 1 - decay)

    def swap(self) -> None:
        """Exchange the model's weights and their averages; a second call restores them."""
        for weight, average in zip(self._local_weights, self._local_averages):
            saved = weight.clone()
            weight.copy_(average)
            average.copy_(saved)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages by parameter name, for a checkpoint."""
        return dict(zip(self.names, self.averages))

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Restore the averages from a checkpoint. Older ones lack those of batch norms, which start at the current statistics."""
        self.step = step
        for name, average, local, weight in zip(self.names, self.averages, self._local_averages, self._local_weights):
            local.copy_(to_local(shard_like(tensors[name], average)) if name in tensors else weight)


def average_weights(several: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of several sets of weights, computed in float64."""
    return {
        name: torch.stack([weights[name].double() for weights in several]).mean(0).to(tensor.dtype)
        for name, tensor in several[0].items()
    }
