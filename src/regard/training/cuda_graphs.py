"""Faster steps: objectives under torch.compile, and steps captured as CUDA graphs.

A small model computes faster than its kernels can be launched one by one. The first times a batch shape occurs, the step runs
eagerly (kernels are chosen, the optimizer allocates its state); then it is captured, and replayed from there on. A replay's
random numbers follow the generator's seed, as those of an eager step do.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.batches.batch import Batch, MixedLabels
from regard.training.losses import Objective

StepFunction = Callable[[Sequence[Batch], Tensor], Tensor]
BatchShape = tuple[tuple[tuple[int, ...], torch.dtype], ...]
WARMUP_CALLS = 2
"""Eager calls of a shape before it is captured."""
MAX_GRAPHS = 96
"""Shapes that are captured; each keeps its own batch, and all share one memory pool."""


class CompiledObjective:
    """An objective under torch.compile; the model itself is left as it is for hooks and inspection.

    It is compiled for any shape or, where nearly all batches have one shape, for this `only_shape`: the few other batches run
    eagerly, since compiling for them would take longer than it saves. What is compiled and what is not must follow from the batch
    alone, not from the batches before it: only then is a resumed run bit-exact.
    """

    def __init__(self, objective: Objective, only_shape: BatchShape | None = None):
        self.objective, self.only_shape = objective, only_shape
        self.compiled = torch.compile(lambda model, batch: objective(model, batch), dynamic=only_shape is None)

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        eager = self.only_shape is not None and batch_shape([batch]) != self.only_shape
        return self.objective(model, batch) if eager else self.compiled(model, batch)


class CudaGraphedStep:
    """A step function that is replayed from a CUDA graph for every known batch shape. It must change everything in place.

    It runs in a stream of its own, since the default stream cannot be captured. A step in which the host waits for the device
    cannot be captured either: the last eager call of a shape finds out, and notes it.
    """

    def __init__(self, function: StepFunction, note: Callable[[str], None], device: torch.device):
        self.function, self.note, self.capturable = function, note, True
        self.calls: Counter[BatchShape] = Counter()
        self.graphs: dict[BatchShape, tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]] = {}
        self.pool, self.stream = torch.cuda.graph_pool_handle(), new_stream(device)

    def __call__(self, batches: Sequence[Batch], count: Tensor) -> Tensor:
        before = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(before)
        with torch.cuda.stream(self.stream):
            output = self.replay(batches, count)
        before.wait_stream(self.stream)
        return output

    def replay(self, batches: Sequence[Batch], count: Tensor) -> Tensor:
        """Replay the step of a known shape; run that of a new one eagerly or, after some eager calls, capture it first."""
        shape = batch_shape(batches)
        if shape not in self.graphs:
            self.calls[shape] += 1
            if self.calls[shape] == WARMUP_CALLS and self.capturable:
                return self.check_synchronisation(batches, count)
            if self.calls[shape] <= WARMUP_CALLS or len(self.graphs) >= MAX_GRAPHS or not self.capturable:
                return self.function(batches, count)
            self.graphs[shape] = self.capture(batches, count)
        graph, static_inputs, output = self.graphs[shape]
        for static, tensor in zip(static_inputs, [*_tensors(batches), count]):  # torch._foreach_copy_ needs one dtype for all
            static.copy_(tensor)
        graph.replay()
        return output

    def check_synchronisation(self, batches: Sequence[Batch], count: Tensor) -> Tensor:
        """Run a step eagerly, and see whether the host waits for the device in it."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                output = self.function(batches, count)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        if any("called a synchronizing CUDA operation" in str(warning.message) for warning in caught):
            self.capturable = False
            self.note("the host waits for the device in each step, which cannot be captured; training without CUDA graphs")
        return output

    def capture(self, batches: Sequence[Batch], count: Tensor) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]:
        """Capture a step without running it; return the graph, its static inputs and its output. Other threads may go on."""
        batches, count = [_clone(batch) for batch in batches], count.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            output = self.function(batches, count)
        return graph, [*_tensors(batches), count], output


def batch_shape(batches: Sequence[Batch]) -> BatchShape:
    """Return the shapes and types of all tensors of some batches."""
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in _tensors(batches))


def _tensors(batches: Sequence[Batch]) -> list[Tensor]:
    """Return every tensor of some batches, in a fixed order."""
    return [
        tensor
        for batch in batches
        for tensor in (
            *batch.inputs.values(),
            batch.labels,
            *(() if batch.mixture is None else (batch.mixture.other, batch.mixture.weight)),
        )
    ]


def _clone(batch: Batch) -> Batch:
    mixture = batch.mixture and MixedLabels(batch.mixture.other.clone(), batch.mixture.weight.clone())
    inputs = {name: tensor.clone() for name, tensor in batch.inputs.items()}
    return replace(batch, inputs=inputs, labels=batch.labels.clone(), mixture=mixture)


def new_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a new stream of a GPU."""
    make_stream: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
    return make_stream(device)
