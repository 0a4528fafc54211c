"""Position encodings: how a model knows the order of its tokens. Each kind overrides one of three methods:

    vectors   added to the embeddings        sinusoidal (Vaswani et al. 2017, sec. 3.5), learned
    rotation  rotates queries and keys       rotary (Su et al. 2021)
    bias      added to the scores            ALiBi (Press et al. 2022), relative buckets (T5, Raffel et al. 2020)

`positions` are (T,) for a plain batch, (B, T) where sequences begin at different positions; what is added to the embeddings may
also be given as a range, whose rows of a table need no kernel to be found.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from regard.recipe import GridPositionSettings, PositionSettings
    from regard.recipe.model import RotaryScaling

Rotation = tuple[Tensor, Tensor]


class PositionEncoding(nn.Module):
    """No positions at all, a bag of tokens; the base class of all kinds."""

    description = "no positions"
    """Where the order enters, shown beside figures of queries and keys."""

    @property
    def is_added(self) -> bool:
        """Whether positions enter by `vectors`, and by nothing else."""
        return type(self).vectors is not PositionEncoding.vectors

    def embed(self, x: Tensor, positions: Tensor | range, segment: Tensor | None = None) -> Tensor:
        """Return embeddings (B, T, D) with what their positions add, and the vector (D,) of the segment they all belong to. These
        two are added first: they are small where all rows have the same positions."""
        added = self.vectors(positions, x.dtype)
        if segment is not None:
            added = segment if added is None else added + segment
        return x if added is None else x + added

    def vectors(self, positions: Tensor | range, dtype: torch.dtype) -> Tensor | None:
        """Return what is added to embeddings of this type, (T, D) or (B, T, D); None is nothing."""
        return None

    def rotation(self, positions: Tensor, *, local: bool = False) -> Rotation | None:
        """Return cosines and sines; `local`, those of layers with a window."""
        return None

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        return None


def rows_of(table: Tensor, positions: Tensor | range) -> Tensor:
    """Return the rows of a table (N, D) at these positions, (T, D) or (B, T, D); those of a range are a view."""
    return table.narrow(0, positions.start, len(positions)) if isinstance(positions, range) else table[positions]


def sinusoids(positions: Tensor, width: int, base: float = 10_000.0, *, sines_first: bool = False) -> Tensor:
    """Return PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos of the same: (…,) -> (…, D); or all sines, then all cosines."""
    pair = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64)
    angle = positions[..., None] / base ** (pair / width)  # (…, ⌈D/2⌉)
    if sines_first:
        return torch.cat([angle.sin(), angle.cos()], dim=-1)[..., :width]
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :width]


class SinusoidalPositions(PositionEncoding):
    description = "positions are part of q and k: added to the embeddings"

    def __init__(self, width: int, base: float, max_length: int, sines_first: bool = False, first: int = 0):
        super().__init__()
        self.width, self.base, self.sines_first, self.first = width, base, sines_first, first
        self.table: Tensor
        positions = torch.arange(first, first + max_length)
        self.register_buffer("table", sinusoids(positions, width, base, sines_first=sines_first).float(), persistent=False)

    def vectors(self, positions: Tensor | range, dtype: torch.dtype) -> Tensor:
        if self.table.dtype == dtype:
            return rows_of(self.table, positions)
        if isinstance(positions, range):
            positions = torch.arange(positions.start, positions.stop, device=self.table.device)
        exact = sinusoids(positions + self.first, self.width, self.base, sines_first=self.sines_first)  # for models in float64
        return exact.to(dtype)


class LearnedPositions(PositionEncoding):
    description = SinusoidalPositions.description

    def __init__(self, width: int, max_length: int):
        super().__init__()
        self.table = nn.Embedding(max_length, width)

    def vectors(self, positions: Tensor | range, dtype: torch.dtype) -> Tensor:
        return rows_of(self.table.weight, positions) if isinstance(positions, range) else self.table(positions)


class SinusoidalGridPositions(PositionEncoding):
    """Image patches, row by row: the sinusoids of the row beside those of the column; zeros for the tokens before the patches."""

    description = SinusoidalPositions.description

    def __init__(self, width: int, base: float, grid: tuple[int, int], prefix_tokens: int):
        super().__init__()
        row, column = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
        patches = torch.cat([sinusoids(axis.flatten(), width // 2, base) for axis in (row, column)], dim=-1)  # (N, D)
        self.table: Tensor
        self.register_buffer("table", torch.cat([patches.new_zeros(prefix_tokens, width), patches]).float(), persistent=False)

    def vectors(self, positions: Tensor | range, dtype: torch.dtype) -> Tensor:
        return rows_of(self.table, positions).to(dtype)


class TextGridPositions(PositionEncoding):
    """Text followed by an image grid, row by row: learned positions of the text, and row plus column embeddings for the grid
    (Ramesh et al. 2021, sec. 2.2)."""

    description = SinusoidalPositions.description

    def __init__(self, width: int, text: int, grid: tuple[int, int]):
        super().__init__()
        self.text, self.row, self.column = (nn.Embedding(number, width) for number in (text, *grid))

    def vectors(self, positions: Tensor | range, dtype: torch.dtype) -> Tensor:
        grid = self.row.weight[:, None] + self.column.weight  # (rows, columns, D)
        return rows_of(torch.cat([self.text.weight, grid.flatten(0, 1)]), positions)


class RotaryPositions(PositionEncoding):
    """Pair i of a head's components is rotated by p / base^(2i/K): scores depend on distance only. `scaling` slows the rotation
    down for longer texts; layers with a window may have an unscaled rotation of their own, by `local_base` (Gemma 3)."""

    description = "q and k are shown after the rotation by their positions (rotary)"

    def __init__(self, key_width: int, base: float, scaling: "RotaryScaling | None" = None, local_base: float | None = None):
        super().__init__()
        self.key_width, self.base, self.scaling, self.local_base = key_width, base, scaling, local_base

    def rotation(self, positions: Tensor, *, local: bool = False) -> Rotation:
        pair = torch.arange(0, self.key_width, 2, device=positions.device, dtype=torch.float64)
        if local and self.local_base is not None:
            divisor = self.local_base ** (pair / self.key_width)  # (K/2,)
        else:
            divisor = scale_rotation(self.base ** (pair / self.key_width), self.scaling)
        angle = positions[..., None] / divisor  # (…, T, K/2)
        angle = torch.cat([angle, angle], dim=-1)
        angle = angle if angle.dim() == 2 else angle[:, None]  # (T, K) or (B, 1, T, K)
        return angle.cos(), angle.sin()


def scale_rotation(divisor: Tensor, scaling: "RotaryScaling | None") -> Tensor:
    """Return what positions are divided by for each pair, once scaled: by the factor for all pairs (linear), or for those that
    turn slowly (llama3: the share of the unscaled rotation grows from 0 to 1 between the two frequencies)."""
    if scaling is None or scaling.kind == "none":
        return divisor
    if scaling.kind == "linear":
        return divisor * scaling.factor
    turns = scaling.original_length / (2 * math.pi * divisor)
    unscaled = ((turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency)).clamp(0, 1)
    return divisor / ((1 - unscaled) / scaling.factor + unscaled)


def apply_rotary(x: Tensor, rotation: Rotation | None) -> Tensor:
    """Rotate the two halves of every head's vector against each other: (B, H, T, K) -> (B, H, T, K)."""
    if rotation is None:
        return x
    cos, sin = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class AlibiPositions(PositionEncoding):
    """Each head h subtracts slope_h · distance from its scores; the slopes are a geometric sequence."""

    description = "positions are the bias: a slope times the distance (ALiBi)"

    def __init__(self, heads: int):
        super().__init__()
        self.slopes: Tensor
        self.register_buffer("slopes", torch.tensor(alibi_slopes(heads)), persistent=False)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        distance = (key_positions[..., None, :] - query_positions[..., :, None]).abs()  # (T, S) or (B, T, S)
        return -self.slopes[:, None, None] * distance[..., None, :, :]  # (H, T, S) or (B, H, T, S)


