"""What a model is trained for. An objective returns the loss *sum* and the count, so that accumulation is exact."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.tokens.special import PAD

if TYPE_CHECKING:
    from regard.batches.batches import Batch
    from regard.recipe import Regularize


def next_word_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy summed over all labels that are not padding: (B, T, V), (B, T) -> ()."""
    return smoothed_loss(logits.float().log_softmax(-1), labels, smoothing)


def smoothed_loss(log_p: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """(1 - ε) of the label's surprise and ε of the mean one (Szegedy et al. 2016), where there is a label."""
    surprise = -log_p.gather(-1, labels[..., None])[..., 0]                       # (B, T)
    if smoothing:
        surprise = (1 - smoothing) * surprise - smoothing * log_p.mean(-1)
    return torch.where(labels != PAD, surprise, 0.0).sum()


def label_count(labels: Tensor) -> int:
    return int((labels != PAD).sum())


class Translation:
    """Say the next target word; with R-Drop, say it alike under two different dropouts. A model may ask for a penalty besides."""

    def __init__(self, regularize: "Regularize"):
        self.smoothing, self.r_drop = regularize.label_smoothing, regularize.r_drop

    def __call__(self, model: nn.Module, batch: "Batch") -> Tensor:
        loss = self.agreeing(model, batch) if self.r_drop else \
            next_word_loss(model(batch.source, batch.lengths, batch.target), batch.labels, self.smoothing)
        penalty = getattr(model, "penalty", None)
        return loss if penalty is None else loss + penalty(batch)

    def agreeing(self, model: nn.Module, batch: "Batch") -> Tensor:
        """The mean loss of two passes, and what sets them apart."""
        source, lengths, target, labels = (torch.cat([x, x]) for x in (batch.source, batch.lengths, batch.target, batch.labels))
        log_p = model(source, lengths, target).float().log_softmax(-1)            # (2B, T, V)
        return (smoothed_loss(log_p, labels, self.smoothing) + self.r_drop * divergence(log_p, batch.labels != PAD)) / 2


def divergence(log_p: Tensor, spoken: Tensor) -> Tensor:
    """½ (KL(p‖q) + KL(q‖p)) between the two halves of a batch, summed over spoken positions (Liang et al. 2021, eq. 2)."""
    p, q = log_p.chunk(2)                                                         # (B, T, V) each
    symmetric = ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2                       # (B, T)
    return torch.where(spoken, symmetric, 0.0).sum()


@torch.no_grad()
def sentence_log_probabilities(model: nn.Module, batch: "Batch") -> Tensor:
    """log p(target | source) of each pair, its end included: (B,)."""
    logits = model(batch.source, batch.lengths, batch.target)                     # (B, T, V)
    said = logits.float().log_softmax(-1).gather(-1, batch.labels[..., None])[..., 0]
    return torch.where(batch.labels != PAD, said, 0.0).sum(-1)
