"""Searches recorded as CUDA graphs: a step of a decoder is soon computed, and launching it kernel by kernel takes far longer.

A search is one graph for its beginning and one for each step, for every step looks one token further back. A shape runs as ever
the first times it comes, is recorded then, and replayed from there on; what it reads is put in the same places each time. Nobody
asks the device anything in between: sentences that have ended stay in the batch, and what is said reaches the host some steps
later.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

WARMUP_RUNS = 2
"""Times that a shape runs as ever."""
MAX_SHAPES = 32
"""Shapes of a model that are recorded; each keeps its caches."""
MAX_STEPS = 512
"""Of a search that is recorded: every step is a graph of its own, and longer ones run as ever."""
LIMIT_MULTIPLE = 16
"""The longest limit is raised to a multiple of this, so that shapes come again; sentences keep to their own."""
HOST_LAG = 3
"""Steps that the device is ahead of what the host has read."""


class CapturableSearch(Protocol):
    """A search whose tensors keep their shapes, and which never waits for the device."""

    def begin(self) -> None: ...
    def step(self) -> Sequence[Tensor]:
        """What the host is told."""


class CudaGraphSearch:
    """One search, from its beginning to the last step that was ever needed."""

    def __init__(self, search: CapturableSearch, places: Sequence[Tensor]):
        self.search, self.places = search, places
        self.pool = torch.cuda.graph_pool_handle()
        self.begun = self.record(search.begin)
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self.told: list[list[tuple[Tensor, Tensor]]] = []
        """What each step says, on the device and on the host."""
        self.playing = False

    def record(self, work: Callable[[], Any]) -> torch.cuda.CUDAGraph:
        """Nothing is computed here."""
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            work()
        return graph

    def record_step(self) -> None:
        said: list[Tensor] = []
        self.graphs.append(self.record(lambda: said.extend(self.search.step())))
        self.told.append([(part, torch.empty(part.shape, dtype=part.dtype, pin_memory=True)) for part in said])

    def play(self, given: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
        """What is told of each step, of at most so many; who has heard enough stops asking."""
        self.playing = True
        try:
            yield from self.replay(given, most)
        finally:
            self.playing = False

    def replay(self, given: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
        with torch.inference_mode():
            for place, part in zip(self.places, given, strict=True):
                place.copy_(part)
        self.begun.replay()
        done: list[torch.cuda.Event] = []
        for number in range(most):
            if number == len(self.graphs):
                self.record_step()
            self.graphs[number].replay()
            for part, here in self.told[number]:
                here.copy_(part, non_blocking=True)
            done.append(torch.cuda.Event())
            done[-1].record()
            if number >= HOST_LAG:
                yield self.heard(number - HOST_LAG, done)
        for number in range(max(0, most - HOST_LAG), most):
            yield self.heard(number, done)

    def heard(self, number: int, done: Sequence[torch.cuda.Event]) -> list[Tensor]:
        done[number].synchronize()
        return [here for _, here in self.told[number]]


class CudaGraphCache:
    """Those of one model, whose weights lie where they lay."""

    def __init__(self, weights: tuple[int, ...] = ()):
        self.weights = weights
        self.met: Counter[Any] = Counter()
        self.tapes: dict[Any, CudaGraphSearch] = {}

    def find(
        self, longest: int, kind: Any, given: Sequence[Tensor], build: Callable[[Sequence[Tensor]], CapturableSearch]
    ) -> CudaGraphSearch | None:
        """The tape of a kind of search over tensors of these shapes, of at most so many steps; none where it is not recorded, or
        not yet, or where one is still being read. What is built must not keep the model: it would be kept for ever."""
        key = (longest, kind, tuple((tuple(part.shape), part.dtype) for part in given))
        if key not in self.tapes:
            self.met[key] += 1
            if self.met[key] <= WARMUP_RUNS or len(self.tapes) >= MAX_SHAPES or longest > MAX_STEPS:
                return None
            places = [part.clone() for part in given]
            self.tapes[key] = CudaGraphSearch(build(places), places)
        return None if self.tapes[key].playing else self.tapes[key]


def flatten_inputs(inputs: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """The tensors of what a model reads, and how others are put together likewise."""
    if inputs is None:
        return [], lambda parts: None
    parts, form = tree_flatten(inputs)
    return parts, lambda parts: tree_unflatten(parts, form)


def round_up_limit(limits: Tensor) -> int:
    return -(-int(limits.max()) // LIMIT_MULTIPLE) * LIMIT_MULTIPLE


CUDA_GRAPH_CACHES: WeakKeyDictionary[nn.Module, CudaGraphCache] = WeakKeyDictionary()


def cuda_graph_cache(model: Any, device: torch.device) -> CudaGraphCache | None:
    """Where a model's searches can be recorded: on a GPU, if it says that it can be and nobody watches."""
    if device.type != "cuda" or not getattr(model, "supports_cuda_graphs", False) or model.training:
        return None
    if any(part._forward_hooks or part._forward_pre_hooks for part in model.modules()) or torch.is_autocast_enabled("cuda"):
        return None
    weights = tuple(weight.data_ptr() for weight in chain(model.parameters(), model.buffers()))
    if model not in CUDA_GRAPH_CACHES or CUDA_GRAPH_CACHES[model].weights != weights:
        CUDA_GRAPH_CACHES[model] = CudaGraphCache(weights)
    return CUDA_GRAPH_CACHES[model]
