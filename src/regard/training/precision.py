"""The precision of training. Weights, gradients and the optimizer's state stay in float32; in bf16 the layers compute under
autocast."""

from typing import Any

import torch
from torch import nn

MIN_WIDTH_FOR_BF16 = 256
"""Layer width from which a CPU is faster in bf16; below it, the conversion costs more than it saves."""


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
