"""Models for use alone, packed once: linear layers in 8 bits, or everything in bf16.

A packed model stands beside the exact one. In 8 bits it shares everything with it but the linear layers, hooks among them: who
watches one watches the other. Weights have a scale for each output (Jacob et al. 2018, sec. 2.1), what they read one for all of
it, taken anew each time. A single vector is multiplied in float32 by weights of 8 bits: there, reading them is all the time it takes.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.multihead import MultiHead
from regard.errors import Mistake
from regard.layers.block import Block

PRECISIONS = ("fp32", "bf16", "int8")
FEW = 1
"""Vectors at once up to which the weights alone are of 8 bits."""


class Int8(nn.Module):
    """W x + b, packed: (…, D) -> (…, E)."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        scale = weight.abs().amax(1).clamp(min=1e-12).float() / 127               # (E,)
        self.rows = (weight / scale[:, None]).round().to(torch.int8)              # (E, D)
        self.scale, self.added = scale, bias
        zero = torch.zeros(len(scale), dtype=torch.long)
        whole = torch._make_per_channel_quantized_tensor(self.rows, scale.double(), zero, 0)
        self.packed = torch.ops.quantized.linear_prepack(whole, bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() == FEW * x.size(-1):
            y = torch._weight_int8pack_mm(x.reshape(FEW, -1), self.rows, self.scale).view(*x.shape[:-1], -1)
            return y if self.added is None else y + self.added
        return torch.ops.quantized.linear_dynamic(x, self.packed, False)


class Int8Linear(Int8):
    """In place of one layer, whose weights it still knows."""

    def __init__(self, linear: nn.Linear):
        super().__init__(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())
        self.weight, self.bias, self.out_features = linear.weight, linear.bias, linear.out_features


def packed(model: Any, precision: str, device: torch.device | None = None) -> Any:
    """The model in this precision, beside the one given; that itself where nothing changes."""
    if precision == "fp32":
        return model
    if precision == "bf16":
        return copy.deepcopy(model).to(torch.bfloat16)
    if device is not None and device.type != "cpu":
        raise Mistake(f"--precision int8 is for the CPU; on {device} use --precision bf16")
    with torch.no_grad():
        return substituted(model, {})


def substituted(module: nn.Module, known: dict[int, nn.Module]) -> nn.Module:
    """A twin of a module with packed layers; parts that have none are the same in both."""
    if id(module) in known:
        return known[id(module)]
    twin: nn.Module = module
    if type(module) is nn.Linear:
        twin = Int8Linear(module)
    elif any(type(part) is nn.Linear for part in module.modules()):
        twin = copy.copy(module)
        if isinstance(module, Block):
            known[id(module.self_attention)] = together(module.self_attention)
        twin._modules = {name: None if part is None else substituted(part, known) for name, part in module._modules.items()}
    known[id(module)] = twin
    return twin


def together(heads: MultiHead) -> MultiHead:
    """A twin of heads that look at what they ask from: queries, keys and values are one projection."""
    three, twin = (heads.to_q, heads.to_k, heads.to_v), copy.copy(heads)
    biases = [layer.bias for layer in three if layer.bias is not None]
    twin._modules = {**heads._modules, "to_out": Int8Linear(heads.to_out)}
    twin.to_all = Int8(torch.cat([layer.weight for layer in three]), torch.cat(biases) if biases else None)
    return twin
