"""The precision a model is trained in. Weights, gradients and the optimiser's state stay in float32; bf16 is what layers multiply
in (autocast)."""

from typing import Any

import torch
from torch import nn

WIDE = 256
"""Width of the layers from which on a CPU gains by bf16: below, putting numbers into it takes longer than is won."""


def choose_precision(wanted: str, model: nn.Module, device: torch.device) -> str:
    """What `train.precision` means for a model on a device."""
    if wanted != "auto":
        return wanted
    return "bf16" if device.type == "cuda" or (device.type == "cpu" and has_bf16() and widest(model) >= WIDE) else "fp32"


def widest(model: nn.Module) -> int:
    """What the layers of a model read, at the most; their inner layers read more, and its output does not count."""
    return max((min(part.in_features, part.out_features) for part in model.modules() if isinstance(part, nn.Linear)), default=0)


def has_bf16() -> bool:
    """Whether this processor multiplies in bf16 by itself."""
    known: Any = torch.cpu
    return any(getattr(known, name, lambda: False)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
