"""Where attention is in a model: places by name, chosen by layer and pattern."""

import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from regard.attention.multihead import Attention
from regard.errors import UserError

Indices = Sequence[int] | None
NamePatterns = str | Sequence[str] | None


def attention_modules(model: nn.Module, layers: Indices = None, kinds: NamePatterns = None) -> dict[str, Attention]:
    """The named places of attention in a model, such as `decoder.blocks.0.cross_attention`."""
    found = {
        plain(name).removesuffix(".attend"): module for name, module in model.named_modules() if isinstance(module, Attention)
    }
    return select_modules(found, layers, kinds)


def hidden_state_modules(model: nn.Module, layers: Indices = None, kinds: NamePatterns = None) -> dict[str, nn.Module]:
    """The named modules whose outputs are hidden states: blocks with attention in them, and recurrent cells."""
    blocks = {above.group() for name in attention_modules(model) if (above := re.match(r".*\.\d+(?=\.)", name))}
    return select_modules(
        {
            plain(name): module
            for name, module in model.named_modules()
            if plain(name) in blocks or isinstance(module, nn.RNNBase)
        },
        layers,
        kinds,
    )


def plain(name: str) -> str:
    return name.removeprefix("_orig_mod.")  # what torch.compile puts around a module


def select_modules(found: dict[str, Any], layers: Indices, kinds: NamePatterns) -> dict[str, Any]:
    """Those of the chosen layers whose names match one of the patterns. Where there is anything, something has to be chosen."""
    patterns = [kinds] if isinstance(kinds, str) else kinds
    try:
        chosen = {
            name: module
            for name, module in found.items()
            if (layers is None or layer_index(name) in layers)
            and (patterns is None or any(re.search(pattern, name) for pattern in patterns))
        }
    except re.error as error:
        raise UserError(f"kinds = {kinds!r}: no pattern of a name ({error}); such as 'self', 'cross', 'decoder.*self'") from None
    if found and not chosen and layers is not None and not any(layer_index(name) in layers for name in found):
        numbers = sorted({number for name in found if (number := layer_index(name)) is not None})
        raise UserError(
            f"layers = {list(layers)}: the model has " + (f"{numbers[0]} to {numbers[-1]}" if numbers else "no layers")
        )
    return chosen


def layer_index(name: str) -> int | None:
    number = re.search(r"\.(\d+)(\.|$)", name)
    return int(number.group(1)) if number else None


def force_eager() -> AbstractContextManager:
    """Compiled callables run their module; there are none where nothing has imported the compiler."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
