"""What a model is trained for. An objective returns the loss *sum* and the count, so that accumulation is exact."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from regard.batches.batches import Batch
    from regard.recipe import Regularize

PAD = 0


def next_word_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy summed over all labels that are not padding: (B, T, V), (B, T) -> ()."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=smoothing)


def label_count(labels: Tensor) -> int:
    return int((labels != PAD).sum())


class Translation:
    """Say the next target word; with R-Drop, say it alike under two different dropouts."""

    def __init__(self, regularize: "Regularize"):
        self.smoothing, self.r_drop = regularize.label_smoothing, regularize.r_drop

    def __call__(self, model: nn.Module, batch: "Batch") -> Tensor:
        if not self.r_drop:
            return next_word_loss(model(batch.source, batch.lengths, batch.target), batch.labels, self.smoothing)
        source, lengths, target, labels = (x.repeat(2, *[1] * (x.dim() - 1)) for x in (batch.source, batch.lengths, batch.target, batch.labels))
        logits = model(source, lengths, target)
        spoken = labels != PAD
        return (next_word_loss(logits, labels, self.smoothing) + self.r_drop * divergence(logits, spoken)) / 2


def divergence(logits: Tensor, spoken: Tensor) -> Tensor:
    """½ (KL(p‖q) + KL(q‖p)) between the two halves of a batch, summed over spoken positions (Liang et al. 2021, eq. 2)."""
    p, q = logits.float().log_softmax(-1).chunk(2)                                # (B, T, V) each
    symmetric = ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2                       # (B, T)
    return torch.where(spoken[:len(p)], symmetric, 0.0).sum()


@torch.no_grad()
def sentence_log_probabilities(model: nn.Module, batch: "Batch") -> Tensor:
    """log p(target | source) of each pair, its end included: (B,)."""
    logits = model(batch.source, batch.lengths, batch.target)                     # (B, T, V)
    said = logits.float().log_softmax(-1).gather(-1, batch.labels[..., None])[..., 0]
    return torch.where(batch.labels != PAD, said, 0.0).sum(-1)
