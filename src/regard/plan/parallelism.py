"""How a recipe spreads over several GPUs: memory, communication and time of each, in the ways there are (docs/scaling.md).

With N parameters on W GPUs, A micro-batches a step, R the parameters outside of blocks and B those of the largest block:

    ddp     keeps all 4 N bytes of weights, of gradients and so on; sends 2 (W-1)/W · 4 N bytes a step, as a ring does
    fsdp    keeps 1/W of them, and two blocks and what is outside of blocks whole; where A > 1, all gradients;
            sends (W-1)/W · 4 (2 A (N - R + L) + A R + N + K): gathered, and reduced; L are in blocks that look at a source,
            K make its keys and values
    3d      on paper only, regard does not train so: tensors cut in t, layers in p stages, d = W / (t p) copies of that
            (Narayanan et al. 2021)
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.plan.planner import Plan

GIB = 2**30
MODEL_STATES = ("parameters", "gradients", "optimiser", "moving average", "bf16 weights")


@dataclass(frozen=True)
class GpuCluster:
    """GPUs that are near one another, and those like it around."""

    name: str = "H200"
    gpus: int = 8
    memory: float = 141e9
    speed: float = 790e12
    """FLOP/s in large bf16 products."""
    utilisation: float = 0.31
    """What base reaches of it on one, recorded and compiled."""
    near: float = 360e9
    """Bytes a second that a GPU sends to others in its machine: 80% of NVLink's 450 GB/s."""
    far: float = 40e9
    """To those of other machines: 80% of 400 Gbit/s a GPU."""

    def rate(self, gpus: int) -> float:
        return self.near if gpus <= self.gpus else self.far


@dataclass(frozen=True)
class ParallelStrategy:
    """One way of spreading, for each GPU."""

    name: str
    memory: dict[str, float]
    """Bytes by purpose."""
    sent: float
    """Bytes that a GPU sends in a step, and receives."""
    computing: float
    """Seconds a step, where nothing had to be waited for."""
    waiting: float
    """Seconds a step that are not hidden behind computing."""
    room: float
    about: str

    @property
    def total(self) -> float:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.total < 0.9 * self.room  # the allocator and the kernels need the rest

    @property
    def step(self) -> float:
        return self.computing + self.waiting

    def to_json(self) -> dict[str, Any]:
        return {
            "way": self.name,
            "memory": {**self.memory, "total": self.total},
            "fits": self.fits,
            "sent_a_step": self.sent,
            "computing_seconds": self.computing,
            "waiting_seconds": self.waiting,
            "step_seconds": self.step,
            "about": self.about,
        }


def plan_parallelism(plan: "Plan", gpus: int, machine: GpuCluster | None = None) -> list[ParallelStrategy]:
    """Every way over so many GPUs."""
    machine = machine or GpuCluster()
    ways = [ddp(plan, gpus, machine), fsdp(plan, gpus, machine)]
    if not any(way.fits for way in ways) and len(stack_depths(plan)) == 1 and gpus > 1:
        ways += [tensor_pipeline_data(plan, gpus, machine)]
    return ways


def batch_fraction_per_gpu(plan: "Plan", gpus: int) -> float:
    """Of the activations of a batch; a GPU reads whole examples."""
    examples = max(1, round(plan.recipe.train.budget(max(plan.lengths)) / max(plan.lengths)))
    return math.ceil(examples / gpus) / examples


def computing(plan: "Plan", gpus: int, machine: GpuCluster) -> float:
    """The GPU with most examples is waited for."""
    return plan.flops_a_step * batch_fraction_per_gpu(plan, gpus) / (machine.speed * machine.utilisation)


def memory_by_purpose(plan: "Plan") -> dict[str, int]:
    return next(iter(plan.memory.values()))


def activation_memory_per_gpu(plan: "Plan", gpus: int) -> dict[str, float]:
    share = batch_fraction_per_gpu(plan, gpus)
    return {name: size * share for name, size in memory_by_purpose(plan).items() if name not in MODEL_STATES}


def ddp(plan: "Plan", gpus: int, machine: GpuCluster) -> ParallelStrategy:
    """Gradients are exchanged behind the backward pass, which is two thirds of the work."""
    memory = {name: float(memory_by_purpose(plan).get(name, 0)) for name in MODEL_STATES} | activation_memory_per_gpu(plan, gpus)
    sent = 2 * (gpus - 1) / gpus * 4 * plan.parameters
    work = computing(plan, gpus, machine)
    return ParallelStrategy(
        "ddp",
        drop_zeros(memory),
        sent,
        work,
        max(0.0, sent / machine.rate(gpus) - work * 2 / 3),
        machine.memory,
        "the whole model on every GPU",
    )


