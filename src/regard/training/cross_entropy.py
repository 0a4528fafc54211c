"""Triton kernels: cross-entropy with label smoothing, and R-Drop's divergence, straight from the logits.

Written out in torch (losses.py), the loss of a large vocabulary reads and writes its logits in float32 some ten times. Here the
forward pass reads them once, in their own precision (twice with R-Drop), and the backward pass reads them once more and writes
their gradient. With z the logits of a row, p = softmax(z), y its label, ε the smoothing and V the size of the vocabulary,

    nll = log Σ exp(z) - (1 - ε) z_y - ε/V Σ z                       dnll/dz = p - (1 - ε) [· = y] - ε/V

and for the rows p and q of one label, read twice under different dropout (Liang et al. 2021, eq. 2),

    D = ½ KL(p‖q) + ½ KL(q‖p)                                        dD/dz = ½ (p (log p - log q - KL(p‖q)) + p - q)

Both equal the written-out losses (tests/training/test_losses_gpu.py). Triton comes with torch for GPUs.
"""

from typing import Any

import torch
from torch import Tensor

from regard.batches.batch import IGNORE_INDEX

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

WARPS = 8


def can_run(logits: Tensor) -> bool:
    """Return whether the kernels support these logits."""
    return triton is not None and logits.is_cuda


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0, r_drop: float = 0.0) -> Tensor:
    """Return the loss of each label, in float32, 0 at IGNORE_INDEX: (…, V), (…,) -> (…,).

    With `r_drop`, the second half of the rows are those of the first half again; each row then has half of its own NLL and half
    of its pair's divergence times `r_drop`.
    """
    losses: Tensor = _forward(logits.flatten(0, -2).contiguous(), labels.flatten(), smoothing, r_drop)[0]
    return losses.view(labels.shape)


@torch.library.custom_op("regard::cross_entropy", mutates_args=())
def _forward(logits: Tensor, labels: Tensor, smoothing: float, r_drop: float) -> tuple[Tensor, Tensor]:
    """Return the losses (rows,) and what the backward pass needs of each row (2, rows): log Σ exp(z) and KL(p‖q)."""
    rows, V = logits.shape
    losses, saved = logits.new_empty(rows, dtype=torch.float32), logits.new_empty(2, rows, dtype=torch.float32)
    pairs = rows // 2 if r_drop else rows
    forward_kernel[(pairs,)](
        logits, labels, losses, saved, pairs, V, smoothing, r_drop, IGNORE_INDEX, r_drop > 0, _tile(V), num_warps=WARPS
    )
    return losses, saved


@torch.library.custom_op("regard::cross_entropy_backward", mutates_args=())
def _backward(grad: Tensor, logits: Tensor, labels: Tensor, saved: Tensor, smoothing: float, r_drop: float) -> Tensor:
    rows, V = logits.shape
    out = torch.empty_like(logits)
    pairs = rows // 2 if r_drop else rows
    backward_kernel[(rows,)](
        out, grad, logits, labels, saved, pairs, V, smoothing, r_drop, IGNORE_INDEX, r_drop > 0, _tile(V), num_warps=WARPS
    )
    return out


@_forward.register_fake
def _(logits: Tensor, labels: Tensor, smoothing: float, r_drop: float) -> tuple[Tensor, Tensor]:
    rows = logits.size(0)
    return logits.new_empty(rows, dtype=torch.float32), logits.new_empty(2, rows, dtype=torch.float32)


@_backward.register_fake
def _(grad: Tensor, logits: Tensor, labels: Tensor, saved: Tensor, smoothing: float, r_drop: float) -> Tensor:
    return torch.empty_like(logits)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, labels, ctx.smoothing, ctx.r_drop = inputs
    ctx.save_for_backward(logits, labels, output[1])


