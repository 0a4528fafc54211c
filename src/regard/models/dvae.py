"""The discrete autoencoder of DALL·E (Ramesh et al. 2021, sec. 2.1 and app. A): an image as a grid of codes, and back.

Deviations: the blocks are those of the VQ-VAE (van den Oord et al. 2017, sec. 4.1) at the size of the grid, followed by pixel
shuffles up to the image's size; the whole model is much smaller. The reconstruction loss is the squared or absolute error of the
pixels, or their negative log-likelihood under a logit-Laplace distribution (app. A.3).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.layers.codebook import build_codebook
from regard.layers.convolution import GridConv2d, ResidualConv2d
from regard.models.vit import Size, format_size

if TYPE_CHECKING:
    from regard.recipe import DvaeModel, Regularization

MARGIN = 0.1
"""ε of the logit-Laplace: pixels are mapped to (ε, 1 - ε), where logits are finite."""
MIN_LOG_SCALE, MAX_LOG_SCALE = -5.0, 3.0
"""Limits of ln b of the logit-Laplace."""


@dataclass
class Reconstruction:
    """The decoder's prediction of each pixel, the codes it was given, and the loss of their choice per example."""

    prediction: Tensor  # (B, 3 or 6, H, W)
    codes: Tensor  # (B, h, w)
    penalty: Tensor  # (B,)


class Dvae(nn.Module):
    """Pixels (B, 3, H, W) in uint8 -> codes (B, h, w) -> pixels."""

    def __init__(self, settings: "DvaeModel", size: Size, regularize: "Regularization | None" = None):
        super().__init__()
        self.settings, self.size, self.grid = settings, size, settings.grid(size)
        width, halvings = settings.width, settings.downsampling.bit_length() - 1
        channels = 6 if settings.reconstruction_loss == "laplace" else 3

        def downsampled(times: int) -> Size:
            return size[0] >> times, size[1] >> times

        def blocks() -> list[nn.Module]:
            return [ResidualConv2d(width, self.grid) for _ in range(settings.layers)]

        def downsample(number: int) -> list[nn.Module]:
            return [GridConv2d(width if number else 3, width, 4, downsampled(number + 1), stride=2), nn.ReLU()]

        def upsample(number: int) -> list[nn.Module]:
            out = channels if number == halvings - 1 else width
            return [nn.ReLU(), GridConv2d(width, 4 * out, 3, downsampled(halvings - number)), nn.PixelShuffle(2)]

        self.encoder = nn.Sequential(
            *(part for number in range(halvings) for part in downsample(number)),
            GridConv2d(width, width, 3, self.grid),
            *blocks(),
            nn.ReLU(),
        )
        self.codebook = build_codebook(settings, size)
        self.decoder = nn.Sequential(
            GridConv2d(settings.code_width, width, 3, self.grid),
            *blocks(),
            *(part for number in range(halvings) for part in upsample(number)),
        )

    def begin_step(self, step: int) -> None:
        """Set the temperature and loss weights of this training step."""
        self.codebook.begin_step(step)

    def forward(self, pixels: Tensor) -> Reconstruction:
        quantized = self.codebook(self.encoder(self._scale(pixels)))
        return Reconstruction(self.decoder(quantized.vectors).float(), quantized.codes, quantized.penalty)

    def encode(self, pixels: Tensor) -> Tensor:
        """Return the codes (B, h, w) of images."""
        return self.codebook(self.encoder(self._scale(pixels))).codes

    def decode(self, codes: Tensor) -> Tensor:
        """Return images (B, 3, H, W) in uint8 from codes (B, h, w)."""
        return self.to_pixels(self.decoder(self.codebook.embed(codes)).float())

    def _scale(self, pixels: Tensor) -> Tensor:
        """Scale pixels to [-1, 1]."""
        if tuple(pixels.shape[2:]) != self.size:
            raise UserError(
                f"images of {format_size(pixels.shape[2:])} pixels, the model reads {format_size(self.size)}; resize them"
            )
        return pixels.to(self.codebook.table.dtype) / 127.5 - 1

    def pixel_loss(self, prediction: Tensor, pixels: Tensor) -> Tensor:
        """Return the reconstruction loss per example, averaged over its pixel values: (B,)."""
        x = self._scale(pixels)
        match self.settings.reconstruction_loss:
            case "l1":
                loss = (prediction - x).abs()
            case "l2":
                loss = (prediction - x).square()
            case _:
                loss = logit_laplace(prediction, (x + 1) / 2)
        return loss.mean((1, 2, 3))

    def to_pixels(self, prediction: Tensor) -> Tensor:
        """Return the uint8 pixels of a prediction."""
        if self.settings.reconstruction_loss == "laplace":
            intensity = (prediction[:, :3].sigmoid() - MARGIN) / (1 - 2 * MARGIN)
        else:
            intensity = (prediction + 1) / 2
        return (255 * intensity).round().clamp(0, 255).to(torch.uint8)


def logit_laplace(prediction: Tensor, intensity: Tensor) -> Tensor:
    """Return -ln f(x | μ, b) = ln(2 b x (1 - x)) + |logit x - μ| / b, for pixels from 0 to 1 mapped to (ε, 1 - ε) (eq. 2)."""
    mu, log_b = prediction.chunk(2, dim=1)
    log_b = log_b.clamp(MIN_LOG_SCALE, MAX_LOG_SCALE)
    x = (1 - 2 * MARGIN) * intensity + MARGIN
    return (2 * x * (1 - x)).log() + log_b + (x.logit() - mu).abs() * (-log_b).exp()
