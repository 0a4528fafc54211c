"""Memory, communication and time per GPU of each way to train a recipe on several GPUs (docs/scaling.md).

With N parameters on W GPUs, A micro-batches a step, R the parameters outside of blocks and B those of the largest block:

    ddp     replicates the model states: 4 N bytes of weights, of gradients and so on; a ring all-reduce sends 2 (W-1)/W · 4 N
            bytes a step
    fsdp    shards them to 1/W; two blocks and the parameters outside of blocks are gathered at a time; with A > 1 the gradients
            stay unsharded; all-gather and reduce-scatter send (W-1)/W · 4 (2 A (N - R + L) + A R + N + K), where L are the
            parameters of blocks with cross-attention and K those of its key and value projections
    3d      tensor parallel in t, pipeline parallel in p stages, data parallel in d = W / (t p) (Narayanan et al. 2021);
            an estimate only, regard does not train this way
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.plan.throughput import H200

if TYPE_CHECKING:
    from regard.plan.planner import Plan

MODEL_STATES = ("parameters", "gradients", "optimiser", "moving average", "bf16 weights")
"""Memory that does not depend on the batch."""


@dataclass(frozen=True)
class GpuCluster:
    """Nodes of equal GPUs, with a fast interconnect inside a node and a slower one between nodes."""

    name: str = "H200"
    gpus_per_node: int = 8
    memory: float = 141e9
    speed: float = H200.speed
    """FLOP/s in large bf16 matrix products."""
    utilisation: float = H200.utilisation
    """The fraction of that speed which the products of training reach on one GPU, with CUDA graphs."""
    node_bandwidth: float = 360e9
    """Bytes per second that a GPU sends within its node: 80% of NVLink's 450 GB/s."""
    network_bandwidth: float = 40e9
    """Bytes per second that a GPU sends to other nodes: 80% of 400 Gbit/s per GPU."""

    def bandwidth(self, gpus: int) -> float:
        """Return the bandwidth of the slowest link among this many GPUs."""
        return self.node_bandwidth if gpus <= self.gpus_per_node else self.network_bandwidth


