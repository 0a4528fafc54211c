"""Tell pairs apart: the symmetric loss of CLIP (Radford et al. 2021, fig. 3), over the batches of all processes together."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard.batches.batch import Batch
from regard.training.losses import nll


class ContrastiveLoss:
    """The mean of two surprises: at the text of each picture among all texts of the batch, and at the picture of each text.

    Under data parallelism, where each process has its share of the batch, its own pairs are told from those of all processes, and
    it returns the sum over its own. Summed over the processes, loss and gradients are those of one process with the whole batch.
    """

    def __init__(self, smoothing: float = 0.0):
        self.smoothing = smoothing

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        images, texts, scale = model(**batch.inputs)  # (B, E) each
        if not batch.counts:
            images, texts = images[:0], texts[:0]
        with torch.autocast(images.device.type, enabled=False):  # similarities up to 100 need more than 8 bits
            every_image, first = all_gather_rows(images)  # (all B, E)
            every_text, _ = all_gather_rows(texts)
            mine = first + torch.arange(len(images), device=images.device)
            found = [
                nll((scale * one @ every.T).log_softmax(-1), mine, self.smoothing)  # (B,) each
                for one, every in ((images, every_text), (texts, every_image))
            ]
            return (found[0] + found[1]).sum() / 2


def all_gather_rows(x: Tensor) -> tuple[Tensor, int]:
    """The rows of all processes in their order, and which of them is the first of this one's; gradients find their way back."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return x, 0
    sizes = [torch.zeros((), dtype=torch.long) for _ in range(dist.get_world_size())]  # no device is waited for
    dist.all_gather(sizes, torch.tensor(len(x)))
    counts = [int(size) for size in sizes]
    return AllGatherRows.apply(x, counts), sum(counts[: dist.get_rank()])


class AllGatherRows(torch.autograd.Function):
    """Rows (B, E) of each process -> rows of all of them; shares of a batch may differ by one row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        padded = torch.cat([x, x.new_zeros(max(counts) - len(x), *x.shape[1:])]).contiguous()
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """What the losses of all processes say of this one's rows."""
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        first = sum(ctx.counts[: dist.get_rank()])
        return total[first : first + ctx.counts[dist.get_rank()]], None
