"""The time that a number of FLOPs takes: FLOPs / (devices · speed · utilisation).

The speed is what large matrix products reach, and the utilisation the fraction of it that training reaches (MFU relative to
that speed, not to the vendor's peak). Each figure says whether it was measured or assumed. Measured calls are interleaved.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DeviceSpeed:
    """How fast one or several equal devices train."""

    name: str
    speed: float
    """FLOP/s of one device in large matrix products."""
    utilisation: float
    basis: str
    """Where the two figures come from."""
    count: int = 1
    seconds_per_operation: float = 0.0
    """Time of the host to launch one operation of the forward or backward pass, with all that a step does besides."""
    seconds_per_captured_operation: float = 0.0
    """What an operation takes beside its FLOPs in a CUDA graph: reading, writing, and the gap after it."""

    def seconds(self, flops: float) -> float:
        """Return the time that these FLOPs take in training."""
        return flops / (self.count * self.speed * self.utilisation)

    def step_seconds(self, flops: float, operations: int, *, captured: bool = False) -> float:
        """Return the time of a step: that of its FLOPs and its single operations or, if they are not captured and it is longer,
        that of launching them one by one. Compiling it changes less than this estimate can be off."""
        seconds = self.seconds(flops) + operations * self.seconds_per_captured_operation
        return seconds if captured else max(seconds, operations * self.seconds_per_operation)


H200 = DeviceSpeed(
    "1 × H200, bf16",
    790e12,
    0.57,
    "790 measured in large products; 57% and 12 µs per operation fitted to GPT-2, ViT, base and Multi30k",
    seconds_per_operation=85e-6,  # these three are fitted to RESULTS.md (tests/plan/test_step_time.py has the points)
    seconds_per_captured_operation=12e-6,
)
DEVICES = [
    DeviceSpeed("8 × P100, fp32", 9.5e12, 0.30, "9.5 as published; 30% from base's 12 h", count=8),
    H200,
    DeviceSpeed("2 CPU cores, fp32", 0.1e12, 0.50, "both assumed"),
]


def flops_from_time(devices: int = 8, sustained: float = 9.5e12, hours: float = 12.0) -> float:
    """Return a training cost as in Vaswani et al. 2017 (sec. 6.1, footnote 5): time × devices × sustained FLOP/s."""
    return devices * sustained * hours * 3600


def measure_device(
    device: torch.device, precision: str, *, seconds: float = 1.0, size: int | None = None, utilisation: float = 0.5
) -> DeviceSpeed:
    """Return the speed of this machine, timed for about a second in square matrix products; the utilisation remains assumed."""
    dtype, size = torch.bfloat16 if precision == "bf16" else torch.float32, size or (1024 if device.type == "cpu" else 8192)
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    fastest, end = float("inf"), time.perf_counter() + seconds
    while fastest == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        c = a @ b
        c[0, 0].item()  # synchronises with the device
        fastest = min(fastest, time.perf_counter() - start)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"this machine, {torch.get_num_threads()} threads"
    basis = f"measured in {size}-wide products; {utilisation:.0%} assumed"
    return DeviceSpeed(f"{name}, {precision}", 2 * size**3 / fastest, utilisation, basis)


def time_interleaved(
    calls: Sequence[Callable[[], object]],
    device: torch.device,
    *,
    repeats: int = 9,
    min_seconds: float = 2e-3,
    max_seconds: float = 12.0,
) -> list[list[float]]:
    """Return the seconds per call, [call][repeat].

    Every repeat runs all calls in turn, so that a busy spell of the machine affects all of them. A measurement is as many
    calls as fill `min_seconds`; after `max_seconds` there are no more repeats, but at least 3.
    """

    def measure(call: Callable[[], object], number: int) -> float:
        _synchronize(device)
        start = time.perf_counter()
        for _ in range(number):
            call()
        _synchronize(device)
        return (time.perf_counter() - start) / number

    for call in calls:
        measure(call, 1)  # warm-up
    numbers = [max(1, round(min_seconds / measure(call, 1))) for call in calls]
    found: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + max_seconds
    for repeat in range(repeats):
        if repeat >= 3 and time.perf_counter() > end:
            break
        for times, call, number in zip(found, calls, numbers):
            times.append(measure(call, number))
    return found


@contextmanager
def fastest_thread_count(call: Callable[[], object]) -> Iterator[int]:
    """Use all of torch's threads, or one if `call` is faster with it (on a busy machine threads wait for one another)."""
    usual, cpu = torch.get_num_threads(), torch.device("cpu")
    seconds = {}
    try:
        for number in dict.fromkeys((usual, 1)):
            torch.set_num_threads(number)
            seconds[number] = statistics.median(time_interleaved([call], cpu, repeats=5, min_seconds=0.0)[0])
        best = min(seconds, key=lambda number: seconds[number])
        torch.set_num_threads(best)
        yield best
    finally:
        torch.set_num_threads(usual)


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
