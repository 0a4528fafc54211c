"""Models for use alone, packed once: linear layers in 8 bits, or everything in bf16.

A packed model stands beside the exact one. In 8 bits it shares everything with it but the linear layers, hooks among them: who
watches one watches the other. Weights have a scale for each output (Jacob et al. 2018, sec. 2.1), what they read one for all of
it, taken anew each time.
"""

import copy
import threading
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.multihead import MultiHeadAttention
from regard.errors import UserError
from regard.layers.block import Block

PRECISIONS = ("fp32", "bf16", "int8")
WIDE, MANY, MANY_IF_WIDE = 8192, 128, 16
"""Vectors at once from which on oneDNN multiplies faster than FBGEMM, where there are both; fewer, where the outputs are many."""
SMALL_BATCH_ENGINE, LARGE_BATCH_ENGINE = (
    name if name in torch.backends.quantized.supported_engines else torch.backends.quantized.engine
    for name in ("fbgemm", "onednn")
)
MULTIPLY = torch.ops.quantized.linear_dynamic.default._op  # without what torch.ops looks at on every call
PACKING = threading.Lock()


class Int8Projection(nn.Module):
    """W x + b, packed when it is first read by so few or so many: (…, D) -> (…, E)."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.scale = weight.abs().amax(1).clamp(min=1e-12).double() / 127  # (E,)
        self.rows = (weight / self.scale[:, None].float()).round().to(torch.int8)  # (E, D)
        self.added, self.many = bias, MANY_IF_WIDE if len(weight) >= WIDE else MANY
        self.packed: dict[str, Any] = {}

    def forward(self, x: Tensor) -> Tensor:
        kernel = LARGE_BATCH_ENGINE if x.numel() >= self.many * x.size(-1) else SMALL_BATCH_ENGINE
        if kernel not in self.packed:
            self.pack(kernel)
        return MULTIPLY(x, self.packed[kernel], False)

    def pack(self, kernel: str) -> None:
        with PACKING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch means to put other tensors in the place of its quantized ones
            before = torch.backends.quantized.engine
            torch.backends.quantized.engine = kernel
            try:
                whole = torch._make_per_channel_quantized_tensor(self.rows, self.scale, torch.zeros_like(self.scale).long(), 0)
                self.packed[kernel] = torch.ops.quantized.linear_prepack(whole, self.added)
            finally:
                torch.backends.quantized.engine = before


class Int8Linear(Int8Projection):
    """In place of one layer, whose weights it still knows."""

    def __init__(self, linear: nn.Linear):
        super().__init__(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())
        self.weight, self.bias, self.out_features = linear.weight, linear.bias, linear.out_features


def convert_precision(model: Any, precision: str, device: torch.device | None = None) -> Any:
    """The model in this precision, beside the one given; that itself where nothing changes."""
    if precision == "fp32":
        return model
    if precision == "bf16":
        return joined(copy.deepcopy(model).to(torch.bfloat16))
    if device is not None and device.type != "cpu":
        raise UserError(f"--precision int8 is for the CPU; on {device} use --precision bf16")
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


def together(heads: MultiHeadAttention) -> MultiHeadAttention:
    """A twin of heads that look at what they ask from: queries, keys and values are one projection."""
    twin = copy.copy(heads)
    twin._modules = {**heads._modules, "out_proj": Int8Linear(heads.out_proj)}
    twin.qkv_proj = Int8Projection(*three(heads))
    return twin


class PaddedLinear(nn.Module):
    """W x + b with a few outputs more, which are left out again: an odd number of them is given to a slow kernel."""

    def __init__(self, linear: nn.Linear, multiple: int = 64):
        super().__init__()
        self.out_features, more = linear.out_features, -linear.out_features % multiple
        self.weight = nn.Parameter(F.pad(linear.weight.detach(), (0, 0, 0, more)), requires_grad=False)
        self.bias = None if linear.bias is None else nn.Parameter(F.pad(linear.bias.detach(), (0, more)), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)[..., : self.out_features]


def joined(model: nn.Module) -> nn.Module:
    """The model itself, whose heads that look at what they ask from have one projection, and whose output is of an even size."""
    if type(output := getattr(model, "output", None)) is nn.Linear and output.out_features >= WIDE and output.out_features % 8:
        model.output = PaddedLinear(output)
    for block in model.modules():
        if isinstance(block, Block):
            weight, bias = three(block.self_attention)
            whole = nn.Linear(weight.size(1), weight.size(0), bias=bias is not None, device="meta")
            whole.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}), assign=True)
            block.self_attention.qkv_proj = whole.requires_grad_(False)
    return model


def three(heads: MultiHeadAttention) -> tuple[Tensor, Tensor | None]:
    """The weights and biases of queries, keys and values, one below the other."""
    layers = (heads.q_proj, heads.k_proj, heads.v_proj)
    biases: list[Tensor] = [layer.bias.detach() for layer in layers if layer.bias is not None]
    return torch.cat([layer.weight.detach() for layer in layers]), torch.cat(biases) if biases else None
