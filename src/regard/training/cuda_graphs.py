"""Steps recorded as CUDA graphs: what a small model computes is soon done, and launching it kernel by kernel takes longer.

A shape of batch runs as ever the first times it comes (kernels are chosen, the optimiser makes its state), is recorded then and
replayed from there on. The random numbers of a replay follow the generator's seed, as those of a plain step do.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.batches.batch import Batch, MixedLabels

StepFunction = Callable[[Sequence[Batch], Tensor], Tensor]
WARMUP_CALLS = 2
"""Times that a shape runs as ever."""
MAX_GRAPHS = 96
"""Shapes that are recorded; each keeps its batch, and all share their memory."""


class CudaGraphedStep:
    """The same work, replayed wherever the shapes were met before. Everything it changes is changed in place."""

    def __init__(self, work: StepFunction):
        self.work = work
        self.met: Counter[tuple] = Counter()
        self.graphs: dict[tuple, tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, batches: Sequence[Batch], count: Tensor) -> Tensor:
        shape = tuple((tuple(part.shape), part.dtype) for part in parts_of(batches))
        if shape not in self.graphs:
            self.met[shape] += 1
            if self.met[shape] <= WARMUP_CALLS or len(self.graphs) >= MAX_GRAPHS:
                return self.work(batches, count)
            self.graphs[shape] = self.record(batches, count)
        graph, places, result = self.graphs[shape]
        for place, part in zip(places, [*parts_of(batches), count]):  # torch._foreach_copy_ wants one type for all
            place.copy_(part)
        graph.replay()
        return result

    def record(self, batches: Sequence[Batch], count: Tensor) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]:
        """Nothing is computed here. Threads that prepare batches may go on."""
        own, count = [copied(batch) for batch in batches], count.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            result = self.work(own, count)
        return graph, [*parts_of(own), count], result


def parts_of(batches: Sequence[Batch]) -> list[Tensor]:
    """Every tensor of some batches, in one order."""
    return [part for batch in batches for part in (*batch.inputs.values(), batch.labels, *mixed(batch.mixture))]


def mixed(mixture: MixedLabels | None) -> tuple[Tensor, ...]:
    return () if mixture is None else (mixture.other, mixture.share)


def copied(batch: Batch) -> Batch:
    mixture = batch.mixture and MixedLabels(batch.mixture.other.clone(), batch.mixture.share.clone())
    return replace(
        batch, inputs={name: part.clone() for name, part in batch.inputs.items()}, labels=batch.labels.clone(), mixture=mixture
    )
