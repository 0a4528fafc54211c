"""Layer types compared as in Vaswani et al. 2017, table 1: complexity, sequential operations and path length, counted and timed.

The letters are the paper's: n tokens of width d, a convolution of kernel size k, a neighbourhood of size r. Two counts of
multiply–accumulate operations (MACs):

    core    what table 1 counts: the one product that characterises a layer, without constants
    exact   every matrix product of our layer as it runs, including projections and gates

Deviations: the recurrent layer is an LSTM unless another cell is chosen; the convolution is gated and not dilated, so its
path length is n/k and not log_k n; restricted attention is computed in blocks (attention/local_attention.py).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import Mask
from regard.attention.multihead import MultiHeadAttention
from regard.attention.sparse_attention import local_attention_pairs, local_block_size
from regard.errors import UserError
from regard.layers.convolution import GatedConvolution
from regard.layers.recurrent import CELLS, RecurrentLayers, RecurrentState
from regard.plan.flops import GATES
from regard.plan.throughput import fastest_thread_count, time_interleaved

TIMING_GRID = {
    "cpu": ([32, 64, 128, 256, 512, 1024, 2048, 4096], [64, 128, 256, 512, 1024]),
    "cuda": ([128, 256, 512, 1024, 2048, 4096, 8192, 16384], [256, 512, 1024, 2048, 4096]),
}
"""Values of n and of d to time; on a GPU small sizes only show the cost of kernel launches."""
FITTED_SIZES = 3
"""The number of largest sizes that an exponent is fitted to."""
EXPONENT_TOLERANCE = 0.25
"""A measured exponent further than this from the counted one is noted."""


@dataclass(frozen=True)
class LayerSizes:
    """The input and the settings of a layer, in the paper's letters."""

    n: int = 128
    d: int = 256
    k: int = 3
    r: int = 31
    heads: int = 4
    cell: str = "lstm"

    @property
    def window(self) -> int:
        """r as the window of a `Mask`."""
        return (self.r + 1) // 2

    def check(self) -> None:
        """Raise a UserError if no layer can have these sizes."""
        for name in ("k", "r"):
            if getattr(self, name) < 3 or getattr(self, name) % 2 == 0:
                raise UserError(f"{name} = {getattr(self, name)}: a neighbourhood has a centre and two sides; use 3, 5, 7 …")
        if self.n < 1 or self.heads < 1 or self.d < 1 or self.d % self.heads:
            raise UserError(f"n = {self.n}, d = {self.d}, heads = {self.heads}: use at least 1 each, and heads that divide d")
        if self.cell not in CELLS:
            raise UserError(f"no cell {self.cell!r}; choose from: {', '.join(CELLS)}")


class LayerType(NamedTuple):
    """A row of table 1: counts as formulas and as functions of the sizes, and a constructor."""

    name: str
    core_order: str
    core: Callable[[LayerSizes], int]
    exact_formula: Callable[[LayerSizes], str]
    exact: Callable[[LayerSizes], int]
    sequential_order: str
    sequential: Callable[[LayerSizes], int]
    path_order: str
    path: Callable[[LayerSizes], int]
    build: Callable[[LayerSizes], Callable[[Tensor], Tensor]]


def _attention(s: LayerSizes, mask: Mask | None = None) -> Callable[[Tensor], Tensor]:
    layer = MultiHeadAttention(s.d, s.heads)
    return lambda x: layer(x, *layer.project_kv(x), mask=mask)


def _recurrent(s: LayerSizes) -> Callable[[Tensor], Tensor]:
    layer = RecurrentLayers(s.cell, s.d, s.d)

    def forward(x: Tensor) -> Tensor:
        zeros = x.new_zeros(x.size(0), 1, s.d)  # (B, layers, D)
        output: Tensor = layer(x, RecurrentState(zeros, zeros if s.cell == "lstm" else None))[0]
        return output

    return forward


def _layers_to_reach(n: int, width: int) -> int:
    """Return how many layers with this receptive field connect the first of n positions with the last."""
    return max(1, math.ceil(2 * (n - 1) / (width - 1)))