@dataclass(frozen=True)
class ParallelStrategy:
    """The cost of one strategy, per GPU."""

    name: str
    memory: dict[str, float]
    """Bytes by purpose."""
    bytes_sent: float
    """Bytes that a GPU sends (and receives) in a step."""
    compute_seconds: float
    """Seconds a step without any communication."""
    exposed_seconds: float
    """Seconds a step of communication and pipeline bubbles that do not overlap with computation."""
    capacity: float
    """Bytes of memory of a GPU."""
    description: str

    @property
    def total_memory(self) -> float:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether it fits in memory, with 10% left for the allocator and the kernels."""
        return self.total_memory < 0.9 * self.capacity

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.exposed_seconds

    def to_json(self) -> dict[str, object]:
        return {
            "strategy": self.name,
            "memory": {**self.memory, "total": self.total_memory},
            "fits": self.fits,
            "bytes_sent_per_step": self.bytes_sent,
            "compute_seconds": self.compute_seconds,
            "exposed_communication_seconds": self.exposed_seconds,
            "step_seconds": self.step_seconds,
            "description": self.description,
        }


def plan_parallelism(plan: "Plan", gpus: int, cluster: GpuCluster | None = None) -> list[ParallelStrategy]:
    """Return every strategy for this many GPUs; 3d only where no other fits."""
    cluster = cluster or GpuCluster()
    strategies = [_ddp(plan, gpus, cluster), _fsdp(plan, gpus, cluster)]
    if not any(strategy.fits for strategy in strategies) and len(stack_depths(plan)) == 1 and gpus > 1:
        strategies.append(_smallest_3d(plan, gpus, cluster))
    return strategies


def stack_depths(plan: "Plan") -> list[int]:
    """Return the number of layers of every stack."""
    return list(Counter(stack for stack, _ in _block_parameters(plan)).values())


def _block_parameters(plan: "Plan") -> Counter[tuple[str, int | None]]:
    """Return the parameters of every block."""
    found: Counter[tuple[str, int | None]] = Counter()
    for component in plan.components:
        if component.location.layer is not None:
            found[component.location.stack, component.location.layer] += component.parameters
    return found


def _batch_examples(plan: "Plan") -> int:
    return max(1, round(plan.recipe.train.budget(max(plan.lengths)) / max(plan.lengths)))


def _batch_fraction(plan: "Plan", gpus: int) -> float:
    """Return the fraction of a batch on the GPU with most examples; a GPU gets whole examples."""
    examples = _batch_examples(plan)
    return math.ceil(examples / gpus) / examples


def _memory(plan: "Plan") -> dict[str, int]:
    return next(iter(plan.memory.values()))


def _activation_memory(plan: "Plan", fraction: float) -> dict[str, float]:
    """Return the memory that grows with the batch, for a fraction of it."""
    return {name: size * fraction for name, size in _memory(plan).items() if name not in MODEL_STATES}


def _ddp(plan: "Plan", gpus: int, cluster: GpuCluster) -> ParallelStrategy:
    """Return DDP: the all-reduce of gradients overlaps with the backward pass, two thirds of the computation."""
    states = {name: float(_memory(plan).get(name, 0)) for name in MODEL_STATES}
    sent = 2 * (gpus - 1) / gpus * 4 * plan.parameters
    return _data_parallel(plan, gpus, cluster, "ddp", "the whole model on every GPU", states, sent, overlap=2 / 3)


def _fsdp(plan: "Plan", gpus: int, cluster: GpuCluster) -> ParallelStrategy:
    """Return FSDP: weights are gathered one block ahead, overlapping with forward and backward; blocks with cross-attention are
    gathered once more for the keys and values of the source."""
    blocks, states = _block_parameters(plan), _memory(plan)
    cross = [component for component in plan.components if component.location.kind == "cross-attention"]
    cross_blocks = sum(blocks[block] for block in {(one.location.stack, one.location.layer) for one in cross})
    key_value = sum(one.parameters for one in cross if one.location.operation in ("keys", "values"))
    outside, largest = plan.parameters - sum(blocks.values()), max(blocks.values(), default=0)
    memory = {name: states.get(name, 0) / gpus for name in MODEL_STATES if name != "bf16 weights"} | {
        "gathered": 4.0 * (2 * largest + outside) + 4.0 * (largest + outside),
        "bf16 weights": states.get("bf16 weights", 0) * (largest + outside) / plan.parameters,
    }
    micro_batches = plan.recipe.train.gradient_accumulation_steps
    if micro_batches > 1:  # gradients are reduced after the last micro-batch, and unsharded until then
        memory["gradients"] = 4.0 * plan.parameters
    gathered = 2 * micro_batches * (plan.parameters - outside + cross_blocks) + micro_batches * outside
    sent = (gpus - 1) / gpus * 4 * (gathered + plan.parameters + key_value)
    return _data_parallel(plan, gpus, cluster, "fsdp", "weights, gradients, optimiser sharded", memory, sent)


def _data_parallel(
    plan: "Plan",
    gpus: int,
    cluster: GpuCluster,
    name: str,
    description: str,
    states: dict[str, float],
    sent: float,
    overlap: float = 1.0,
) -> ParallelStrategy:
    """Return a strategy in which each GPU trains on its part of the batch, and all wait for the one with most examples; a part of
    the computation overlaps with communication."""
    fraction = _batch_fraction(plan, gpus)
    compute = plan.flops_per_step * fraction / (cluster.speed * cluster.utilisation)
    return ParallelStrategy(
        name=name,
        memory=_nonzero(states | _activation_memory(plan, fraction)),
        bytes_sent=sent,
        compute_seconds=compute,
        exposed_seconds=max(0.0, sent / cluster.bandwidth(gpus) - compute * overlap),
        capacity=cluster.memory,
        description=description,
    )


def _smallest_3d(plan: "Plan", gpus: int, cluster: GpuCluster) -> ParallelStrategy:
    """Return tensor parallelism within a node (Shoeybi et al. 2019), as few pipeline stages as fit, and data parallelism."""
    layers = stack_depths(plan)[0]
    tensor = math.gcd(cluster.gpus_per_node, gpus)
    stages = [p for p in range(1, layers + 1) if layers % p == 0 and (gpus // tensor) % p == 0]
    found = [_tensor_pipeline_data(plan, gpus, cluster, tensor, pipeline) for pipeline in stages]
    return next((strategy for strategy in found if strategy.fits), found[-1])


def _tensor_pipeline_data(plan: "Plan", gpus: int, cluster: GpuCluster, tensor: int, pipeline: int) -> ParallelStrategy:
    """Return 3d parallelism with micro-batches of one example, at most as many in flight as there are stages."""
    layers, width, length = stack_depths(plan)[0], plan.recipe.model.width, max(plan.lengths)
    shards, replicas = tensor * pipeline, gpus // (tensor * pipeline)
    examples = max(1, round(plan.tokens_per_step / length))
    micro_batches = math.ceil(examples / replicas)
    one = _activation_memory(plan, 1 / _batch_examples(plan))
    memory = {name: _memory(plan).get(name, 0) / shards for name in MODEL_STATES} | {
        name: size / shards * min(pipeline, micro_batches) for name, size in one.items()
    }
    tensor_bytes = 4 * 2 * (tensor - 1) / tensor * 2 * length * width * layers / pipeline * micro_batches
    pipeline_bytes = 2 * 2 * length * width / tensor * micro_batches if pipeline > 1 else 0.0
    gradient_bytes = 2 * (replicas - 1) / replicas * 4 * plan.parameters / shards
    compute = plan.flops_per_step * micro_batches * replicas / examples / (gpus * cluster.speed * cluster.utilisation)
    bubble = compute * (pipeline - 1) / micro_batches
    communication = tensor_bytes / cluster.node_bandwidth + (pipeline_bytes + gradient_bytes) / cluster.bandwidth(gpus)
    return ParallelStrategy(
        name=f"tensor {tensor} · pipeline {pipeline} · data {replicas}",
        memory=_nonzero(memory),
        bytes_sent=tensor_bytes + pipeline_bytes + gradient_bytes,
        compute_seconds=compute,
        exposed_seconds=bubble + communication,
        capacity=cluster.memory,
        description="an estimate: regard does not train this way",
    )


def _nonzero(memory: dict[str, float]) -> dict[str, float]:
    return {name: size for name, size in memory.items() if size}
