"""How long a number of FLOPs takes: FLOPs / (devices · speed · utilisation).

The speed is what large matrix products reach, the utilisation the share of it that training reaches. Whether each was
measured or assumed is said beside it.
"""

import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Device:
    name: str
    speed: float
    """FLOP/s of one device in large matrix products."""
    utilisation: float
    basis: str
    """Where the two figures come from."""
    count: int = 1

    def seconds(self, flops: float) -> float:
        return flops / (self.count * self.speed * self.utilisation)


DEVICES = [
    Device("8 × P100, fp32", 9.5e12, 0.30, "9.5 as published; 30% from base's 12 h", count=8),
    Device("1 × H200, bf16", 790e12, 0.30, "790 seen in large products; 30% assumed"),
    Device("2 CPU cores, fp32", 0.1e12, 0.50, "both assumed"),
]


def training_flops(devices: int = 8, sustained: float = 9.5e12, hours: float = 12.0) -> float:
    """The 2017 paper's reckoning of a training's cost: time × devices × sustained FLOP/s (sec. 6.1, footnote 5)."""
    return devices * sustained * hours * 3600


def measure_device(seconds: float = 1.0, size: int = 1024, utilisation: float = 0.5) -> Device:
    """This machine, timed for about a second in square matrix products; the utilisation stays assumed."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size, dtype = (8 * size, torch.bfloat16) if device.type == "cuda" else (size, torch.float32)
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    fastest, end = float("inf"), time.perf_counter() + seconds
    while fastest == float("inf") or time.perf_counter() < end:
        begin = time.perf_counter()
        c = a @ b
        c[0, 0].item()                                # waits for the device
        fastest = min(fastest, time.perf_counter() - begin)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"this machine, {torch.get_num_threads()} threads"
    return Device(f"{name}, {'bf16' if device.type == 'cuda' else 'fp32'}", 2 * size ** 3 / fastest, utilisation,
                  f"measured in {size}-wide products; {utilisation:.0%} assumed")
