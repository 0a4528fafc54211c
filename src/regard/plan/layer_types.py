"""Layer types compared (Vaswani et al. 2017, table 1): work, sequential steps and path length, counted and then timed.

The letters are the paper's: n tokens of width d, a convolution of width k, a neighbourhood of r. Two counts of multiplications:

    core    what table 1 counts: the one product that gives a layer its name, constants dropped
    exact   every matrix product of our layer as it runs, projections and gates included

Deviations: the recurrent layer is an LSTM unless another cell is asked for; the convolution is gated and not dilated, so that its
path is n/k long, not log_k n; the neighbourhood is computed in blocks (attention/local_attention.py).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import Mask
from regard.attention.multihead import MultiHeadAttention
from regard.attention.sparse_attention import local_attention_pairs, local_block_size
from regard.errors import UserError
from regard.layers.convolution import GatedConvolution
from regard.layers.recurrent import CELLS, RecurrentLayers, RecurrentState
from regard.plan.throughput import fastest_thread_count, time_interleaved

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
TIMING_GRID = {
    "cpu": ([32, 64, 128, 256, 512, 1024, 2048, 4096], [64, 128, 256, 512, 1024]),
    "cuda": ([128, 256, 512, 1024, 2048, 4096, 8192, 16384], [256, 512, 1024, 2048, 4096]),
}
"""Values of n and of d to time; a GPU needs larger ones before anything but starting its kernels shows."""
FITTED_SIZES = 3
"""Sizes that a slope is fitted to."""
EXPONENT_TOLERANCE = 0.25
"""A measured slope further than this from that of the count is remarked upon."""


@dataclass(frozen=True)
class LayerSizes:
    """What a layer works on and what it is made with, in the paper's letters."""

    n: int = 128
    d: int = 256
    k: int = 3
    r: int = 31
    heads: int = 4
    cell: str = "lstm"

    @property
    def window(self) -> int:
        """r as `Mask` has it."""
        return (self.r + 1) // 2

    def check(self) -> None:
        for name in ("k", "r"):
            if getattr(self, name) < 3 or getattr(self, name) % 2 == 0:
                raise UserError(f"{name} = {getattr(self, name)}: a neighbourhood has a centre and two sides; use 3, 5, 7 …")
        if self.n < 1 or self.heads < 1 or self.d < 1 or self.d % self.heads:
            raise UserError(f"n = {self.n}, d = {self.d}, heads = {self.heads}: each is at least 1, and heads divide d")
        if self.cell not in CELLS:
            raise UserError(f"no cell {self.cell!r}; there are: {', '.join(CELLS)}")


class LayerType(NamedTuple):
    """A row of table 1; work and path by formula and as a function of the sizes."""

    name: str
    order: str
    core: Callable[[LayerSizes], int]
    formula: Callable[[LayerSizes], str]
    exact: Callable[[LayerSizes], int]
    steps_order: str
    steps: Callable[[LayerSizes], int]
    path_order: str
    path: Callable[[LayerSizes], int]
    build: Callable[[LayerSizes], Callable[[Tensor], Tensor]]


def self_attention(s: LayerSizes) -> Callable[[Tensor], Tensor]:
    heads = MultiHeadAttention(s.d, s.heads)
    return lambda x: heads(x, *heads.project_kv(x))


def restricted_self_attention(s: LayerSizes) -> Callable[[Tensor], Tensor]:
    heads, mask = MultiHeadAttention(s.d, s.heads), Mask(window=s.window)
    return lambda x: heads(x, *heads.project_kv(x), mask=mask)


def recurrence(s: LayerSizes) -> Callable[[Tensor], Tensor]:
    cells = RecurrentLayers(s.cell, s.d, s.d)

    def read(x: Tensor) -> Tensor:
        blank = x.new_zeros(x.size(0), 1, s.d)  # (B, layers, D)
        return cells(x, RecurrentState(blank, blank if s.cell == "lstm" else None))[0]

    return read


def convolution(s: LayerSizes) -> Callable[[Tensor], Tensor]:
    return GatedConvolution(s.d, s.k)


def reach(n: int, width: int) -> int:
    """Layers until the first of n positions is seen by the last, each looking half a width to either side."""
    return max(1, math.ceil(2 * (n - 1) / (width - 1)))


