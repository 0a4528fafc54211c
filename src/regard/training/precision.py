"""The precision of training, and its repetition to the bit.

Weights, gradients and the optimizer's state stay in float32; in bf16 the layers compute under autocast. Autocast launches one
kernel to cast each weight and one to cast its gradient back; `cast_weights` casts all of them at once, which is faster in small
models.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import deterministic as torch_deterministic

from regard.errors import UserError
from regard.layers.stack import Stack

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


@contextmanager
def cast_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Within the `with` block, replace the trained weights of the linear layers of all Transformer blocks by copies in this type,
    the same that autocast would make; gradients flow back to the weights."""
    layers = dict.fromkeys(layer for stack in model.modules() if isinstance(stack, Stack) for layer in stack.blocks.modules())
    places = [
        (layer, name, weight)
        for layer in layers
        if type(layer) is nn.Linear
        for name, weight in layer._parameters.items()
        if weight is not None and weight.requires_grad and weight.dtype == torch.float32
    ]
    cast: Sequence[Tensor] = _CastTogether.apply(dtype, *(weight for _, _, weight in places)) if places else ()  # type: ignore[no-untyped-call]
    try:
        for (layer, name, _), weight in zip(places, cast):
            layer._parameters[name] = weight  # type: ignore[assignment]  # as torch.func.functional_call does
        yield
    finally:
        for layer, name, weight in places:
            layer._parameters[name] = weight


class _CastTogether(torch.autograd.Function):
    """Tensors of one type -> copies in another."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = weights[0].dtype
        ctx.set_materialize_grads(False)
        return tuple(_cast(weights, dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        cast = iter(_cast([grad for grad in grads if grad is not None], ctx.dtype))
        return None, *(None if grad is None else next(cast) for grad in grads)


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    out = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(out, list(tensors))
    return out


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