def alibi_slopes(heads: int) -> list[float]:
    """Return 2^(-8/n), 2^(-16/n) … for a power of two; otherwise add every other slope of the next power (the authors' rule)."""
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

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        distance = key_positions[..., None, :] - query_positions[..., :, None]  # (T, S) or (B, T, S)
        bucket = relative_position_bucket(distance, self.buckets, self.max_distance, self.causal)
        return self.table(bucket).movedim(-1, -3)  # (H, T, S) or (B, H, T, S)


def relative_position_bucket(distance: Tensor, buckets: int, max_distance: int, causal: bool) -> Tensor:
    """Return the bucket of each distance: half exact, half logarithmic up to `max_distance` (Raffel et al. 2020, sec. 2.1)."""
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
    settings: "PositionSettings", *, width: int, heads: int, key_width: int, max_length: int, causal: bool
) -> PositionEncoding:
    """Return the positions that a recipe's settings describe."""
    match settings.kind:
        case "sinusoidal":
            return SinusoidalPositions(width, settings.base, max_length, settings.sines_first, settings.first)
        case "learned":
            return LearnedPositions(width, max_length)
        case "rotary":
            return RotaryPositions(key_width, settings.base, settings.scaling, settings.local_base)
        case "alibi":
            return AlibiPositions(heads)
        case "relative":
            return RelativePositions(heads, settings.buckets, settings.max_distance, causal=causal)
        case "none":
            return PositionEncoding()


def build_grid_positions(
    settings: "GridPositionSettings", *, width: int, grid: tuple[int, int], prefix_tokens: int
) -> PositionEncoding:
    """Return the positions of an image's patches and of the class and distillation tokens before them."""
    match settings.kind:
        case "sinusoidal":
            return SinusoidalGridPositions(width, settings.base, grid, prefix_tokens)
        case "learned":
            return LearnedPositions(width, prefix_tokens + grid[0] * grid[1])
        case "none":
            return PositionEncoding()
