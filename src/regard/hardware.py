"""The device a model runs on: choose it, name it, say what runs on it."""

import importlib.util
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Thread

import torch
from torch import Tensor

from regard import distributed
from regard.errors import UserError

DEVICE_TYPES = ("cpu", "cuda", "mps")
HAS_TRITON = importlib.util.find_spec("triton") is not None
TRITON_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton runs its kernels in Python, on CPU tensors too, so that they can be tested without a GPU."""
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def choose_device(name: str = "auto") -> torch.device:
    """Return the device of that name, or with "auto" the GPU if there is one; under torchrun the device of this rank.

    Under torchrun this also initialises the process group. cuDNN's attention is switched off: it plans every new shape for about
    140 ms (H200), and sentences come in many shapes.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    distributed.init_process_group()
    if name == "cuda" and distributed.world_size() > 1:
        name = f"cuda:{distributed.local_rank()}"
    if name != "auto":
        try:
            device = torch.device(name)
            if device.type not in DEVICE_TYPES:
                raise RuntimeError(f"{device.type} is not supported")
            torch.empty(0, device=device)
            return device
        except (RuntimeError, AssertionError) as error:
            raise UserError(f"--device {name}: {str(error).splitlines()[0]}; use auto or cpu") from None
    if torch.cuda.is_available():
        return torch.device("cuda", distributed.local_rank()) if distributed.world_size() > 1 else torch.device("cuda")
    return torch.device("cpu")


def start_preparing(device: torch.device) -> Thread:
    """Prepare for training in a thread: create the context of a GPU, load its matrix products, and import what optimizers need.

    All of it takes seconds. Code that waits for a disk or for the tokenizers library leaves Python's lock to the thread.
    """

    def prepare() -> None:
        if device.type == "cuda":
            with suppress(RuntimeError, AssertionError):  # the caller meets it too, where it can be reported
                square = torch.zeros(16, 16, device=device)
                torch.mm(square, square)
        import_module("torch._dynamo")

    thread = Thread(target=prepare, name="prepare", daemon=True)
    thread.start()
    return thread


@contextmanager
def cudnn_attention(enabled: bool) -> Iterator[None]:
    """While the block runs, allow cuDNN's attention, the fastest where shapes recur, or leave it as it was."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(enabled or before)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def runs_inference_kernels(x: Tensor) -> bool:
    """Return whether Triton kernels that have no backward pass may compute from this tensor."""
    return not torch.is_grad_enabled() and _runs_kernels(x)


def runs_training_kernels(x: Tensor) -> bool:
    """Return whether Triton kernels with a backward pass may compute from this tensor, while gradients are recorded."""
    return torch.is_grad_enabled() and _runs_kernels(x)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which products read this tensor: that of autocast, if it is on, else its own."""
    kind = x.device.type
    enabled = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)  # the meta device has none
    return torch.get_autocast_dtype(kind) if enabled else x.dtype


def _runs_kernels(x: Tensor) -> bool:
    """Return whether x is of a type and on a device of Triton kernels: the current GPU; not while torch.compile traces."""
    if not HAS_TRITON or torch.compiler.is_compiling() or x.dtype not in KERNEL_DTYPES:
        return False
    return x.device.index == torch.cuda.current_device() if x.is_cuda else TRITON_INTERPRETED


def hardware(device: torch.device) -> str:
    """Return the name of the GPU, or of the CPU with its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor()}, {torch.get_num_threads()} threads"


def processor() -> str:
    """Return the model name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
