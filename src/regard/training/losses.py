"""Loss functions. An objective returns the *sum* of its losses; the loop divides by the number of labels, so that gradient
accumulation is exact."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard.batches.batch import IGNORE_INDEX, Batch
from regard.recipe import Regularization
from regard.training import cross_entropy

Objective = Callable[[nn.Module, Batch], Tensor]


def nll(log_p: Tensor, labels: Tensor, smoothing: float = 0.0, num_choices: Tensor | None = None) -> Tensor:
    """Return -log p of each label, 0 at IGNORE_INDEX: (…, V), (…,) -> (…,).

    With label smoothing it is (1 - ε) of that and ε of the mean over the vocabulary (Szegedy et al. 2016); where not all V
    entries are possible, `num_choices` says how many are.
    """
    losses = -log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    if smoothing:
        losses = (1 - smoothing) * losses - smoothing * (log_p.mean(-1) if num_choices is None else log_p.sum(-1) / num_choices)
    return torch.where(labels != IGNORE_INDEX, losses, 0.0)


def mixed_nll(log_p: Tensor, batch: Batch, smoothing: float = 0.0, num_choices: Tensor | None = None) -> Tensor:
    """Return the NLL of each label; with mixup or CutMix, the weighted NLL of both labels."""
    losses = nll(log_p, batch.labels, smoothing, num_choices)
    if batch.mixture is None:
        return losses
    weight = batch.mixture.weight
    return weight * losses + (1 - weight) * nll(log_p, batch.mixture.other, smoothing, num_choices)


class CrossEntropy:
    """Cross-entropy of the labels; with R-Drop, also the divergence of two passes under different dropout (Liang et al. 2021).

    A model may add a term of its own (`auxiliary_loss`).
    """

    has_kernel = True
    """On a GPU, the kernels of cross_entropy.py compute the same."""

    def __init__(self, regularize: Regularization):
        self.smoothing, self.r_drop = regularize.label_smoothing, regularize.r_drop

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        read = batch.duplicate() if self.r_drop else batch
        loss = self.loss(model(**read.inputs), read)
        auxiliary_loss = getattr(model, "auxiliary_loss", None)
        return loss if auxiliary_loss is None else loss + auxiliary_loss(batch)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the summed loss of logits (B, …, V); with R-Drop, in which the second half of the batch is the first half again,
        the mean of both passes plus their divergence."""
        if self.has_kernel and batch.mixture is None and cross_entropy.can_run(logits):
            return cross_entropy.cross_entropy(logits, batch.labels, self.smoothing, self.r_drop).sum()
        log_p = self.log_probs(logits)
        loss = self.nll(log_p, batch).sum()
        return (loss + self.r_drop * symmetric_kl(log_p, batch.labels.chunk(2)[0])) / 2 if self.r_drop else loss

    def log_probs(self, logits: Tensor) -> Tensor:
        return logits.float().log_softmax(-1)  # (B, …, V)

    def num_choices(self, batch: Batch) -> Tensor | None:
        """Return how many of the V entries are possible, where not all are."""
        return None

    def nll(self, log_p: Tensor, batch: Batch) -> Tensor:
        return mixed_nll(log_p, batch, self.smoothing, self.num_choices(batch))  # (B, …)


class PartialCrossEntropy(CrossEntropy):
    """Cross-entropy where some entries are impossible (log p = -inf): sums over the vocabulary leave them out."""

    has_kernel = False

    def log_probs(self, logits: Tensor) -> Tensor:
        log_p = super().log_probs(logits)
        return log_p.masked_fill(log_p == -torch.inf, 0.0)  # (B, …, V)


class SpanLoss(PartialCrossEntropy):
    """Cross-entropy of the first and last position of an answer; positions behind the end of the text are impossible."""

    def num_choices(self, batch: Batch) -> Tensor:
        return batch.inputs["lengths"][:, None]


class TextToImageLoss(PartialCrossEntropy):
    """Cross-entropy of a caption and the image codes after it, each position with its weight (T,); `num_possible` (T,) entries of
    the vocabulary are possible there."""

    def __init__(self, regularize: Regularization, weights: Tensor, num_possible: Tensor):
        super().__init__(regularize)
        self.weights, self.num_possible = weights, num_possible

    def num_choices(self, batch: Batch) -> Tensor:
        return self.num_possible

    def nll(self, log_p: Tensor, batch: Batch) -> Tensor:
        return super().nll(log_p, batch) * self.weights


