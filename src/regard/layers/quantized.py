"""Models converted for inference: linear layers in int8, or everything in bf16.

A converted model stands beside the exact one. In int8 it shares all modules with it except the linear layers, and so their hooks:
`watch` on one watches the other. Weights have one scale per output (Jacob et al. 2018, sec. 2.1), activations one per call: the
output for a text may depend on the rest of its batch. One scale per vector takes four more small operations (RESULTS.md).
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
from regard.layers.linear import InferenceLinear

PRECISIONS = ("fp32", "bf16", "int8")
WIDE_OUTPUT, LARGE_BATCH, LARGE_BATCH_IF_WIDE = 8192, 128, 16
"""From LARGE_BATCH vectors on, oneDNN is faster than FBGEMM, where both exist; from fewer, if the output is wide."""
SMALL_BATCH_ENGINE, LARGE_BATCH_ENGINE = (
    name if name in torch.backends.quantized.supported_engines else torch.backends.quantized.engine
    for name in ("fbgemm", "onednn")
)
LINEAR_DYNAMIC = torch.ops.quantized.linear_dynamic.default._op  # skips the per-call checks of torch.ops
PREPACK_LOCK = threading.Lock()


class Int8Projection(nn.Module):
    """W x + b in int8, prepacked for an engine when it is first used: (…, D) -> (…, E)."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.scale = weight.abs().amax(1).clamp(min=1e-12).double() / 127  # (E,)
        self.int8_weight = (weight / self.scale[:, None].float()).round().to(torch.int8)  # (E, D)
        self.added_bias, self.large_batch = bias, LARGE_BATCH_IF_WIDE if len(weight) >= WIDE_OUTPUT else LARGE_BATCH
        self.prepacked: dict[str, Any] = {}

    def forward(self, x: Tensor) -> Tensor:
        engine = LARGE_BATCH_ENGINE if x.numel() >= self.large_batch * x.size(-1) else SMALL_BATCH_ENGINE
        if engine not in self.prepacked:
            self._prepack(engine)
        return LINEAR_DYNAMIC(x, self.prepacked[engine], False)

    def _prepack(self, engine: str) -> None:
        with PREPACK_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch plans to replace its quantized tensors
            before = torch.backends.quantized.engine
            torch.backends.quantized.engine = engine
            try:
                zero_points = torch.zeros_like(self.scale).long()
                weight = torch._make_per_channel_quantized_tensor(self.int8_weight, self.scale, zero_points, 0)
                self.prepacked[engine] = torch.ops.quantized.linear_prepack(weight, self.added_bias)
            finally:
                torch.backends.quantized.engine = before


class Int8Linear(Int8Projection):
    """An int8 replacement of a linear layer, which keeps its exact weights too."""

    def __init__(self, linear: nn.Linear):
        super().__init__(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())
        self.weight, self.bias, self.out_features = linear.weight, linear.bias, linear.out_features


def convert_precision(model: nn.Module, precision: str, device: torch.device | None = None) -> Any:
    """Return the model in this precision, beside the given one, which is returned itself for fp32."""
    if precision == "fp32":
        return model
    if precision == "bf16":
        return _for_inference(_fuse_projections(copy.deepcopy(model).to(torch.bfloat16)))
    if device is not None and device.type != "cpu":
        raise UserError(f"--precision int8 is for the CPU; on {device} use --precision bf16")
    with torch.no_grad():
        return _quantize(model, {})


def _quantize(module: nn.Module, done: dict[int, nn.Module]) -> nn.Module:
    """Return a copy of a module with int8 layers; modules without linear layers are shared."""
    if id(module) in done:
        return done[id(module)]
    twin: nn.Module = module
    if type(module) is nn.Linear:
        twin = Int8Linear(module)
    elif any(type(part) is nn.Linear for part in module.modules()):
        twin = copy.copy(module)
        if isinstance(module, Block):
            done[id(module.self_attention)] = _quantize_self_attention(module.self_attention)
        twin._modules = {name: None if part is None else _quantize(part, done) for name, part in module._modules.items()}
    done[id(module)] = twin
    return twin


def _quantize_self_attention(attention: MultiHeadAttention) -> MultiHeadAttention:
    """Return an int8 copy of self-attention, with one projection for queries, keys and values."""
    twin = copy.copy(attention)
    twin._modules = {**attention._modules, "out_proj": Int8Linear(attention.out_proj)}
    twin.qkv_proj = Int8Projection(*_concatenate_qkv(attention))
    return twin


class PaddedLinear(nn.Module):
    """W x + b computed with a multiple of 64 outputs, of which the extra ones are dropped: odd sizes use slow kernels."""

    def __init__(self, linear: nn.Linear, multiple: int = 64):
        super().__init__()
        self.out_features, more = linear.out_features, -linear.out_features % multiple
        self.weight = nn.Parameter(F.pad(linear.weight.detach(), (0, 0, 0, more)), requires_grad=False)
        self.bias = None if linear.bias is None else nn.Parameter(F.pad(linear.bias.detach(), (0, more)), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)[..., : self.out_features]


def _fuse_projections(model: nn.Module) -> nn.Module:
    """Give each self-attention of a model one projection for queries, keys and values, and pad its output layer; return it."""
    output = getattr(model, "output", None)
    if type(output) is nn.Linear and output.out_features >= WIDE_OUTPUT and output.out_features % 8:
        model.output = PaddedLinear(output)
    for block in model.modules():
        if isinstance(block, Block):
            weight, bias = _concatenate_qkv(block.self_attention)
            fused = nn.Linear(weight.size(1), weight.size(0), bias=bias is not None, device="meta")
            fused.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}), assign=True)
            block.self_attention.qkv_proj = fused.requires_grad_(False)
    return model


def _for_inference(model: nn.Module) -> nn.Module:
    """Turn the linear layers of a model, in place, into those for inference; return it."""
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = InferenceLinear
    return model


def _concatenate_qkv(attention: MultiHeadAttention) -> tuple[Tensor, Tensor | None]:
    """Return the weights and biases of the query, key and value projections, stacked."""
    layers = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases: list[Tensor] = [layer.bias.detach() for layer in layers if layer.bias is not None]
    return torch.cat([layer.weight.detach() for layer in layers]), torch.cat(biases) if biases else None
