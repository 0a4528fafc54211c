"""The Vision Transformer (Dosovitskiy et al. 2021): the patches of a picture are read like words. With a second mark it is DeiT
(Touvron et al. 2021).

Deviations: the head is one linear layer also before fine-tuning (sec. 3.1 has a hidden one there); a mean of patches instead of a
class token is a setting (app. D.3), and so are sinusoidal positions of two dimensions (Beyer et al. 2022).
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.positions import LearnedPositions, build_grid_positions
from regard.errors import UserError
from regard.layers.block import block_config, embedding_dropout
from regard.layers.normalize_pixels import NormalizePixels
from regard.layers.stack import Stack
from regard.models.gpt import init_normal

if TYPE_CHECKING:
    from regard.recipe import Regularization, VitModel

Size = tuple[int, int]
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
        """In the weights' precision, whatever it was computed in, as embeddings are."""
        return super().forward(pixels).flatten(2).transpose(1, 2).to(self.weight.dtype)


class VitEncoder(nn.Module):
    """Pixels (B, 3, H, W), 0 to 255 in uint8 or already normalised, -> vectors of the marks and the patches (B, S, D)."""

    def __init__(self, settings: "VitModel", size: Size, regularize: "Regularization | None" = None):
        super().__init__()
        self.settings, self.size = settings, size
        width, grid = settings.width, settings.grid(size)
        patch = (settings.patch_size, settings.patch_size) if isinstance(settings.patch_size, int) else settings.patch_size
        self.patches = PatchEmbedding(width, patch, grid, settings.patch_bias)
        self.class_token = nn.Parameter(torch.zeros(width)) if settings.pool == "class" else None
        self.distillation_token = nn.Parameter(torch.zeros(width)) if settings.distilled != "none" else None
        self.stack = Stack(
            block_config(settings, regularize),
            settings.layers,
            build_grid_positions(settings.positions, width=width, grid=grid, marks=settings.num_prefix_tokens),
            embedding_dropout=embedding_dropout(regularize),
            embedding_norm=settings.embedding_norm,
        )
        self.normalise = NormalizePixels(settings.mean, settings.std)

    def forward(self, pixels: Tensor, states: list[Tensor] | None = None) -> Tensor:
        if tuple(pixels.shape[2:]) != self.size:
            raise UserError(
                f"pictures of {format_size(pixels.shape[2:])} pixels, the model reads {format_size(self.size)}: bring them "
                "to that size, or fit the model to theirs with resize(size)"
            )
        x = self.patches(self.normalised(pixels))  # (B, N, D)
        marks = [mark.expand(len(x), 1, -1) for mark in (self.class_token, self.distillation_token) if mark is not None]
        return self.stack(torch.cat([*marks, x], dim=1), states=states)

    def normalised(self, pixels: Tensor) -> Tensor:
        return self.normalise(pixels).to(self.patches.weight.dtype)

    def resize(self, size: Size) -> None:
        """Read pictures of another size from now on; learned positions are interpolated (sec. 3.2)."""
        settings, old = self.settings, self.patches.grid
        grid = settings.grid(size)
        if min(grid) < 1:
            raise UserError(f"pictures of {format_size(size)} pixels are smaller than a patch, {settings.patch_size} pixels")
        positions = build_grid_positions(settings.positions, width=settings.width, grid=grid, marks=settings.num_prefix_tokens)
        if isinstance(positions, LearnedPositions) and isinstance(self.stack.positions, LearnedPositions):
            table = interpolate_positions(self.stack.positions.table.weight.detach(), settings.num_prefix_tokens, old, grid)
            positions.table = nn.Embedding.from_pretrained(table, freeze=False)
        self.stack.positions = positions.to(self.patches.weight.device)
        self.size = size
        self.patches.grid = grid


class VitWithHead(nn.Module):
    """An encoder of pictures, to which a head is added."""

    def __init__(self, settings: "VitModel", size: Size, regularize: "Regularization | None" = None):
        super().__init__()
        self.settings = settings
        self.encoder = VitEncoder(settings, size, regularize)

    def hidden_states(self, pixels: Tensor) -> list[Tensor]:
        """Marks and patches with their positions, then what each layer makes of them: (B, S, D) each."""
        states: list[Tensor] = []
        self.encoder(pixels, states)
        return states

    def resize(self, size: Size) -> None:
        self.encoder.resize(size)

    def adapt_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Another one's weights for this one, which may read pictures of another size; a square grid is interpolated."""
        return resize_position_table(weights, POSITION_TABLE, self.encoder)


class ImageEmbedder(VitWithHead):
    """Says nothing: what is wanted of it is the vectors (B, S, D)."""

    def __init__(self, settings: "VitModel", size: Size, regularize: "Regularization | None" = None):
        super().__init__(settings, size, regularize)
        init_normal(self)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.encoder(pixels)


class VitClassifier(VitWithHead):
    """Says a label of the whole picture, from the class token or from the mean of the patches; distilled, the mean of what is
    said from both marks."""

    once_per_example = ("output", "distilled_output")

    def __init__(self, settings: "VitModel", size: Size, labels: int, regularize: "Regularization | None" = None):
        super().__init__(settings, size, regularize)
        self.output = nn.Linear(settings.width, labels)
        self.distilled_output = nn.Linear(settings.width, labels) if settings.distilled == "head" else None
        init_normal(self)

    def forward(self, pixels: Tensor) -> Tensor:
        """The logits (B, C) of the labels of each picture."""
        x = self.encoder(pixels)
        said = self.output(x[:, 0] if self.settings.pool == "class" else x.mean(1))
        return said if self.distilled_output is None else (said + self.distilled_output(x[:, 1])) / 2


def resize_position_table(weights: dict[str, Tensor], name: str, encoder: VitEncoder) -> dict[str, Tensor]:
    """Weights whose positions, of this name, are those of the encoder's grid; those of another square grid are interpolated."""
    marks, (rows, columns) = encoder.settings.num_prefix_tokens, encoder.patches.grid
    table = weights.get(name)
    if table is None or len(table) == marks + rows * columns:
        return weights
    side = round((len(table) - marks) ** 0.5)
    if side * side != len(table) - marks or encoder.settings.positions.kind != "learned":
        return weights
    return {**weights, name: interpolate_positions(table, marks, (side, side), (rows, columns))}


def interpolate_positions(table: Tensor, marks: int, old: Size, new: Size) -> Tensor:
    """Positions (marks + old, D) for another grid (marks + new, D); those of the marks stay."""
    grid = table[marks:].float().unflatten(0, old).permute(2, 0, 1)[None]  # (1, D, rows, columns)
    grid = F.interpolate(grid, size=new, mode="bicubic", align_corners=False)
    return torch.cat([table[:marks], grid[0].flatten(1).T.to(table.dtype)])


def format_size(size: Size | torch.Size) -> str:
    return f"{size[0]} × {size[1]}"
