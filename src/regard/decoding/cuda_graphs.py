"""Searches captured as CUDA graphs: a decoder step is short, and launching its kernels one by one takes longer than the step.

A search is one graph for its start and one for each step, since every step attends to one more token. A shape runs eagerly the
first times it occurs, is captured then, and replayed from there on; its inputs are copied into the same buffers each time. There
is no host synchronisation between steps: sequences that have ended stay in the batch, and the outputs reach the host some steps
later, copied on a stream of their own, for which the next step does not wait.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

WARMUP_RUNS = 2
"""Times that a shape runs eagerly before it is captured."""
MAX_SHAPES = 32
"""Captured shapes per model; each keeps its caches in memory."""
MAX_STEPS = 512
"""Longest captured search: every step is a graph of its own. Longer searches run eagerly."""
HOST_LAG = 2
"""Steps that the device is ahead of the outputs that the host has read."""


class CapturableSearch(Protocol):
    """A search whose tensors keep their shapes, without host synchronisation in `start` and `step`."""

    def start(self) -> None: ...
    def step(self) -> Sequence[Tensor]:
        """Return the outputs that the host needs."""


class CudaGraphSearch:
    """One captured search, from its start to the last step that was ever needed."""

    def __init__(self, search: CapturableSearch, buffers: Sequence[Tensor]):
        self.search, self.buffers = search, buffers
        self.copy_stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.start_graph = self._capture(search.start)
        self.step_graphs: list[torch.cuda.CUDAGraph] = []
        self.outputs: list[list[tuple[Tensor, Tensor]]] = []
        """The outputs of each step, on the device and on the host."""
        self.is_replaying = False

    def _capture(self, work: Callable[[], Any]) -> torch.cuda.CUDAGraph:
        """Capture without running."""
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            work()
        return graph

    def _capture_step(self) -> None:
        outputs: list[Tensor] = []
        self.step_graphs.append(self._capture(lambda: outputs.extend(self.search.step())))
        self.outputs.append([(part, torch.empty(part.shape, dtype=part.dtype, pin_memory=True)) for part in outputs])

    def replay(self, inputs: Sequence[Tensor], max_steps: int) -> Iterator[list[Tensor]]:
        """Yield the outputs of at most `max_steps` steps; the caller stops when it has enough."""
        self.is_replaying = True
        try:
            yield from self._replay(inputs, max_steps)
        finally:
            self.is_replaying = False

    def _replay(self, inputs: Sequence[Tensor], max_steps: int) -> Iterator[list[Tensor]]:
        torch.cuda.current_stream().wait_stream(self.copy_stream)  # of a search that nobody read to its end
        with torch.inference_mode():
            for buffer, part in zip(self.buffers, inputs, strict=True):
                buffer.copy_(part)
        self.start_graph.replay()
        done: list[torch.cuda.Event] = []
        for step in range(max_steps):
            if step == len(self.step_graphs):
                self._capture_step()
            self.step_graphs[step].replay()
            done.append(self._copy_to_host(step))
            if step >= HOST_LAG:
                yield self._wait_for(step - HOST_LAG, done)
        for step in range(max(0, max_steps - HOST_LAG), max_steps):
            yield self._wait_for(step, done)

    def _copy_to_host(self, step: int) -> torch.cuda.Event:
        """Start to copy the outputs of a step; return the event of their arrival."""
        self.copy_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.copy_stream):
            for on_device, on_host in self.outputs[step]:
                on_host.copy_(on_device, non_blocking=True)
        return self.copy_stream.record_event()

    def _wait_for(self, step: int, done: Sequence[torch.cuda.Event]) -> list[Tensor]:
        done[step].synchronize()
        return [on_host for _, on_host in self.outputs[step]]


class CudaGraphCache:
    """The captured searches of one model, valid while its weights stay at the same addresses."""

    def __init__(self, weights: tuple[int, ...] = ()):
        self.weights = weights
        self.runs: Counter[Any] = Counter()
        self.searches: dict[Any, CudaGraphSearch] = {}

    def find(
        self, longest: int, kind: Any, inputs: Sequence[Tensor], build: Callable[[Sequence[Tensor]], CapturableSearch]
    ) -> CudaGraphSearch | None:
        """Return the captured search of a kind, over tensors of these shapes and of at most `longest` steps.

        Return None if it is not captured, or not yet, or while somebody still reads its outputs. What `build` returns must not
        hold a strong reference to the model, which would keep it alive for ever.
        """
        key = (longest, kind, tuple((tuple(part.shape), part.dtype) for part in inputs))
        if key not in self.searches:
            self.runs[key] += 1
            if self.runs[key] <= WARMUP_RUNS or len(self.searches) >= MAX_SHAPES or longest > MAX_STEPS:
                return None
            buffers = [part.clone() for part in inputs]
            self.searches[key] = CudaGraphSearch(build(buffers), buffers)
        return None if self.searches[key].is_replaying else self.searches[key]


def flatten_inputs(inputs: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """Return the tensors of a model's inputs, and a function that rebuilds the same structure from others."""
    if inputs is None:
        return [], lambda parts: None
    parts, structure = tree_flatten(inputs)
    return parts, lambda parts: tree_unflatten(parts, structure)


CUDA_GRAPH_CACHES: WeakKeyDictionary[nn.Module, CudaGraphCache] = WeakKeyDictionary()


def cuda_graph_cache(model: Any, device: torch.device) -> CudaGraphCache | None:
    """Return the model's captured searches; None if it cannot be captured: not on a GPU, not supported, in training, with hooks
    (somebody watches it) or under autocast."""
    if device.type != "cuda" or not getattr(model, "supports_cuda_graphs", False) or model.training:
        return None
    weights = None if torch.is_autocast_enabled("cuda") else weight_addresses(model)
    if weights is None:
        return None
    if model not in CUDA_GRAPH_CACHES or CUDA_GRAPH_CACHES[model].weights != weights:
        CUDA_GRAPH_CACHES[model] = CudaGraphCache(weights)
    return CUDA_GRAPH_CACHES[model]


def weight_addresses(model: nn.Module) -> tuple[int, ...] | None:
    """Return the addresses of all weights, None if a part of the model has hooks. It runs before every search, so that it reads
    the modules directly: `parameters()` and `modules()` take twice as long."""
    addresses: list[int] = []
    parts = [model]
    while parts:
        part = parts.pop()
        if part._forward_hooks or part._forward_pre_hooks:
            return None
        for tensors in (part._parameters, part._buffers):
            addresses.extend(tensor.data_ptr() for tensor in tensors.values() if tensor is not None)
        parts.extend(child for child in part._modules.values() if child is not None)
    return tuple(addresses)