class MeanSquaredError:
    """The sum of squared errors; the loop divides it by the number of labels."""

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        predictions: Tensor = model(**batch.inputs)
        return (predictions[..., 0].float() - batch.labels).square().sum()


class ReconstructionLoss:
    """The reconstruction error of images and the codebook's loss; an image counts as one label."""

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        output = model(**batch.inputs)
        losses: Tensor = model.pixel_loss(output.prediction, batch.inputs["pixels"]) + output.penalty  # type: ignore[operator]
        return losses.sum()


class ContrastiveLoss:
    """CLIP's symmetric loss (Radford et al. 2021, fig. 3): the mean of the NLL of each image's text among all texts of the batch
    and of each text's image among all images.

    The first B texts belong to the B images. Any further ones are hard negatives, K texts that are false of each image. With
    `own_weight` 0, an image is contrasted with those of all images (NegCLIP, Yuksekgonul et al. 2023, sec. 4). Otherwise the NLL
    of its text among this text and its own K hard negatives is added with this weight (Doveh et al. 2023), because a text that
    is false of one image may be true of another.

    Under data parallelism each rank contrasts its own pairs with those of all ranks and returns the sum over its own. Summed over
    the ranks, loss and gradients are those of one process with the whole batch.
    """

    def __init__(self, smoothing: float = 0.0, own_weight: float = 0.0):
        self.smoothing = smoothing
        self.own_weight = own_weight

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        images, texts, scale = model(**batch.inputs)  # (B, E), (B + B·K, E)
        negatives = texts[len(images) :].unflatten(0, (len(images), -1)) if len(texts) > len(images) else None  # (B, K, E)
        if self.own_weight:
            texts = texts[: len(images)]
        if not batch.in_loss:
            images, texts, negatives = images[:0], texts[:0], None
        with torch.autocast(images.device.type, enabled=False):  # similarities up to 100 need more than 8 bits
            all_images, first_image = all_gather_rows(images)  # (global B, E)
            all_texts, first_text = all_gather_rows(texts)
            own = torch.arange(len(images), device=images.device)
            losses = [
                nll((scale * queries @ keys.T).log_softmax(-1), first + own, self.smoothing)  # (B,) each
                for queries, keys, first in ((images, all_texts, first_text), (texts[: len(images)], all_images, first_image))
            ]
            loss = (losses[0] + losses[1]).sum() / 2
            if self.own_weight and negatives is not None:
                choices = torch.cat([texts[:, None], negatives], 1)  # (B, 1 + K, E)
                log_probs = (scale * (choices @ images[:, :, None])[:, :, 0]).log_softmax(-1)
                loss = loss + self.own_weight * nll(log_probs, torch.zeros_like(own), self.smoothing).sum()
            return loss


def all_gather_rows(x: Tensor) -> tuple[Tensor, int]:
    """Return the rows of all ranks, with gradients, and the index of this rank's first row."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return x, 0
    sizes = [torch.zeros((), dtype=torch.long) for _ in range(dist.get_world_size())]  # on the CPU: no device synchronisation
    dist.all_gather(sizes, torch.tensor(len(x)))
    counts = [int(size) for size in sizes]
    gather: Callable[[Tensor, list[int]], Tensor] = _AllGatherRows.apply
    return gather(x, counts), sum(counts[: dist.get_rank()])


class _AllGatherRows(torch.autograd.Function):
    """Rows (B, E) of each rank -> rows of all ranks (global B, E); the ranks' numbers of rows may differ by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        padded = torch.cat([x, x.new_zeros(max(counts) - len(x), *x.shape[1:])]).contiguous()
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of all ranks' losses with respect to this rank's rows."""
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        first = sum(ctx.counts[: dist.get_rank()])
        return total[first : first + ctx.counts[dist.get_rank()]], None


def symmetric_kl(log_p: Tensor, labels: Tensor) -> Tensor:
    """Return ½ (KL(p‖q) + KL(q‖p)) between the two halves of a batch, summed over the labels (Liang et al. 2021, eq. 2)."""
    p, q = log_p.chunk(2)  # (B, …, V) each
    divergence = ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2  # (B, …)
    return torch.where(labels != IGNORE_INDEX, divergence, 0.0).sum()


@torch.no_grad()
def sequence_log_probs(model: nn.Module, batch: Batch) -> Tensor:
    """Return the sum of log p over each row's labels: (B,)."""
    losses = nll(model(**batch.inputs).float().log_softmax(-1), batch.labels)  # (B, …)
    return -(losses.flatten(1).sum(1) if losses.dim() > 1 else losses)
