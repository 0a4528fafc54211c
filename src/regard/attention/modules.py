"""Find the attention modules of a model by name, layer and pattern."""

import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import nn

from regard.attention.multihead import Attention
from regard.errors import UserError

Indices = Sequence[int] | None
NamePatterns = str | Sequence[str] | None
Module = TypeVar("Module", bound=nn.Module)


def attention_modules(model: nn.Module, layers: Indices = None, kinds: NamePatterns = None) -> dict[str, Attention]:
    """Return the attention modules of a model by names such as `decoder.blocks.0.cross_attention`."""
    found = {
        _eager_name(name).removesuffix(".attend"): module
        for name, module in model.named_modules()
        if isinstance(module, Attention)
    }
    return select_modules(found, layers, kinds)


def hidden_state_modules(model: nn.Module, layers: Indices = None, kinds: NamePatterns = None) -> dict[str, nn.Module]:
    """Return the modules whose outputs are hidden states, by name: blocks with attention in them, and recurrent layers."""
    blocks = {block.group() for name in attention_modules(model) if (block := re.match(r".*\.\d+(?=\.)", name))}
    found = {_eager_name(name): module for name, module in model.named_modules()}
    chosen = {name: module for name, module in found.items() if name in blocks or isinstance(module, nn.RNNBase)}
    return select_modules(chosen, layers, kinds)


def _eager_name(name: str) -> str:
    return name.removeprefix("_orig_mod.")  # which torch.compile puts in front


def select_modules(found: dict[str, Module], layers: Indices, kinds: NamePatterns) -> dict[str, Module]:
    """Return the modules in `layers` whose names match one of the patterns; raise UserError where no layer is there."""
    patterns = [kinds] if isinstance(kinds, str) else kinds
    try:
        chosen = {
            name: module
            for name, module in found.items()
            if (layers is None or layer_index(name) in layers)
            and (patterns is None or any(re.search(pattern, name) for pattern in patterns))
        }
    except re.error as error:
        raise UserError(
            f"kinds = {kinds!r}: not a regular expression ({error}); use names such as 'self', 'cross', 'decoder.*self'"
        ) from None
    if found and not chosen and layers is not None and not any(layer_index(name) in layers for name in found):
        numbers = sorted({number for name in found if (number := layer_index(name)) is not None})
        raise UserError(
            f"layers = {list(layers)}: the model has " + (f"{numbers[0]} to {numbers[-1]}" if numbers else "no layers")
        )
    return chosen


def layer_index(name: str) -> int | None:
    """Return the number of the layer in a module's name, if it has one."""
    number = re.search(r"\.(\d+)(\.|$)", name)
    return int(number.group(1)) if number else None


def force_eager() -> AbstractContextManager[object]:
    """Run compiled callables uncompiled, so that hooks see them; without torch._dynamo imported there are none."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
