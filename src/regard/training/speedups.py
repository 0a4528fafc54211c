"""Choose the speed-ups of a training that the recipe leaves open: `train.cuda_graphs` and `train.compile` = "auto".

Both have a price at the start: a shape is captured after eager steps, and a compiler runs for a minute or two. The choice
follows from the recipe, the data and the kind of device alone, so that a resumed run chooses the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from regard.recipe import Training, TransformerModel
from regard.training.cuda_graphs import MAX_GRAPHS, WARMUP_CALLS

MIN_GRAPH_STEPS = 300
"""Fewer steps are over before capturing them pays."""
MIN_REPLAYED_FRACTION = 0.5
COMPILE_SECONDS = 90.0
"""Time to compile a model and its backward pass, without a cache: 60 to 120 s on the machine of RESULTS.md."""
DECODER_COMPILE_GAIN, POST_NORM_COMPILE_GAIN = 1.04, 1.18
"""How many times as fast a compiled step is as one with CUDA graphs and our own kernels, of a decoder (GPT-2 124M: 1.02 to 1.04)
and of an encoder–decoder that normalises after each sub-layer (base), on one H200 (benchmarks/gpu_training.py, RESULTS.md). All
other models are taken to gain nothing: ViT-B/16 has 0.93. Not measured since our kernels compute residual connections, norms and
activations: pre-norm and universal encoder–decoders, encoders of texts, small models such as CIFAR-10's ViT (1.5 before)."""


@dataclass(frozen=True)
class TrainingWork:
    """What the choice depends on besides the recipe."""

    device_type: str
    steps: int
    step_seconds: float | None = None
    """Estimated time of a step that is not compiled; None if unknown."""
    replayed_fraction: float = 1.0
    """The fraction of steps that CUDA graphs would replay."""
    obstacle: str | None = None
    """What takes the host into each step, so that it can be neither captured nor compiled as a whole."""
    compile_gain: float = 1.0
    compile_seconds: float = COMPILE_SECONDS


@dataclass(frozen=True)
class Speedups:
    """The speed-ups of a training, and why."""

    cuda_graphs: bool
    compile: bool
    reason: str


def choose_speedups(settings: Training, work: TrainingWork) -> Speedups:
    """Return whether to capture and to compile the steps; settings that are true or false stay so."""
    graphs, graphs_reason = _choose_cuda_graphs(work)
    compiled, compile_reason = _choose_compile(work)
    if settings.cuda_graphs != "auto":
        graphs, graphs_reason = settings.cuda_graphs, "as set"
    if settings.compile != "auto":
        compiled, compile_reason = settings.compile, "as set"
    return Speedups(
        graphs,
        compiled,
        f"{'' if graphs else 'no '}CUDA graphs ({graphs_reason}), {'' if compiled else 'not '}compiled ({compile_reason})",
    )


def _choose_cuda_graphs(work: TrainingWork) -> tuple[bool, str]:
    if work.device_type != "cuda":
        return False, "they need a GPU"
    if work.obstacle is not None:
        return False, work.obstacle
    if work.steps < MIN_GRAPH_STEPS:
        return False, f"{work.steps:,} steps are too few"
    return work.replayed_fraction >= MIN_REPLAYED_FRACTION, f"for {work.replayed_fraction:.0%} of {work.steps:,} steps"


def _choose_compile(work: TrainingWork) -> tuple[bool, str]:
    if work.device_type != "cuda":
        return False, "only GPUs gain enough"
    if work.obstacle is not None:
        return False, work.obstacle
    if work.compile_gain <= 1:
        return False, "no gain over our own kernels is known"
    if work.step_seconds is None:
        return False, "its steps cannot be estimated"
    saved = work.steps * work.step_seconds * (1 - 1 / work.compile_gain)
    return saved > work.compile_seconds, f"would save about {saved:,.0f} s, and take about {work.compile_seconds:.0f} s"


def capture_obstacle(model: nn.Module, parallel: str) -> str | None:
    """Return what takes the host into each step of a model, None if nothing does."""
    if parallel != "none":
        return "several processes"
    if hasattr(model, "begin_step"):
        return "a model with a step-dependent schedule"
    return None


def compile_gain(model: object, decoder_only: bool) -> float:
    """Return the expected speed-up of compiling the steps of a model with these settings; 1 where none was measured."""
    if isinstance(model, TransformerModel) and model.kind == "transformer" and not model.norm_first:
        return POST_NORM_COMPILE_GAIN
    recurrent = getattr(model, "kind", None) == "recurrent"
    return DECODER_COMPILE_GAIN if decoder_only and not recurrent else 1.0


def replayed_fraction(shape_counts: Iterable[int], steps: int) -> float:
    """Return the fraction of steps that CUDA graphs replay, from how often each batch shape occurs in an epoch."""
    counts = sorted(shape_counts, reverse=True)
    epochs = steps / sum(counts)
    return sum(max(0.0, count * epochs - WARMUP_CALLS) for count in counts[:MAX_GRAPHS]) / steps