LAYER_TYPES = [
    LayerType(
        "self-attention",
        "n²d",
        lambda s: s.n**2 * s.d,
        lambda s: "4nd² + 2n²d",
        lambda s: 4 * s.n * s.d**2 + 2 * s.n**2 * s.d,
        "1",
        lambda s: 1,
        "1",
        lambda s: 1,
        self_attention,
    ),
    LayerType(
        "recurrent",
        "nd²",
        lambda s: s.n * s.d**2,
        lambda s: f"{2 * GATES[s.cell]}nd²",
        lambda s: 2 * GATES[s.cell] * s.n * s.d**2,
        "n",
        lambda s: s.n,
        "n",
        lambda s: s.n,
        recurrence,
    ),
    LayerType(
        "convolutional",
        "knd²",
        lambda s: s.k * s.n * s.d**2,
        lambda s: "2knd²",
        lambda s: 2 * s.k * s.n * s.d**2,
        "1",
        lambda s: 1,
        "n/k",
        lambda s: reach(s.n, s.k),
        convolution,
    ),
    LayerType(
        "restricted attention",
        "rnd",
        lambda s: s.r * s.n * s.d,
        lambda s: "4nd² + 2pd",
        lambda s: 4 * s.n * s.d**2 + 2 * local_attention_pairs(s.n, s.window) * s.d,
        "1",
        lambda s: 1,
        "n/r",
        lambda s: reach(s.n, s.r),
        restricted_self_attention,
    ),
]


@dataclass(frozen=True)
class LayerTiming:
    """The forward pass of one sequence through one layer, again and again."""

    layer: str
    n: int
    d: int
    seconds: list[float]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        return quartiles(self.seconds)


@dataclass(frozen=True)
class ScalingExponent:
    """How the work grows with a size: the exponent in table 1, that of our count over these sizes, and the measured one."""

    layer: str
    over: str
    sizes: list[int]
    core: float
    exact: float
    measured: tuple[float, float, float]
    """Quartiles over the repeats, the median in the middle."""


@dataclass(frozen=True)
class LayerComparison:
    sizes: LayerSizes
    over: dict[str, list[LayerTiming]]
    """The timings over n at the plan's d, and over d at the plan's n."""
    device: str = ""

    @property
    def slopes(self) -> list[ScalingExponent]:
        return [
            fit_exponent(kind, self.sizes, over, [t for t in timings if t.layer == kind.name])
            for over, timings in self.over.items()
            for kind in LAYER_TYPES
        ]

    @property
    def notes(self) -> list[str]:
        s = self.sizes
        dilated = math.ceil(math.log(2 * s.n - 1, s.k) - 1e-9)
        told = [
            "Table 1 counts one product a layer and drops constants. Our layers have more: attention four projections, the "
            f"recurrent layer ({s.cell}) two products a gate, the convolution a gate beside its values.",
            "Steps in a row must wait for one another; the path is the steps or stacked layers from the first position to the "
            f"last. Table 1 has log_k n for convolutions, which holds for dilated ones ({dilated} layers here); ours is not.",
            f"p, the pairs scored with r = {s.r}: queries go in blocks of {local_block_size(s.window)} against the keys within "
            "reach, or all n² pairs are scored where that would not halve them.",
        ]
        if not self.over:
            return told
        repeats = min(len(t.seconds) for timings in self.over.values() for t in timings)
        told.append(
            f"Times: one sequence, forward only, fp32, {self.device}; median and quartiles of {repeats} repeats, "
            "in each of which all layers and sizes take turns."
        )
        return [*told, *about_slopes(self.slopes)]

    def to_json(self) -> dict[str, Any]:
        s = self.sizes
        return {
            **asdict(s),
            "layers": [
                {
                    "layer": kind.name,
                    "core": kind.order,
                    "core_multiplications": kind.core(s),
                    "exact": kind.formula(s),
                    "exact_multiplications": kind.exact(s),
                    "sequential_steps": kind.steps(s),
                    "path_length": kind.path(s),
                }
                for kind in LAYER_TYPES
            ],
            "device": self.device,
            "times": [
                {"over": over, **asdict(t), "low": t.quartiles[0], "median": t.quartiles[1], "high": t.quartiles[2]}
                for over, timings in self.over.items()
                for t in timings
            ],
            "slopes": [asdict(found) for found in self.slopes],
            "notes": self.notes,
        }


