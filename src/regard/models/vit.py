"""The Vision Transformer (Dosovitskiy et al. 2021): an encoder whose tokens are image patches. With a distillation token it is
DeiT (Touvron et al. 2021).

Deviations: the head is one linear layer also in pretraining (sec. 3.1 has a hidden layer there); mean pooling instead of a class
token is a setting (app. D.3), and so are two-dimensional sinusoidal positions (Beyer et al. 2022), and convolutions in place of
the patch embedding (Hassani et al. 2021). The residual network of the hybrid (sec. 3.1) is a smaller one, trained with the rest.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.positions import LearnedPositions, build_grid_positions
from regard.errors import UserError
from regard.layers.block import block_config, embedding_dropout
from regard.layers.convolution import BasicBlock, BatchNormConv2d, GridConv2d, NormalizePixels
from regard.layers.stack import Stack
from regard.models.gpt import init_normal

if TYPE_CHECKING:
    from regard.recipe import Regularization, VitModel

Size = tuple[int, int]
STEM_CHANNELS = 64
"""Channels between the convolutions of a stem, as published; of a residual stem, at full resolution."""
MAX_STEM_CHANNELS = 256
BLOCKS_PER_RESOLUTION = 2
POSITION_TABLE = "encoder.stack.positions.table.weight"


class PatchEmbedding(nn.Conv2d):
    """Pixels (B, 3, H, W) -> a vector for each patch (B, N, D), row by row: one linear map, as a strided convolution (eq. 1)."""

    def __init__(self, width: int, patch: Size, grid: Size, bias: bool = True):
        super().__init__(3, width, patch, stride=patch, bias=bias)
        self.grid = grid
        nn.init.normal_(self.weight, std=(3 * patch[0] * patch[1]) ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the embeddings in the precision of the weights, also under autocast."""
        return super().forward(pixels).flatten(2).transpose(1, 2).to(self.weight.dtype)


