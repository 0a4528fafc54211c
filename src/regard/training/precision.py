"""The precision of training, and its repetition to the bit.

Weights, gradients and the optimizer's state stay in float32; in bf16 the layers compute under autocast.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import deterministic as torch_deterministic

from regard.errors import UserError

NO_DETERMINISTIC = "does not have a deterministic implementation"
MIN_WIDTH_FOR_BF16 = 256
"""Layer width from which a CPU is faster in bf16; below it, the conversion costs more than it saves."""


REPEATABLE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TORCHINDUCTOR_DETERMINISTIC": "1"}
"""With these, cuBLAS and torch.compile choose the same kernels in every run; they are read when either is first used."""


@contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Let torch use deterministic algorithms only, without autotuning, as long as the block lasts (`train.deterministic`)."""
    if not enabled:
        yield
        return
    for name, value in REPEATABLE.items():
        os.environ.setdefault(name, value)
    cudnn = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), torch_deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    cudnn_before = cudnn.benchmark, cudnn.deterministic
    torch.use_deterministic_algorithms(True)
    torch_deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing here reads it
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    except RuntimeError as error:
        if NO_DETERMINISTIC not in str(error):
            raise
        raise UserError(f"train.deterministic = true: {str(error).split('.')[0]}; set it to false") from None
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch_deterministic.fill_uninitialized_memory = before[1]  # type: ignore[attr-defined]
        cudnn.benchmark, cudnn.deterministic = cudnn_before


def choose_precision(setting: str, model: nn.Module, device: torch.device) -> str:
    """Return the precision that `train.precision` stands for: "bf16" or "fp32"."""
    if setting != "auto":
        return setting
    fast_on_cpu = device.type == "cpu" and cpu_has_bf16() and model_width(model) >= MIN_WIDTH_FOR_BF16
    return "bf16" if device.type == "cuda" or fast_on_cpu else "fp32"


def model_width(model: nn.Module) -> int:
    """Return the largest narrow side of a model's linear layers, which leaves out feed-forward and vocabulary sizes."""
    return max((min(part.in_features, part.out_features) for part in model.modules() if isinstance(part, nn.Linear)), default=0)


def cpu_has_bf16() -> bool:
    """Return whether this processor has bf16 instructions."""
    cpu: Any = torch.cpu
    return any(getattr(cpu, name, lambda: False)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
