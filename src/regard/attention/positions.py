"""How a model knows the order of its tokens. Each kind overrides one of three places where order can enter:

    embed     added to the embeddings    sinusoidal (Vaswani et al. 2017, sec. 3.5), learned
    rotation  turns queries and keys     rotary (Su et al. 2021)
    bias      added to the scores        ALiBi (Press et al. 2022), relative buckets (T5, Raffel et al. 2020)

`at` holds positions: (T,) for a plain batch, (B, T) where sequences begin at different places.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from regard.recipe import GridPositionSettings
    from regard.recipe import PositionSettings as Settings

Rotation = tuple[Tensor, Tensor]


class PositionEncoding(nn.Module):
    """No positions at all: a bag of tokens."""

    description = "no positions"
    """Where order enters, in words."""

    def embed(self, x: Tensor, at: Tensor) -> Tensor:
        return x

    def rotation(self, at: Tensor) -> Rotation | None:
        return None

    def bias(self, query_at: Tensor, key_at: Tensor) -> Tensor | None:
        return None


def sinusoids(at: Tensor, width: int, base: float = 10_000.0, *, halves: bool = False) -> Tensor:
    """PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos of the same: (…,) -> (…, D). In halves, all sines come first."""
    pair = torch.arange(0, width, 2, device=at.device, dtype=torch.float64)
    angle = at[..., None] / base ** (pair / width)  # (…, ⌈D/2⌉)
    if halves:
        return torch.cat([angle.sin(), angle.cos()], dim=-1)[..., :width]
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :width]


class SinusoidalPositions(PositionEncoding):
    description = "positions are within q and k: added to the embeddings"

    def __init__(self, width: int, base: float, max_length: int, halves: bool = False):
        super().__init__()
        self.width, self.base, self.halves = width, base, halves
        self.table: Tensor
        self.register_buffer("table", sinusoids(torch.arange(max_length), width, base, halves=halves).float(), persistent=False)

    def embed(self, x, at):
        if self.table.dtype == x.dtype:
            return x + self.table[at]
        wide = sinusoids(at, self.width, self.base, halves=self.halves)  # exact where the model is wider than float32
        return x + wide.to(x.dtype)


class LearnedPositions(PositionEncoding):
    description = SinusoidalPositions.description

    def __init__(self, width: int, max_length: int):
        super().__init__()
        self.table = nn.Embedding(max_length, width)

    def embed(self, x, at):
        return x + self.table(at)


class SinusoidalGridPositions(PositionEncoding):
    """Patches of a picture, row by row: the sinusoids of the row, and beside them those of the column. Marks before the patches
    are nowhere."""

    description = SinusoidalPositions.description

    def __init__(self, width: int, base: float, grid: tuple[int, int], marks: int):
        super().__init__()
        row, column = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
        places = torch.cat([sinusoids(at.flatten(), width // 2, base) for at in (row, column)], dim=-1)  # (N, D)
        self.table: Tensor
        self.register_buffer("table", torch.cat([places.new_zeros(marks, width), places]).float(), persistent=False)

    def embed(self, x, at):
        return x + self.table[at].to(x.dtype)


class TextGridPositions(PositionEncoding):
    """Text, and after it a picture's places row by row: learned positions of the text; of each place its row's and its column's
    (Ramesh et al. 2021, sec. 2.2)."""

    description = SinusoidalPositions.description

    def __init__(self, width: int, text: int, grid: tuple[int, int]):
        super().__init__()
        self.text, self.row, self.column = (nn.Embedding(number, width) for number in (text, *grid))

    def embed(self, x, at):
        places = self.row.weight[:, None] + self.column.weight  # (rows, columns, D)
        return x + torch.cat([self.text.weight, places.flatten(0, 1)])[at]


class RotaryPositions(PositionEncoding):
    """Pair i of a head's components is turned by p / base^(2i/K): scores depend on distance alone."""

    description = "q and k are shown as positions have turned them (rotary)"

    def __init__(self, key_width: int, base: float):
        super().__init__()
        self.key_width, self.base = key_width, base

    def rotation(self, at):
        pair = torch.arange(0, self.key_width, 2, device=at.device, dtype=torch.float64)
        angle = at[..., None] / self.base ** (pair / self.key_width)  # (…, T, K/2)
        angle = torch.cat([angle, angle], dim=-1)
        angle = angle if angle.dim() == 2 else angle[:, None]  # (T, K) or (B, 1, T, K)
        return angle.cos(), angle.sin()


