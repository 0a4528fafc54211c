"""Codebooks: quantise a grid of vectors to one code per position, and back.

    GumbelCodebook     a soft choice that grows hard (Gumbel-softmax: Jang et al. 2017; Maddison et al. 2017), as in DALL·E
                       (Ramesh et al. 2021, sec. 2.1), with the KL divergence of the choices from a uniform distribution
    VectorQuantizer    the nearest vector of the codebook, with a straight-through gradient (VQ-VAE, van den Oord et al. 2017)

Deviations: the divergence is that of the distribution without noise, as published; the codebook of `VectorQuantizer` is updated
in every training forward pass, like a batch norm's statistics, so more than once a step with gradient accumulation.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.convolution import GridConv2d

if TYPE_CHECKING:
    from regard.recipe import DvaeModel

RESTART_MARGIN = 2
"""A restarted code starts with this many times the count below which codes are restarted."""


@dataclass
class CodebookOutput:
    """The quantised vectors of a grid, their codes, and the loss of the choice per example."""

    vectors: Tensor  # (B, D, h, w)
    codes: Tensor  # (B, h, w)
    penalty: Tensor  # (B,)


class GumbelCodebook(nn.Module):
    """(B, width, h, w) -> the mean of the code vectors under a softmax of (logits + Gumbel noise) / τ while training, the most
    likely one otherwise. The divergence is divided by the number of pixel values, as the reconstruction error is."""

    def __init__(self, settings: "DvaeModel", size: tuple[int, int]):
        super().__init__()
        self.settings, self.values = settings, 3 * size[0] * size[1]
        self.to_logits = GridConv2d(settings.width, settings.codebook_size, 1, settings.grid(size))
        self.table = nn.Parameter(torch.randn(settings.codebook_size, settings.code_width) * settings.code_width**-0.5)
        self.temperature: Tensor
        self.weight: Tensor
        for name in ("temperature", "weight"):
            self.register_buffer(name, torch.ones(()), persistent=False)
        self.begin_step(1)

    def begin_step(self, step: int) -> None:
        """Set τ, which falls along a cosine, and the rising weight of the divergence (app. A.2): pure functions of the step."""
        settings = self.settings
        self.temperature.fill_(cosine_anneal(step, settings.anneal_steps, *settings.temperature))
        self.weight.fill_(cosine_anneal(step, settings.kl_warmup_steps, 0.0, settings.kl_weight))

    def forward(self, x: Tensor) -> CodebookOutput:
        log_p = _log_probs(self.to_logits(x).float())  # (B, V, h, w)
        codes = log_p.argmax(1)
        uniform = math.log(self.settings.codebook_size)
        penalty = self.weight * (log_p.exp() * (log_p + uniform)).sum((1, 2, 3)) / self.values
        if not self.training:
            return CodebookOutput(self.embed(codes), codes, penalty)
        noise = -torch.empty_like(log_p).exponential_().log()
        soft = _log_probs((log_p + noise) / self.temperature).exp()
        return CodebookOutput(torch.einsum("bvhw,vd->bdhw", soft, self.table), codes, penalty)

    def embed(self, codes: Tensor) -> Tensor:
        """Return the vectors of codes."""
        return self.table[codes].permute(0, 3, 1, 2)  # (B, h, w) -> (B, D, h, w)


class VectorQuantizer(nn.Module):
    """(B, width, h, w) -> the nearest code vector e of each z, as z + sg(e - z). The codebook follows the moving averages of the
    vectors that chose each code (app. A.1), or the gradient of its distance to them. A code that is hardly ever chosen restarts
    at a random vector of the batch; the random state is seeded by the step, so a resumed run draws the same one."""

    def __init__(self, settings: "DvaeModel", size: tuple[int, int]):
        super().__init__()
        self.settings = settings
        self.to_vectors = GridConv2d(settings.width, settings.code_width, 1, settings.grid(size))
        table = torch.randn(settings.codebook_size, settings.code_width)
        self.table: Tensor
        self.counts: Tensor
        self.sums: Tensor
        self.register_buffer("counts", torch.zeros(settings.codebook_size))
        if settings.codebook_update == "ema":
            self.register_buffer("table", table)
            self.register_buffer("sums", torch.zeros_like(table))
        else:
            self.table = nn.Parameter(table)

    def begin_step(self, step: int) -> None:
        pass

    def forward(self, x: Tensor) -> CodebookOutput:
        z = self.to_vectors(x).float()  # (B, D, h, w)
        codes = self._nearest(z)
        e = self.embed(codes)
        penalty = self.settings.commitment_weight * (z - e.detach()).square().mean((1, 2, 3))
        if self.settings.codebook_update == "loss":
            penalty = penalty + (z.detach() - e).square().mean((1, 2, 3))
        if self.training:
            self._update(z.detach().movedim(1, -1).flatten(0, 2), codes.flatten())
        return CodebookOutput(z + (e - z).detach(), codes, penalty)

    def embed(self, codes: Tensor) -> Tensor:
        """Return the vectors of codes."""
        return self.table[codes].permute(0, 3, 1, 2)  # (B, h, w) -> (B, D, h, w)

    @torch.no_grad()
    def _nearest(self, z: Tensor) -> Tensor:
        """Return the argmin of |z - e|² = |z|² - 2 z·e + |e|², in full precision: (B, D, h, w) -> (B, h, w)."""
        with torch.autocast(z.device.type, enabled=False):
            return (self.table.square().sum(1) - 2 * z.movedim(1, -1) @ self.table.T).argmin(-1)

    @torch.no_grad()
    def _update(self, vectors: Tensor, codes: Tensor) -> None:
        """Move the codebook towards the vectors (N, D) that chose these codes (N,), unless one of them is not finite."""
        settings, finite = self.settings, vectors.isfinite().all()
        with torch.autocast(vectors.device.type, enabled=False):
            choices = F.one_hot(codes, settings.codebook_size).to(vectors.dtype)  # (N, V)
            minimum = settings.restart_threshold * len(vectors) / settings.codebook_size
            counts = self.counts.lerp(choices.sum(0), 1 - settings.decay)
            dead = counts < minimum  # (V,)
            restarted = vectors[torch.randint(len(vectors), (settings.codebook_size,), device=vectors.device)]
            moved = {
                "counts": counts.masked_fill(dead, RESTART_MARGIN * minimum),
                "table": torch.where(dead[:, None], restarted, self.table),
            }
            if settings.codebook_update == "ema":
                sums = self.sums.lerp(choices.T @ vectors, 1 - settings.decay)
                moved["sums"] = torch.where(dead[:, None], restarted * RESTART_MARGIN * minimum, sums)
                moved["table"] = moved["sums"] / moved["counts"].clamp(min=1e-6)[:, None]
        for name, new in moved.items():
            buffer = getattr(self, name)
            buffer.copy_(torch.where(finite, new, buffer))


def _log_probs(logits: Tensor) -> Tensor:
    """Return log p of each code (B, V, h, w)."""
    return logits - logits.logsumexp(1, keepdim=True)


def cosine_anneal(step: int, steps: int, first: float, last: float) -> float:
    """Return a value between `first` and `last` along half a cosine."""
    return last + (first - last) * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2


def build_codebook(settings: "DvaeModel", size: tuple[int, int]) -> "GumbelCodebook | VectorQuantizer":
    return (GumbelCodebook if settings.quantizer == "gumbel" else VectorQuantizer)(settings, size)
