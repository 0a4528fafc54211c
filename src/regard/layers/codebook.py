"""From vectors on a grid to codes and back: one code of a book for each place.

    Relaxed   a soft choice that grows hard (Gumbel-softmax: Jang et al. 2017; Maddison et al. 2017), as DALL·E has it (Ramesh et
              al. 2021, sec. 2.1), with the divergence of the choices from a uniform one
    Nearest   the nearest vector of the book; gradients go straight through (VQ-VAE, van den Oord et al. 2017)

Deviations: the divergence is that of the distribution without noise, as published; the book of `Nearest` moves in every forward
pass of training, as a batch norm's statistics do, so that with gradient accumulation it moves more than once a step.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.conv2d import GridConv2d

if TYPE_CHECKING:
    from regard.recipe import DvaeModel

GRACE = 2
"""A code that begins anew counts as chosen so many times as often as one that must."""


@dataclass
class CodebookOutput:
    """What stands for each place of a grid, and what the choice costs."""

    vectors: Tensor  # (B, D, h, w)
    codes: Tensor  # (B, h, w)
    penalty: Tensor  # (B,)


class GumbelCodebook(nn.Module):
    """(B, width, h, w) -> the mean of the book's vectors under a softmax of (logits + Gumbel noise) / τ, while training; the
    likeliest one else. The divergence is shared out among the numbers of a picture, as its pixels' error is."""

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
        """τ falls along a cosine, and the weight of the divergence rises (app. A.2): pure functions of the step."""
        settings = self.settings
        self.temperature.fill_(cosine_anneal(step, settings.anneal_steps, *settings.temperature))
        self.weight.fill_(cosine_anneal(step, settings.kl_warmup_steps, 0.0, settings.kl_weight))

    def forward(self, x: Tensor) -> CodebookOutput:
        log_p = normalised(self.to_logits(x).float())  # (B, V, h, w)
        codes = log_p.argmax(1)
        uniform = math.log(self.settings.codebook_size)
        penalty = self.weight * (log_p.exp() * (log_p + uniform)).sum((1, 2, 3)) / self.values
        if not self.training:
            return CodebookOutput(self.look_up(codes), codes, penalty)
        noise = -torch.empty_like(log_p).exponential_().log()
        soft = normalised((log_p + noise) / self.temperature).exp()
        return CodebookOutput(torch.einsum("bvhw,vd->bdhw", soft, self.table), codes, penalty)

    def look_up(self, codes: Tensor) -> Tensor:
        return self.table[codes].permute(0, 3, 1, 2)  # (B, h, w) -> (B, D, h, w)


class VectorQuantizer(nn.Module):
    """(B, width, h, w) -> the vector of the book that is nearest to each, z + sg(e - z). The book follows the means of what chose
    each of its vectors (app. A.1), or the gradient of its distance to them. A vector that hardly any chooses begins anew at one
    of the batch's: chance is seeded by the step, so that it is the same one again."""

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
        codes = self.nearest(z)
        e = self.look_up(codes)
        penalty = self.settings.commitment_weight * (z - e.detach()).square().mean((1, 2, 3))
        if self.settings.codebook_update == "loss":
            penalty = penalty + (z.detach() - e).square().mean((1, 2, 3))
        if self.training:
            self.follow(z.detach().movedim(1, -1).flatten(0, 2), codes.flatten())
        return CodebookOutput(z + (e - z).detach(), codes, penalty)

    def look_up(self, codes: Tensor) -> Tensor:
        return self.table[codes].permute(0, 3, 1, 2)  # (B, h, w) -> (B, D, h, w)

    @torch.no_grad()
    def nearest(self, z: Tensor) -> Tensor:
        """|z - e|² = |z|² - 2 z·e + |e|², in full precision: (B, D, h, w) -> (B, h, w)."""
        with torch.autocast(z.device.type, enabled=False):
            return (self.table.square().sum(1) - 2 * z.movedim(1, -1) @ self.table.T).argmin(-1)

    @torch.no_grad()
    def follow(self, vectors: Tensor, codes: Tensor) -> None:
        """Move the book towards the vectors (N, D) that chose these codes (N,); nothing moves where one is not finite."""
        settings, sound = self.settings, vectors.isfinite().all()
        with torch.autocast(vectors.device.type, enabled=False):
            choices = F.one_hot(codes, settings.codebook_size).to(vectors.dtype)  # (N, V)
            fewest = settings.restart_threshold * len(vectors) / settings.codebook_size
            counts = self.counts.lerp(choices.sum(0), 1 - settings.decay)
            dead = counts < fewest  # (V,)
            anew = vectors[torch.randint(len(vectors), (settings.codebook_size,), device=vectors.device)]
            moved = {"counts": counts.masked_fill(dead, GRACE * fewest), "table": torch.where(dead[:, None], anew, self.table)}
            if settings.codebook_update == "ema":
                sums = self.sums.lerp(choices.T @ vectors, 1 - settings.decay)
                moved["sums"] = torch.where(dead[:, None], anew * GRACE * fewest, sums)
                moved["table"] = moved["sums"] / moved["counts"].clamp(min=1e-6)[:, None]
        for name, new in moved.items():
            kept = getattr(self, name)
            kept.copy_(torch.where(sound, new, kept))


def normalised(logits: Tensor) -> Tensor:
    """log p of each code (B, V, h, w)."""
    return logits - logits.logsumexp(1, keepdim=True)


def cosine_anneal(step: int, steps: int, first: float, last: float) -> float:
    """From the first value to the last along half a cosine."""
    return last + (first - last) * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2


def build_codebook(settings: "DvaeModel", size: tuple[int, int]) -> "GumbelCodebook | VectorQuantizer":
    return (GumbelCodebook if settings.quantizer == "gumbel" else VectorQuantizer)(settings, size)