def _grad_logits(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    logits, labels, saved = ctx.saved_tensors
    return _backward(grad.contiguous(), logits, labels, saved, ctx.smoothing, ctx.r_drop), None, None, None


_forward.register_autograd(_grad_logits, setup_context=_save_for_backward)


def _tile(V: int) -> int:
    """Return how many logits a program handles at once: a power of two, at most 4,096."""
    return min(4096, max(64, 1 << (V - 1).bit_length()))


if triton is not None:

    @triton.jit
    def row_sums(z, V, TILE: tl.constexpr):
        """Return log Σ exp(z) and Σ z of one row (online softmax, Milakov & Gimelshein 2018)."""
        columns = tl.arange(0, TILE)
        m, total, mass = -float("inf"), 0.0, 0.0  # the largest logit, Σ exp(z - m), Σ z
        for n in range(0, V, TILE):
            inside = n + columns < V
            tile = tl.load(z + n + columns, mask=inside, other=-float("inf")).to(tl.float32)
            larger = tl.maximum(m, tl.max(tile, 0))
            total = total * tl.exp(m - larger) + tl.sum(tl.exp(tile - larger), 0)
            mass += tl.sum(tl.where(inside, tile, 0.0), 0)
            m = larger
        return m + tl.log(total), mass

    @triton.jit
    def smoothed_nll(z, y, V, smoothing, TILE: tl.constexpr):
        """Return the NLL of label y under the logits z of one row, and log Σ exp(z)."""
        log_sum, mass = row_sums(z, V, TILE)
        return log_sum - (1 - smoothing) * tl.load(z + y).to(tl.float32) - smoothing * mass / V, log_sum

    @triton.jit(do_not_specialize=["pairs"])
    def forward_kernel(
        logits,  # (rows, V)
        labels,  # (rows,)
        losses,  # (rows,)
        saved,  # (2, rows)
        pairs,  # or rows, without pairs
        V,
        smoothing,
        r_drop,
        IGNORE: tl.constexpr,
        PAIRED: tl.constexpr,
        TILE: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        y = tl.load(labels + row)
        real = y != IGNORE
        y = tl.where(real, y, 0)
        z = logits + row * V
        loss, log_sum = smoothed_nll(z, y, V, smoothing, TILE)
        tl.store(saved + row, log_sum)
        if PAIRED:
            twin = row + pairs
            z2 = logits + twin * V
            loss2, log_sum2 = smoothed_nll(z2, y, V, smoothing, TILE)
            columns, forth, back = tl.arange(0, TILE), 0.0, 0.0
            for n in range(0, V, TILE):
                inside = n + columns < V
                log_p = tl.load(z + n + columns, mask=inside, other=-float("inf")).to(tl.float32) - log_sum
                log_q = tl.load(z2 + n + columns, mask=inside, other=-float("inf")).to(tl.float32) - log_sum2
                difference = tl.where(inside, log_p - log_q, 0.0)
                forth += tl.sum(tl.exp(log_p) * difference, 0)
                back -= tl.sum(tl.exp(log_q) * difference, 0)
            divergence = r_drop * (forth + back) / 2
            loss, loss2 = (loss + divergence / 2) / 2, (loss2 + divergence / 2) / 2
            tl.store(saved + twin, log_sum2)
            tl.store(saved + 2 * pairs + row, forth)
            tl.store(saved + 2 * pairs + twin, back)
            tl.store(losses + twin, tl.where(real, loss2, 0.0))
        tl.store(losses + row, tl.where(real, loss, 0.0))

    @triton.jit(do_not_specialize=["pairs"])
    def backward_kernel(
        out,  # (rows, V)
        grad,  # (rows,)
        logits,  # (rows, V)
        labels,  # (rows,)
        saved,  # (2, rows)
        pairs,  # or rows, without pairs
        V,
        smoothing,
        r_drop,
        IGNORE: tl.constexpr,
        PAIRED: tl.constexpr,
        TILE: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        y, columns = tl.load(labels + row), tl.arange(0, TILE)
        g = tl.where(y != IGNORE, tl.load(grad + row), 0.0)
        log_sum = tl.load(saved + row)
        twin = tl.where(row < pairs, row + pairs, row - pairs)
        if PAIRED:
            log_sum2, divergence = tl.load(saved + twin), tl.load(saved + 2 * pairs + row)
            g_twin = tl.where(y != IGNORE, tl.load(grad + twin), 0.0)
        for n in range(0, V, TILE):
            column = n + columns
            inside = column < V
            log_p = tl.load(logits + row * V + column, mask=inside, other=-float("inf")).to(tl.float32) - log_sum
            p = tl.exp(log_p)
            dz = g * (p - tl.where(column == y, 1 - smoothing, 0.0) - smoothing / V)
            if PAIRED:  # the divergence is in the losses of both rows of a pair, a quarter of it in each
                log_q = tl.load(logits + twin * V + column, mask=inside, other=-float("inf")).to(tl.float32) - log_sum2
                difference = tl.where(inside, log_p - log_q, 0.0)
                dz = dz / 2 + (g + g_twin) * r_drop / 8 * (p * (difference - divergence) + p - tl.exp(log_q))
            tl.store(out + row * V + column, dz.to(out.dtype.element_ty), mask=inside)
