"""What a model is trained for. An objective returns the loss *sum*; its count is the batch's labels, so accumulation is exact."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.batches.batch import IGNORE_INDEX, Batch

if TYPE_CHECKING:
    from regard.recipe import Regularization


def nll(log_p: Tensor, labels: Tensor, smoothing: float = 0.0, choices: Tensor | None = None) -> Tensor:
    """-log p of each label, 0 where nothing is asked: (…, V), (…,) -> (…,).

    Smoothed, it is (1 - ε) of the label's surprise and ε of the mean one (Szegedy et al. 2016), where not all V can be said the
    mean of so many `choices`.
    """
    found = -log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    if smoothing:
        found = (1 - smoothing) * found - smoothing * (log_p.mean(-1) if choices is None else log_p.sum(-1) / choices)
    return torch.where(labels != IGNORE_INDEX, found, 0.0)


def mixed_nll(log_p: Tensor, batch: Batch, smoothing: float = 0.0, choices: Tensor | None = None) -> Tensor:
    """The surprise at each label; at a mixture of two, each by its share, which add up to one label."""
    found = nll(log_p, batch.labels, smoothing, choices)
    if batch.mixture is None:
        return found
    share = batch.mixture.share
    return share * found + (1 - share) * nll(log_p, batch.mixture.other, smoothing, choices)


class CrossEntropy:
    """Say the labels; with R-Drop, say them alike under two different dropouts. A model may ask for a penalty besides."""

    def __init__(self, regularize: "Regularization"):
        self.smoothing, self.r_drop = regularize.label_smoothing, regularize.r_drop

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        loss = self.agreeing(model, batch) if self.r_drop else self.loss(model, batch)
        penalty = getattr(model, "auxiliary_loss", None)
        return loss if penalty is None else loss + penalty(batch)

    def log_p(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(**batch.inputs).float().log_softmax(-1)  # (B, …, V)

    def choices(self, batch: Batch) -> Tensor | None:
        """How many of V can be said, where not all can."""
        return None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return mixed_nll(self.log_p(model, batch), batch, self.smoothing, self.choices(batch)).sum()

    def agreeing(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of two passes, and what sets them apart."""
        both = batch.duplicate()
        log_p = self.log_p(model, both)  # (2B, …, V)
        said = mixed_nll(log_p, both, self.smoothing, self.choices(both)).sum()
        return (said + self.r_drop * symmetric_kl(log_p, batch.labels)) / 2


class MaskedCrossEntropy(CrossEntropy):
    """Say labels of which not all can be said everywhere: where log p is -inf is no choice."""

    def log_p(self, model: nn.Module, batch: Batch) -> Tensor:
        log_p = super().log_p(model, batch)  # (B, …, V)
        return log_p.masked_fill(log_p == -torch.inf, 0.0)


class SpanLoss(MaskedCrossEntropy):
    """Say positions in a text: what is behind its end is no choice."""

    def choices(self, batch: Batch) -> Tensor:
        return batch.inputs["lengths"][:, None]


class TextToImageLoss(MaskedCrossEntropy):
    """Say a caption and after it the codes of its picture, each of the positions with its weight (T,); so many (T,) can be said
    in each."""

    def __init__(self, regularize: "Regularization", weights: Tensor, sayable: Tensor):
        super().__init__(regularize)
        self.weights, self.sayable = weights, sayable

    def choices(self, batch: Batch) -> Tensor:
        return self.sayable

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (mixed_nll(self.log_p(model, batch), batch, self.smoothing, self.choices(batch)) * self.weights).sum()


class MeanSquaredError:
    """Say the numbers: the sum of squared errors."""

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(**batch.inputs)[..., 0].float() - batch.labels).square().sum()


class ReconstructionLoss:
    """Say the pixels of pictures again, and choose their codes well; a picture is one label."""

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        rebuilt = model(**batch.inputs)
        return (model.pixel_loss(rebuilt.prediction, batch.inputs["pixels"]) + rebuilt.penalty).sum()  # type: ignore[operator]


def symmetric_kl(log_p: Tensor, labels: Tensor) -> Tensor:
    """½ (KL(p‖q) + KL(q‖p)) between the two halves of a batch, summed over what is asked (Liang et al. 2021, eq. 2)."""
    p, q = log_p.chunk(2)  # (B, …, V) each
    symmetric = ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2  # (B, …)
    return torch.where(labels != IGNORE_INDEX, symmetric, 0.0).sum()


@torch.no_grad()
def sequence_log_probs(model: nn.Module, batch: Batch) -> Tensor:
    """log p of all labels of each row: (B,)."""
    log_p = model(**batch.inputs).float().log_softmax(-1)  # (B, …, V)
    return -nll(log_p, batch.labels).flatten(1).sum(1) if batch.labels.dim() > 1 else -nll(log_p, batch.labels)