class ConvolutionalStem(nn.Module):
    """Pixels (B, 3, H, W) -> a vector for each cell (B, N, D), row by row: x ← maxpool(relu(conv(x))) halves the map each time.

    It is the convolutional tokenizer of CCT (Hassani et al. 2021). Deviation: the convolutions have biases.
    """

    def __init__(self, width: int, patch: int, grid: Size):
        super().__init__()
        self.grid, layers = grid, patch.bit_length() - 1
        channels = [3, *[STEM_CHANNELS] * (layers - 1), width]
        self.convolutions = nn.ModuleList(
            GridConv2d(channels[i], channels[i + 1], 3, (grid[0] * 2 ** (layers - i), grid[1] * 2 ** (layers - i)))
            for i in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for convolution in self.convolutions:
            x = F.max_pool2d(F.relu(convolution(x)), 3, stride=2, padding=1)
        return x.flatten(2).transpose(1, 2).to(next(self.parameters()).dtype)


class ResidualStem(nn.Module):
    """Pixels (B, 3, H, W) -> a vector for each cell (B, N, D), row by row, from a residual network: the hybrid of sec. 3.1.

    The network is ResNet-18 (He et al. 2016, table 1) up to the resolution of the tokens: two blocks of 64 channels at full
    resolution, then two of twice as many channels, at most 256, for every halving. As for CIFAR-10 (sec. 4.2), its first layer is
    a 3 × 3 convolution without a max pool. A linear map of each cell to the width of the Transformer follows.
    """

    def __init__(self, width: int, patch: int, grid: Size):
        super().__init__()
        self.grid, halvings = grid, patch.bit_length() - 1
        grids = [(grid[0] * 2**i, grid[1] * 2**i) for i in range(halvings, -1, -1)]
        channels = [min(STEM_CHANNELS * 2**i, MAX_STEM_CHANNELS) for i in range(halvings + 1)]
        self.first = BatchNormConv2d(3, STEM_CHANNELS, 3, grids[0])
        self.stages = nn.Sequential()
        for number, (before, out, size) in enumerate(zip([STEM_CHANNELS, *channels], channels, grids)):
            self.stages.append(BasicBlock(before, out, size, stride=2 if number else 1))
            self.stages.extend(BasicBlock(out, out, size) for _ in range(BLOCKS_PER_RESOLUTION - 1))
        self.output = GridConv2d(channels[-1], width, 1, grid)

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels.contiguous(memory_format=torch.channels_last)  # the faster layout for convolutions
        x = self.output(self.stages(F.relu(self.first(x))))  # (B, D, rows, columns)
        return x.flatten(2).transpose(1, 2).to(self.output.weight.dtype)


class VitEncoder(nn.Module):
    """Pixels (B, 3, H, W), uint8 or already normalised -> vectors of the prefix tokens and the patches (B, S, D)."""

    def __init__(self, settings: "VitModel", size: Size, regularize: "Regularization | None" = None):
        super().__init__()
        self.settings, self.size = settings, size
        width, grid = settings.width, settings.grid(size)
        self.patches = build_stem(settings, grid)
        self.class_token = nn.Parameter(torch.zeros(width)) if settings.pool == "class" else None
        self.distillation_token = nn.Parameter(torch.zeros(width)) if settings.distilled != "none" else None
        self.stack = Stack(
            block_config(settings, regularize),
            settings.layers,
            build_grid_positions(settings.positions, width=width, grid=grid, prefix_tokens=settings.prefix_tokens),
            embedding_dropout=embedding_dropout(regularize),
            embedding_norm=settings.embedding_norm,
        )
        self.normalize = NormalizePixels(settings.mean, settings.std)

    def forward(self, pixels: Tensor, states: list[Tensor] | None = None) -> Tensor:
        if tuple(pixels.shape[2:]) != self.size:
            raise UserError(
                f"images of {format_size(pixels.shape[2:])} pixels, the model reads {format_size(self.size)}: resize them, "
                "or the model with resize(size)"
            )
        x = self.patches(self.normalize(pixels).to(next(self.patches.parameters()).dtype))  # (B, N, D)
        prefix = [token.expand(len(x), 1, -1) for token in (self.class_token, self.distillation_token) if token is not None]
        return self.stack(torch.cat([*prefix, x], dim=1), states=states)

    def resize(self, size: Size) -> None:
        """Accept images of another size from now on; learned positions are interpolated (sec. 3.2)."""
        settings, old = self.settings, self.patches.grid
        grid = settings.grid(size)
        if min(grid) < 1:
            raise UserError(f"images of {format_size(size)} pixels are smaller than a patch, {settings.patch_size} pixels")
        if settings.stem != "patches" and any(side % settings.patch_size for side in size):  # type: ignore[operator]
            raise UserError(
                f"images of {format_size(size)} pixels: model.stem = '{settings.stem}' needs multiples of "
                f"model.patch_size = {settings.patch_size}"
            )
        positions = build_grid_positions(
            settings.positions, width=settings.width, grid=grid, prefix_tokens=settings.prefix_tokens
        )
        if isinstance(positions, LearnedPositions) and isinstance(self.stack.positions, LearnedPositions):
            table = interpolate_positions(self.stack.positions.table.weight.detach(), settings.prefix_tokens, old, grid)
            positions.table = nn.Embedding.from_pretrained(table, freeze=False)
        self.stack.positions = positions.to(next(self.patches.parameters()).device)
        self.size = size
        self.patches.grid = grid


def build_stem(settings: "VitModel", grid: Size) -> PatchEmbedding | ConvolutionalStem | ResidualStem:
    """Return what makes tokens of pixels."""
    width, side = settings.width, settings.patch_size
    patch = (side, side) if isinstance(side, int) else side
    match settings.stem:
        case "patches":
            return PatchEmbedding(width, patch, grid, settings.patch_bias)
        case "convolutions":
            return ConvolutionalStem(width, patch[0], grid)
        case "residual":
            return ResidualStem(width, patch[0], grid)


class VitWithHead(nn.Module):
    """An image encoder, to which subclasses add a head."""

    def __init__(self, settings: "VitModel", size: Size, regularize: "Regularization | None" = None):
        super().__init__()
        self.settings = settings
        self.encoder = VitEncoder(settings, size, regularize)

    def hidden_states(self, pixels: Tensor) -> list[Tensor]:
        """Return the prefix tokens and patches with their positions, then the output of each layer: (B, S, D) each."""
        states: list[Tensor] = []
        self.encoder(pixels, states)
        return states

    def resize(self, size: Size) -> None:
        """Accept images of another size from now on."""
        self.encoder.resize(size)

    def adapt_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of another model for this one, with positions interpolated from a square grid to this image size."""
        return resize_position_table(weights, POSITION_TABLE, self.encoder)


class ImageEmbedder(VitWithHead):
    """An encoder without a head: its output are the vectors (B, S, D)."""

    def __init__(self, settings: "VitModel", size: Size, regularize: "Regularization | None" = None):
        super().__init__(settings, size, regularize)
        init_normal(self)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.encoder(pixels)


class VitClassifier(VitWithHead):
    """An image classifier on the class token or the mean of the patches; distilled, the mean of the logits of both tokens."""

    once_per_example = ("output", "distilled_output")

    def __init__(self, settings: "VitModel", size: Size, labels: int, regularize: "Regularization | None" = None):
        super().__init__(settings, size, regularize)
        self.output = nn.Linear(settings.width, labels)
        self.distilled_output = nn.Linear(settings.width, labels) if settings.distilled == "head" else None
        init_normal(self)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits (B, C) of the labels of each image."""
        x = self.encoder(pixels)
        logits = self.output(x[:, 0] if self.settings.pool == "class" else x.mean(1))
        return logits if self.distilled_output is None else (logits + self.distilled_output(x[:, 1])) / 2


def resize_position_table(weights: dict[str, Tensor], name: str, encoder: VitEncoder) -> dict[str, Tensor]:
    """Return weights whose position table `name` fits the encoder's grid; that of another square grid is interpolated."""
    prefix, (rows, columns) = encoder.settings.prefix_tokens, encoder.patches.grid
    table = weights.get(name)
    if table is None or len(table) == prefix + rows * columns:
        return weights
    side = round((len(table) - prefix) ** 0.5)
    if side * side != len(table) - prefix or encoder.settings.positions.kind != "learned":
        return weights
    return {**weights, name: interpolate_positions(table, prefix, (side, side), (rows, columns))}


def interpolate_positions(table: Tensor, prefix_tokens: int, old: Size, new: Size) -> Tensor:
    """Return a table of positions (prefix + old grid, D) interpolated to another grid (prefix + new grid, D)."""
    grid = table[prefix_tokens:].float().unflatten(0, old).permute(2, 0, 1)[None]  # (1, D, rows, columns)
    grid = F.interpolate(grid, size=new, mode="bicubic", align_corners=False)
    return torch.cat([table[:prefix_tokens], grid[0].flatten(1).T.to(table.dtype)])


def format_size(size: Size | torch.Size) -> str:
    """Return a size as text, such as "32 × 48"."""
    return f"{size[0]} × {size[1]}"