def fsdp(plan: "Plan", gpus: int, machine: GpuCluster) -> ParallelStrategy:
    """Weights are gathered a block ahead, behind forward and backward pass; those of a block that looks at a source once more,
    for the source's keys and values."""
    blocks = block_sizes(plan)
    crossing = [part for part in plan.components if part.place.kind == "cross-attention"]
    looking = sum(blocks[place] for place in {(part.place.stack, part.place.layer) for part in crossing})
    made = sum(part.parameters for part in crossing if part.place.step in ("keys", "values"))
    outside, largest = plan.parameters - sum(blocks.values()), max(blocks.values(), default=0)
    cast = memory_by_purpose(plan).get("bf16 weights", 0) * (largest + outside) / plan.parameters
    memory = (
        {name: memory_by_purpose(plan).get(name, 0) / gpus for name in MODEL_STATES if name != "bf16 weights"}
        | {"gathered": 4.0 * (2 * largest + outside) + 4.0 * (largest + outside), "bf16 weights": cast}
        | activation_memory_per_gpu(plan, gpus)
    )
    micro = plan.recipe.train.gradient_accumulation_steps
    if micro > 1:  # they are reduced after the last micro-batch, and whole until then
        memory["gradients"] = 4.0 * plan.parameters
    gathered = 2 * micro * (plan.parameters - outside + looking) + micro * outside
    sent = (gpus - 1) / gpus * 4 * (gathered + plan.parameters + made)
    work = computing(plan, gpus, machine)
    return ParallelStrategy(
        "fsdp",
        drop_zeros(memory),
        sent,
        work,
        max(0.0, sent / machine.rate(gpus) - work),
        machine.memory,
        "weights, gradients, optimiser sharded",
    )


def tensor_pipeline_data(plan: "Plan", gpus: int, machine: GpuCluster) -> ParallelStrategy:
    """Tensors cut inside a machine (Shoeybi et al. 2019), layers in as few stages as fit, the rest copies of that."""
    layers, width = stack_depths(plan)[0], plan.recipe.model.width
    tensor = math.gcd(machine.gpus, gpus)
    stages = [p for p in range(1, layers + 1) if layers % p == 0 and (gpus // tensor) % p == 0]
    found = [strategy_3d(plan, gpus, machine, tensor, pipeline, layers, width) for pipeline in stages]
    return next((way for way in found if way.fits), found[-1])


def strategy_3d(
    plan: "Plan", gpus: int, machine: GpuCluster, tensor: int, pipeline: int, layers: int, width: int
) -> ParallelStrategy:
    """One example at a time goes through the stages, at most as many at once as there are stages."""
    copies = gpus // (tensor * pipeline)
    examples = max(1, round(plan.tokens_a_step / max(plan.lengths)))
    micro = math.ceil(examples / copies)
    one = {
        name: size / max(1, round(plan.recipe.train.budget(max(plan.lengths)) / max(plan.lengths)))
        for name, size in memory_by_purpose(plan).items()
        if name not in MODEL_STATES
    }
    memory = {name: memory_by_purpose(plan).get(name, 0) / (tensor * pipeline) for name in MODEL_STATES} | {
        name: size / (tensor * pipeline) * min(pipeline, micro) for name, size in one.items()
    }
    inside = 4 * 2 * (tensor - 1) / tensor * 2 * max(plan.lengths) * width * layers / pipeline * micro
    between = 2 * 2 * max(plan.lengths) * width / tensor * micro if pipeline > 1 else 0.0
    gradients = 2 * (copies - 1) / copies * 4 * plan.parameters / (tensor * pipeline)
    work = plan.flops_a_step * micro * copies / examples / (gpus * machine.speed * machine.utilisation)
    bubble = work * (pipeline - 1) / micro
    waiting = bubble + inside / machine.near + (between + gradients) / machine.rate(gpus)
    return ParallelStrategy(
        f"tensor {tensor} · pipeline {pipeline} · data {copies}",
        drop_zeros(memory),
        inside + between + gradients,
        work,
        waiting,
        machine.memory,
        "on paper: regard does not train so",
    )


def block_sizes(plan: "Plan") -> Counter[tuple[str, int | None]]:
    """Parameters of every block."""
    found: Counter[tuple[str, int | None]] = Counter()
    for part in plan.components:
        if part.place.layer is not None:
            found[part.place.stack, part.place.layer] += part.parameters
    return found


def stack_depths(plan: "Plan") -> list[int]:
    """Layers of every stack."""
    return list(Counter(stack for stack, _ in block_sizes(plan)).values())


def drop_zeros(memory: dict[str, float]) -> dict[str, float]:
    return {name: size for name, size in memory.items() if size}
