"""Compare regard with its peers on the same work: alternating rounds, medians with quartiles, ratios; no result on disagreement.

Every round runs each engine once, so that other load on the machine affects all of them alike. An engine's speed is the median
over the rounds; its ratio to another engine is the median of the per-round ratios, with quartiles of both. On a shared machine
the ratio of CPU times is more meaningful than that of wall-clock times.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

Work = Callable[[], Any]


class MismatchError(SystemExit):
    """Two engines with different outputs are not compared."""


def parse_args(doc: str | None, **options: Any) -> argparse.Namespace:
    """Parse the command line: a tuple is a positional choice, False a flag, a number an option with this default."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in options.items():
        if isinstance(value, tuple):
            parser.add_argument(name, choices=value)
        elif value is False:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    return parser.parse_args()


class Times(list):
    """Wall-clock seconds of each round; `cpu` has the CPU seconds of all threads."""

    def __init__(self) -> None:
        super().__init__()
        self.cpu: list[float] = []


def time_alternating(engines: Mapping[str, Work], rounds: int, *, pause: float = 0.05) -> dict[str, Times]:
    """Return the seconds of each engine in each round, after one warm-up round; threads go to sleep during the pauses."""
    times: dict[str, Times] = {name: Times() for name in engines}
    for number in range(rounds + 1):
        for name, work in engines.items():
            time.sleep(pause)
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            if number:
                times[name].append(time.perf_counter() - wall)
                times[name].cpu.append(time.process_time() - cpu)
    return times


def report(
    what: str, times: Mapping[str, Times], *, amount: float, unit: str, against: Sequence[str], agreement: str, **more: Any
) -> None:
    """Print one JSON object per engine: its throughput, and the ratio to each peer."""
    for name, seconds in times.items():
        row = {
            "what": what,
            "engine": name,
            unit: round(amount / median(seconds), 1),
            "quartiles": quartiles([amount / s for s in seconds]),
        }
        for peer in against:
            if peer in times and peer != name:
                ratios = [b / a for a, b in zip(seconds, times[peer])]
                row[f"times {peer}"] = round(median(ratios), 2)
                row[f"times {peer}, quartiles"] = quartiles(ratios, 2)
                row[f"times {peer}, by CPU time"] = round(median(b / a for a, b in zip(seconds.cpu, times[peer].cpu)), 2)
        print(
            json.dumps(
                {**row, **more, "agreement": agreement, "rounds": len(seconds), "load": round(os.getloadavg()[0], 2)},
                ensure_ascii=False,
            ),
            flush=True,
        )


def quartiles(values: Sequence[float], digits: int = 1) -> list[float]:
    """Return the lower and the upper quartile."""
    if len(values) < 2:
        return [round(values[0], digits)] * 2
    low, _, high = quantiles(values, n=4, method="inclusive")
    return [round(low, digits), round(high, digits)]


def require_close(ours: Any, theirs: Any, tolerance: float, what: str, *, relative: bool = False) -> str:
    """Refuse tensors that differ by more than a tolerance, in one entry or (`relative`) in norm; return a description."""
    if ours.shape != theirs.shape:
        raise MismatchError(f"{what}: shapes {tuple(ours.shape)} and {tuple(theirs.shape)}; no result")
    error = ours.float() - theirs.float()
    difference = float(error.norm() / theirs.float().norm() if relative else error.abs().max())
    if not difference <= tolerance:
        raise MismatchError(f"{what}: difference {difference:.2e}, more than {tolerance:.0e}; no result")
    return f"{what} within {difference:.1e}"


def print_kernels(work: Work, number: int = 25) -> None:
    """Print the GPU kernels of one piece of work: milliseconds and launches of each, and the sums by kind."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
    events = [event for event in profiled.key_averages() if event.self_device_time_total > 0]  # no calls of the runtime
    kernels = sorted(events, key=lambda kernel: -kernel.self_device_time_total)
    kinds: dict[str, float] = {}
    for kernel in kernels:
        kinds[_kernel_kind(kernel.key)] = kinds.get(_kernel_kind(kernel.key), 0.0) + kernel.self_device_time_total / 1000
    total, launches = sum(kinds.values()), sum(kernel.count for kernel in kernels)
    print(f"{total:.2f} ms in {launches} kernels: " + ", ".join(f"{kind} {ms:.2f}" for kind, ms in kinds.items()))
    for kernel in kernels[:number]:
        print(f"{kernel.self_device_time_total / 1000:9.3f} ms {kernel.count:5}  {kernel.key[:110]}")


def _kernel_kind(name: str) -> str:
    lower = name.lower()
    if any(part in lower for part in ("flash", "fmha", "sdpa", "attention", "attend")):
        return "attention"
    if any(part in lower for part in ("gemm", "nvjet", "cutlass", "splitk", "cublas", "gemv", "linear_kernel")):
        return "products"
    if any(part in lower for part in ("memcpy", "memset", "copy")):
        return "copies"
    return "optimizer" if "multi_tensor" in lower else "element-wise"
