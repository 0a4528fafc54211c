"""Low-rank adaptation (LoRA, Hu et al. 2022): W x + α/r · B A x, with W frozen, A (r × inputs) and B (outputs × r) trained."""

import math
from collections.abc import Collection

import torch.nn.functional as F
from torch import Tensor, nn


class LoraLinear(nn.Linear):
    """A linear layer with a low-rank adapter. B starts at zero, so that the layer starts as it was."""

    lora_A: nn.Parameter
    lora_B: nn.Parameter

    def __init__(self, base: nn.Linear, rank: int, scale: float, dropout: float = 0.0):
        super().__init__(base.in_features, base.out_features, bias=base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.scale, self.dropout = scale, dropout
        self.lora_A = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))  # as nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        adapted = F.linear(F.linear(F.dropout(x, self.dropout, self.training), self.lora_A), self.lora_B)
        return super().forward(x) + self.scale * adapted


def add_lora(model: nn.Module, names: Collection[str], rank: int, scale: float, dropout: float = 0.0) -> list[str]:
    """Give an adapter to every linear layer of the blocks whose last name is one of `names`; return the paths of these layers."""
    found = [
        (path, layer)
        for path, layer in model.named_modules()
        if ".blocks." in path and path.rpartition(".")[2] in names and type(layer) is nn.Linear
    ]
    for path, layer in found:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, LoraLinear(layer, rank, scale, dropout))
    return [path for path, _ in found]


def merge_lora(weights: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return the weights of the model without adapters: W + α/r · B A."""
    merged = {name: tensor for name, tensor in weights.items() if not is_adapter(name)}
    for name in weights:
        if name.endswith(".lora_A"):
            path = name.removesuffix(".lora_A")
            A, B, W = weights[name], weights[f"{path}.lora_B"], weights[f"{path}.weight"]
            merged[f"{path}.weight"] = (W.double() + scale * (B.double() @ A.double())).to(W.dtype)
    return merged


def is_adapter(name: str) -> bool:
    """Return whether a weight belongs to an adapter."""
    return name.endswith((".lora_A", ".lora_B"))