def compare_layer_types(
    sizes: LayerSizes | None = None,
    *,
    measure: bool = True,
    device: torch.device | str = "cpu",
    n: Sequence[int] | None = None,
    d: Sequence[int] | None = None,
    repeats: int = 9,
) -> LayerComparison:
    """Table 1 at these sizes; with `measure`, each layer timed over values of n at the given d, and of d at the given n."""
    sizes, device = sizes or LayerSizes(), torch.device(device)
    sizes.check()
    if not measure:
        return LayerComparison(sizes, {})
    usual = TIMING_GRID["cuda" if device.type == "cuda" else "cpu"]
    over = {"n": [replace(sizes, n=value) for value in n or usual[0]], "d": [replace(sizes, d=value) for value in d or usual[1]]}
    for axis, points in over.items():
        if len({getattr(point, axis) for point in points}) < 2:
            raise UserError(f"{axis} = {getattr(points[0], axis)} alone: growth shows over at least two sizes")
        for point in points:
            point.check()
    if device.type != "cpu":
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return LayerComparison(sizes, time_layers(over, device, repeats), name)
    all_threads = torch.get_num_threads()
    with fastest_thread_count(bind_input(convolution(LayerSizes()), torch.randn(1, 512, LayerSizes.d))) as threads:
        name = f"cpu, {threads} of {all_threads} threads{' (more were slower)' if threads < all_threads else ''}"
        return LayerComparison(sizes, time_layers(over, device, repeats), name)


@torch.inference_mode()
def time_layers(over: dict[str, list[LayerSizes]], device: torch.device, repeats: int) -> dict[str, list[LayerTiming]]:
    """All in one go, so that every layer and size takes its turn in every repeat."""
    cases = [(axis, kind, point) for axis, points in over.items() for point in points for kind in LAYER_TYPES]
    with device:
        calls = [bind_input(kind.build(point), torch.randn(1, point.n, point.d)) for _, kind, point in cases]
    found: dict[str, list[LayerTiming]] = {axis: [] for axis in over}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # else convolutions and cells, alone, have less than fp32
        times = time_interleaved(calls, device, repeats=repeats)
    for (axis, kind, point), seconds in zip(cases, times):
        found[axis].append(LayerTiming(kind.name, point.n, point.d, seconds))
    return found


def bind_input(layer: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    return lambda: layer(x)


def fit_exponent(kind: LayerType, sizes: LayerSizes, over: str, timings: list[LayerTiming]) -> ScalingExponent:
    """Straight lines through the largest sizes, both scales logarithmic; every repeat gives a line of its own."""
    last = sorted(timings, key=lambda t: getattr(t, over))[-FITTED_SIZES:]
    values = [getattr(t, over) for t in last]
    points = [replace(sizes, **{over: value}) for value in values]
    lines = [exponent(values, seconds) for seconds in zip(*(t.seconds for t in last))]
    return ScalingExponent(
        kind.name,
        over,
        values,
        exponent(values, map(kind.core, points)),
        exponent(values, map(kind.exact, points)),
        quartiles(lines),
    )


def exponent(sizes: Sequence[int], work: Any) -> float:
    """a in work ≈ c · size^a, by least squares."""
    return round(float(np.polyfit(np.log(sizes), np.log(list(work)), 1)[0]), 6)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, median, high = np.percentile(values, [25, 50, 75])
    return float(low), float(median), float(high)


def about_slopes(slopes: list[ScalingExponent]) -> list[str]:
    """Where the clock disagrees with the count, and what that is likely to be."""
    apart = [
        f"{s.layer} over {s.over} ({s.measured[1]:.2f}, counted {s.exact:.2f})"
        for s in slopes
        if abs(s.measured[1] - s.exact) > EXPONENT_TOLERANCE
    ]
    if not apart:
        return []
    return [
        f"Measured exponents more than {EXPONENT_TOLERANCE} from the counted ones: {'; '.join(apart)}. Small sizes "
        f"are dominated by what "
        "does not grow with them (starting kernels, the steps of a loop), which flattens the growth; work beside the matrix "
        "products, and data that outgrow a cache, steepen it."
    ]
