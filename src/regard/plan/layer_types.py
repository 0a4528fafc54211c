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

from regard.attention.local_attention import block_length, scored_pairs
from regard.attention.masks import Mask
from regard.attention.multihead import MultiHead
from regard.errors import Mistake
from regard.layers.convolution import Convolution
from regard.layers.recurrent import CELLS, Carry, Recurrent
from regard.plan.throughput import helpful_threads, take_turns

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
GRID = {
    "cpu": ([32, 64, 128, 256, 512, 1024, 2048, 4096], [64, 128, 256, 512, 1024]),
    "cuda": ([128, 256, 512, 1024, 2048, 4096, 8192, 16384], [256, 512, 1024, 2048, 4096]),
}
"""Values of n and of d to time; a GPU needs larger ones before anything but starting its kernels shows."""
LARGEST = 3
"""Sizes that a slope is fitted to."""
APART = 0.25
"""A measured slope further than this from that of the count is remarked upon."""


@dataclass(frozen=True)
class Sizes:
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
                raise Mistake(f"{name} = {getattr(self, name)}: a neighbourhood has a centre and two sides; use 3, 5, 7 …")
        if self.n < 1 or self.heads < 1 or self.d < 1 or self.d % self.heads:
            raise Mistake(f"n = {self.n}, d = {self.d}, heads = {self.heads}: each is at least 1, and heads divide d")
        if self.cell not in CELLS:
            raise Mistake(f"no cell {self.cell!r}; there are: {', '.join(CELLS)}")


class LayerType(NamedTuple):
    """A row of table 1; work and path by formula and as a function of the sizes."""

    name: str
    order: str
    core: Callable[[Sizes], int]
    formula: Callable[[Sizes], str]
    exact: Callable[[Sizes], int]
    steps_order: str
    steps: Callable[[Sizes], int]
    path_order: str
    path: Callable[[Sizes], int]
    build: Callable[[Sizes], Callable[[Tensor], Tensor]]


def self_attention(s: Sizes) -> Callable[[Tensor], Tensor]:
    heads = MultiHead(s.d, s.heads)
    return lambda x: heads(x, *heads.keys_values(x))


def restricted_self_attention(s: Sizes) -> Callable[[Tensor], Tensor]:
    heads, mask = MultiHead(s.d, s.heads), Mask(window=s.window)
    return lambda x: heads(x, *heads.keys_values(x), mask=mask)


def recurrence(s: Sizes) -> Callable[[Tensor], Tensor]:
    cells = Recurrent(s.cell, s.d, s.d)

    def read(x: Tensor) -> Tensor:
        blank = x.new_zeros(x.size(0), 1, s.d)  # (B, layers, D)
        return cells(x, Carry(blank, blank if s.cell == "lstm" else None))[0]

    return read


def convolution(s: Sizes) -> Callable[[Tensor], Tensor]:
    return Convolution(s.d, s.k)


def reach(n: int, width: int) -> int:
    """Layers until the first of n positions is seen by the last, each looking half a width to either side."""
    return max(1, math.ceil(2 * (n - 1) / (width - 1)))


LAYERS = [
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
        lambda s: 4 * s.n * s.d**2 + 2 * scored_pairs(s.n, s.window) * s.d,
        "1",
        lambda s: 1,
        "n/r",
        lambda s: reach(s.n, s.r),
        restricted_self_attention,
    ),
]


@dataclass(frozen=True)
class Timing:
    """The forward pass of one sequence through one layer, again and again."""

    layer: str
    n: int
    d: int
    seconds: list[float]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        return quartiles(self.seconds)


@dataclass(frozen=True)
class Slope:
    """How the work grows with a size: the exponent in table 1, that of our count over these sizes, and the measured one."""

    layer: str
    over: str
    sizes: list[int]
    core: float
    exact: float
    measured: tuple[float, float, float]
    """Quartiles over the repeats, the median in the middle."""


