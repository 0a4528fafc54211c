"""Activation functions by the names that recipes give them."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

gelu_tanh: Callable[[Tensor], Tensor] = partial(F.gelu, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """Return x σ(1.702 x), the faster of the two approximations in Hendrycks & Gimpel 2016, sec. 2."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "quick_gelu": quick_gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
}