def apply_rotary(x: Tensor, rotation: Rotation | None) -> Tensor:
    """Turn the halves of every head's vector against each other: (B, H, T, K) -> (B, H, T, K)."""
    if rotation is None:
        return x
    cos, sin = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class AlibiPositions(PositionEncoding):
    """Each head h pays slope_h · distance; slopes are a geometric sequence of the heads."""

    description = "positions are the bias: a slope times the distance (ALiBi)"

    def __init__(self, heads: int):
        super().__init__()
        self.slopes: Tensor
        self.register_buffer("slopes", torch.tensor(alibi_slopes(heads)), persistent=False)

    def bias(self, query_at, key_at):
        distance = (key_at[..., None, :] - query_at[..., :, None]).abs()  # (T, S) or (B, T, S)
        return -self.slopes[:, None, None] * distance[..., None, :, :]  # (H, T, S) or (B, H, T, S)


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n) … for a power of two; between powers, every other slope of the next one fills up.

    This is the authors' rule.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]


class RelativePositions(PositionEncoding):
    """A learned bias for each head and bucket of distances; one table for the whole stack."""

    description = "positions are the bias: learned, by distance"

    def __init__(self, heads: int, buckets: int, max_distance: int, *, causal: bool):
        super().__init__()
        self.buckets, self.max_distance, self.causal = buckets, max_distance, causal
        self.table = nn.Embedding(buckets, heads)

    def bias(self, query_at, key_at):
        distance = key_at[..., None, :] - query_at[..., :, None]  # (T, S) or (B, T, S)
        bucket = relative_position_bucket(distance, self.buckets, self.max_distance, self.causal)
        return self.table(bucket).movedim(-1, -3)  # (H, T, S) or (B, H, T, S)


def relative_position_bucket(distance: Tensor, buckets: int, max_distance: int, causal: bool) -> Tensor:
    """Half the buckets for small distances one each, half for larger ones logarithmically (Raffel et al. 2020, sec. 2.1)."""
    if causal:
        offset, behind = torch.zeros_like(distance), (-distance).clamp(min=0)
    else:
        buckets //= 2
        offset, behind = (distance > 0).long() * buckets, distance.abs()
    exact = buckets // 2
    ratio = torch.log(behind.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return offset + torch.where(behind < exact, behind, far)


def build_positions(
    settings: "Settings", *, width: int, heads: int, key_width: int, max_length: int, causal: bool
) -> PositionEncoding:
    match settings.kind:
        case "sinusoidal":
            return SinusoidalPositions(width, settings.base, max_length, settings.sines_first)
        case "learned":
            return LearnedPositions(width, max_length)
        case "rotary":
            return RotaryPositions(key_width, settings.base)
        case "alibi":
            return AlibiPositions(heads)
        case "relative":
            return RelativePositions(heads, settings.buckets, settings.max_distance, causal=causal)
        case "none":
            return PositionEncoding()


def build_grid_positions(settings: "GridPositionSettings", *, width: int, grid: tuple[int, int], marks: int) -> PositionEncoding:
    """Of the patches of a picture, and of the marks before them."""
    match settings.kind:
        case "sinusoidal":
            return SinusoidalGridPositions(width, settings.base, grid, marks)
        case "learned":
            return LearnedPositions(width, marks + grid[0] * grid[1])
        case "none":
            return PositionEncoding()