@dataclass(frozen=True)
class LayersPlan:
    sizes: Sizes
    over: dict[str, list[Timing]]
    """The timings over n at the plan's d, and over d at the plan's n."""
    device: str = ""

    @property
    def slopes(self) -> list[Slope]:
        return [
            slope(kind, self.sizes, over, [t for t in timings if t.layer == kind.name])
            for over, timings in self.over.items()
            for kind in LAYERS
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
            f"p, the pairs scored with r = {s.r}: queries go in blocks of {block_length(s.window)} against the keys within "
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
                for kind in LAYERS
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


def plan_layers(
    sizes: Sizes | None = None,
    *,
    measure: bool = True,
    device: torch.device | str = "cpu",
    n: Sequence[int] | None = None,
    d: Sequence[int] | None = None,
    repeats: int = 9,
) -> LayersPlan:
    """Table 1 at these sizes; with `measure`, each layer timed over values of n at the given d, and of d at the given n."""
    sizes, device = sizes or Sizes(), torch.device(device)
    sizes.check()
    if not measure:
        return LayersPlan(sizes, {})
    usual = GRID["cuda" if device.type == "cuda" else "cpu"]
    over = {"n": [replace(sizes, n=value) for value in n or usual[0]], "d": [replace(sizes, d=value) for value in d or usual[1]]}
    for axis, points in over.items():
        if len({getattr(point, axis) for point in points}) < 2:
            raise Mistake(f"{axis} = {getattr(points[0], axis)} alone: growth shows over at least two sizes")
        for point in points:
            point.check()
    if device.type != "cpu":
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return LayersPlan(sizes, time_layers(over, device, repeats), name)
    all_threads = torch.get_num_threads()
    with helpful_threads(on(convolution(Sizes()), torch.randn(1, 512, Sizes.d))) as threads:
        name = f"cpu, {threads} of {all_threads} threads{' (more were slower)' if threads < all_threads else ''}"
        return LayersPlan(sizes, time_layers(over, device, repeats), name)


@torch.inference_mode()
def time_layers(over: dict[str, list[Sizes]], device: torch.device, repeats: int) -> dict[str, list[Timing]]:
    """All in one go, so that every layer and size takes its turn in every repeat."""
    cases = [(axis, kind, point) for axis, points in over.items() for point in points for kind in LAYERS]
    with device:
        calls = [on(kind.build(point), torch.randn(1, point.n, point.d)) for _, kind, point in cases]
    found: dict[str, list[Timing]] = {axis: [] for axis in over}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # else convolutions and cells, alone, have less than fp32
        times = take_turns(calls, device, repeats=repeats)
    for (axis, kind, point), seconds in zip(cases, times):
        found[axis].append(Timing(kind.name, point.n, point.d, seconds))
    return found


def on(layer: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    return lambda: layer(x)


def slope(kind: LayerType, sizes: Sizes, over: str, timings: list[Timing]) -> Slope:
    """Straight lines through the largest sizes, both scales logarithmic; every repeat gives a line of its own."""
    last = sorted(timings, key=lambda t: getattr(t, over))[-LARGEST:]
    values = [getattr(t, over) for t in last]
    points = [replace(sizes, **{over: value}) for value in values]
    lines = [exponent(values, seconds) for seconds in zip(*(t.seconds for t in last))]
    return Slope(
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


def about_slopes(slopes: list[Slope]) -> list[str]:
    """Where the clock disagrees with the count, and what that is likely to be."""
    apart = [
        f"{s.layer} over {s.over} ({s.measured[1]:.2f}, counted {s.exact:.2f})"
        for s in slopes
        if abs(s.measured[1] - s.exact) > APART
    ]
    if not apart:
        return []
    return [
        f"Measured exponents more than {APART} from the counted ones: {'; '.join(apart)}. Small sizes are dominated by what "
        "does not grow with them (starting kernels, the steps of a loop), which flattens the growth; work beside the matrix "
        "products, and data that outgrow a cache, steepen it."
    ]