LAYER_TYPES = [
    LayerType(
        name="self-attention",
        core_order="n²d",
        core=lambda s: s.n**2 * s.d,
        exact_formula=lambda s: "4nd² + 2n²d",
        exact=lambda s: 4 * s.n * s.d**2 + 2 * s.n**2 * s.d,
        sequential_order="1",
        sequential=lambda s: 1,
        path_order="1",
        path=lambda s: 1,
        build=_attention,
    ),
    LayerType(
        name="recurrent",
        core_order="nd²",
        core=lambda s: s.n * s.d**2,
        exact_formula=lambda s: f"{2 * GATES[s.cell]}nd²",
        exact=lambda s: 2 * GATES[s.cell] * s.n * s.d**2,
        sequential_order="n",
        sequential=lambda s: s.n,
        path_order="n",
        path=lambda s: s.n,
        build=_recurrent,
    ),
    LayerType(
        name="convolutional",
        core_order="knd²",
        core=lambda s: s.k * s.n * s.d**2,
        exact_formula=lambda s: "2knd²",
        exact=lambda s: 2 * s.k * s.n * s.d**2,
        sequential_order="1",
        sequential=lambda s: 1,
        path_order="n/k",
        path=lambda s: _layers_to_reach(s.n, s.k),
        build=lambda s: GatedConvolution(s.d, s.k),
    ),
    LayerType(
        name="restricted attention",
        core_order="rnd",
        core=lambda s: s.r * s.n * s.d,
        exact_formula=lambda s: "4nd² + 2pd",
        exact=lambda s: 4 * s.n * s.d**2 + 2 * local_attention_pairs(s.n, s.window) * s.d,
        sequential_order="1",
        sequential=lambda s: 1,
        path_order="n/r",
        path=lambda s: _layers_to_reach(s.n, s.r),
        build=lambda s: _attention(s, Mask(window=s.window)),
    ),
]


@dataclass(frozen=True)
class LayerTiming:
    """Repeated forward passes of one sequence through one layer."""

    layer: str
    n: int
    d: int
    seconds: list[float]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        return _quartiles(self.seconds)


@dataclass(frozen=True)
class ScalingExponent:
    """How the work grows with a size: the exponent of table 1, of our count over these sizes, and the measured one."""

    layer: str
    over: str
    sizes: list[int]
    core: float
    exact: float
    measured: tuple[float, float, float]
    """Quartiles over the repeats, the median in the middle."""


