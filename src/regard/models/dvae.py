"""The discrete autoencoder of DALL·E (Ramesh et al. 2021, sec. 2.1 and app. A): a picture as a grid of codes, and back.

Deviations: the blocks are those of the VQ-VAE (van den Oord et al. 2017, sec. 4.1) and stand at the size of the grid, from which
pixels are shuffled up to the picture's; all of it is much smaller. Pixels are said by their squared or absolute error, or under a
logit-Laplace distribution (app. A.3).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.layers.codebook import build_codebook
from regard.layers.conv2d import GridConv2d, ResidualConv2d
from regard.models.vit import Size, format_size

if TYPE_CHECKING:
    from regard.recipe import DvaeModel, Regularization

MARGIN = 0.1
"""ε of the logit-Laplace: pixels are brought to (ε, 1 - ε), of which logits are finite."""
NARROWEST, WIDEST = -5.0, 3.0
"""ln b of the logit-Laplace."""


@dataclass
class Reconstruction:
    """What the decoder says of each pixel, the codes it was told, and what their choice cost."""

    prediction: Tensor  # (B, 3 or 6, H, W)
    codes: Tensor  # (B, h, w)
    penalty: Tensor  # (B,)


class Dvae(nn.Module):
    """Pixels (B, 3, H, W) in uint8 -> codes (B, h, w) -> pixels."""

    def __init__(self, settings: "DvaeModel", size: Size, regularize: "Regularization | None" = None):
        super().__init__()
        self.settings, self.size, self.grid = settings, size, settings.grid(size)
        width, halvings = settings.width, settings.downsampling.bit_length() - 1
        said = 6 if settings.reconstruction_loss == "laplace" else 3

        def halved(times: int) -> Size:
            return size[0] >> times, size[1] >> times

        def blocks() -> list[nn.Module]:
            return [ResidualConv2d(width, self.grid) for _ in range(settings.layers)]

        def halve(number: int) -> list[nn.Module]:
            return [GridConv2d(width if number else 3, width, 4, halved(number + 1), stride=2), nn.ReLU()]

        def double(number: int) -> list[nn.Module]:
            out = said if number == halvings - 1 else width
            return [nn.ReLU(), GridConv2d(width, 4 * out, 3, halved(halvings - number)), nn.PixelShuffle(2)]

        self.encoder = nn.Sequential(
            *(part for number in range(halvings) for part in halve(number)),
            GridConv2d(width, width, 3, self.grid),
            *blocks(),
            nn.ReLU(),
        )
        self.book = build_codebook(settings, size)
        self.decoder = nn.Sequential(
            GridConv2d(settings.code_width, width, 3, self.grid),
            *blocks(),
            *(part for number in range(halvings) for part in double(number)),
        )

    def begin_step(self, step: int) -> None:
        """What changes in the course of training."""
        self.book.begin_step(step)

    def forward(self, pixels: Tensor) -> Reconstruction:
        chosen = self.book(self.encoder(self.scaled(pixels)))
        return Reconstruction(self.decoder(chosen.vectors).float(), chosen.codes, chosen.penalty)

    def encode(self, pixels: Tensor) -> Tensor:
        """The codes (B, h, w) of pictures."""
        return self.book(self.encoder(self.scaled(pixels))).codes

    def decode(self, codes: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) in uint8 from codes (B, h, w)."""
        return self.to_pixels(self.decoder(self.book.look_up(codes)).float())

    def scaled(self, pixels: Tensor) -> Tensor:
        """From -1 to 1."""
        if tuple(pixels.shape[2:]) != self.size:
            raise UserError(f"pictures of {format_size(pixels.shape[2:])} pixels, the model reads {format_size(self.size)}")
        return pixels.to(self.book.table.dtype) / 127.5 - 1

    def pixel_loss(self, said: Tensor, pixels: Tensor) -> Tensor:
        """How far what is said is from the pixels, for each of their values on average: (B,)."""
        x = self.scaled(pixels)
        match self.settings.reconstruction_loss:
            case "l1":
                found = (said - x).abs()
            case "l2":
                found = (said - x).square()
            case _:
                found = logit_laplace(said, (x + 1) / 2)
        return found.mean((1, 2, 3))

    def to_pixels(self, said: Tensor) -> Tensor:
        if self.settings.reconstruction_loss == "laplace":
            light = (said[:, :3].sigmoid() - MARGIN) / (1 - 2 * MARGIN)
        else:
            light = (said + 1) / 2
        return (255 * light).round().clamp(0, 255).to(torch.uint8)


def logit_laplace(said: Tensor, light: Tensor) -> Tensor:
    """-ln f(x | μ, b) = ln(2 b x (1 - x)) + |logit x - μ| / b, for pixels from 0 to 1 brought to (ε, 1 - ε) (eq. 2)."""
    middle, spread = said.chunk(2, dim=1)
    spread = spread.clamp(NARROWEST, WIDEST)
    x = (1 - 2 * MARGIN) * light + MARGIN
    return (2 * x * (1 - x)).log() + spread + (x.logit() - middle).abs() * (-spread).exp()