@dataclass(frozen=True)
class LayerComparison:
    """Table 1 at some sizes, and timings of the layers."""

    sizes: LayerSizes
    over: dict[str, list[LayerTiming]]
    """Timings over n at the given d ("n"), and over d at the given n ("d")."""
    device: str = ""

    @property
    def exponents(self) -> list[ScalingExponent]:
        return [
            _fit_exponent(layer, self.sizes, over, [t for t in timings if t.layer == layer.name])
            for over, timings in self.over.items()
            for layer in LAYER_TYPES
        ]

    @property
    def notes(self) -> list[str]:
        s = self.sizes
        dilated = math.ceil(math.log(2 * s.n - 1, s.k) - 1e-9)
        notes = [
            "Table 1 counts one product per layer and drops constants. Our layers have more: attention has four projections, the "
            f"recurrent layer ({s.cell}) two products per gate, the convolution a gate beside its values.",
            "Sequential operations cannot run in parallel; the path is the number of steps or stacked layers from the first "
            "position to the last. Table 1 has log_k n for convolutions, which holds for dilated ones "
            f"({dilated} layers here); ours is not dilated.",
            f"p is the number of pairs scored with r = {s.r}: queries in blocks of {local_block_size(s.window)} attend to the "
            "keys within reach, or all n² pairs are scored where blocks would not halve them.",
        ]
        if not self.over:
            return notes
        repeats = min(len(t.seconds) for timings in self.over.values() for t in timings)
        notes.append(
            f"Times: one sequence, forward pass only, fp32, {self.device}; median and quartiles of {repeats} repeats, "
            "each of which runs all layers and sizes in turn."
        )
        return [*notes, *_exponent_notes(self.exponents)]

    def to_json(self) -> dict[str, object]:
        s = self.sizes
        return {
            **asdict(s),
            "layers": [
                {
                    "layer": layer.name,
                    "core": layer.core_order,
                    "core_macs": layer.core(s),
                    "exact": layer.exact_formula(s),
                    "exact_macs": layer.exact(s),
                    "sequential_operations": layer.sequential(s),
                    "path_length": layer.path(s),
                }
                for layer in LAYER_TYPES
            ],
            "device": self.device,
            "times": [
                {"over": over, **asdict(t), "low": t.quartiles[0], "median": t.quartiles[1], "high": t.quartiles[2]}
                for over, timings in self.over.items()
                for t in timings
            ],
            "exponents": [asdict(exponent) for exponent in self.exponents],
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
    """Return table 1 at these sizes; with `measure`, time each layer over values of n at the given d, and of d at the given n."""
    sizes, device = sizes or LayerSizes(), torch.device(device)
    sizes.check()
    if not measure:
        return LayerComparison(sizes, {})
    grid = TIMING_GRID["cuda" if device.type == "cuda" else "cpu"]
    over = {"n": [replace(sizes, n=value) for value in n or grid[0]], "d": [replace(sizes, d=value) for value in d or grid[1]]}
    for axis, points in over.items():
        if len({getattr(point, axis) for point in points}) < 2:
            raise UserError(f"{axis} = {getattr(points[0], axis)} alone: give at least two sizes to measure growth")
        for point in points:
            point.check()
    if device.type != "cpu":
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return LayerComparison(sizes, _time_layers(over, device, repeats), name)
    all_threads = torch.get_num_threads()
    with fastest_thread_count(_bind(GatedConvolution(LayerSizes.d, LayerSizes.k), torch.randn(1, 512, LayerSizes.d))) as threads:
        name = f"cpu, {threads} of {all_threads} threads{' (more were slower)' if threads < all_threads else ''}"
        return LayerComparison(sizes, _time_layers(over, device, repeats), name)


@torch.inference_mode()
def _time_layers(over: dict[str, list[LayerSizes]], device: torch.device, repeats: int) -> dict[str, list[LayerTiming]]:
    """Time all layers and sizes together, so that each of them is measured in every repeat."""
    cases = [(axis, layer, point) for axis, points in over.items() for point in points for layer in LAYER_TYPES]
    with device:
        calls = [_bind(layer.build(point), torch.randn(1, point.n, point.d)) for _, layer, point in cases]
    found: dict[str, list[LayerTiming]] = {axis: [] for axis in over}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # TF32 would favour convolutions and recurrent cells
        times = time_interleaved(calls, device, repeats=repeats)
    for (axis, layer, point), seconds in zip(cases, times):
        found[axis].append(LayerTiming(layer.name, point.n, point.d, seconds))
    return found


def _bind(layer: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    return lambda: layer(x)


def _fit_exponent(layer: LayerType, sizes: LayerSizes, over: str, timings: list[LayerTiming]) -> ScalingExponent:
    """Return the slopes of straight lines through the largest sizes on logarithmic scales, one line per repeat."""
    last = sorted(timings, key=lambda t: getattr(t, over))[-FITTED_SIZES:]
    values = [getattr(t, over) for t in last]
    points = [replace(sizes, **{over: value}) for value in values]
    slopes = [_slope(values, seconds) for seconds in zip(*(t.seconds for t in last))]
    core, exact = _slope(values, map(layer.core, points)), _slope(values, map(layer.exact, points))
    return ScalingExponent(layer.name, over, values, core, exact, _quartiles(slopes))


def _slope(sizes: Sequence[int], work: Iterable[float]) -> float:
    """Return a in work ≈ c · size^a, by least squares."""
    return round(float(np.polyfit(np.log(sizes), np.log(list(work)), 1)[0]), 6)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, median, high = np.percentile(values, [25, 50, 75])
    return float(low), float(median), float(high)


def _exponent_notes(exponents: list[ScalingExponent]) -> list[str]:
    """Return a note on measured exponents that differ from the counted ones, and the likely reasons."""
    different = [
        f"{e.layer} over {e.over} ({e.measured[1]:.2f}, counted {e.exact:.2f})"
        for e in exponents
        if abs(e.measured[1] - e.exact) > EXPONENT_TOLERANCE
    ]
    if not different:
        return []
    return [
        f"Measured exponents more than {EXPONENT_TOLERANCE} from the counted ones: {'; '.join(different)}. Small sizes are "
        "dominated by constant costs (kernel launches, loop steps), which flatten the growth; work beside the matrix products, "
        "and data larger than a cache, steepen it."
    ]
