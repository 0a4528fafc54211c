"""Find the attention modules of a model by name, layer and pattern."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from torch import nn

from regard.attention.multihead import Attention
from regard.errors import UserError

Indices = Sequence[int] | None
NamePatterns = str | Sequence[str] | None
Module = TypeVar("Module", bound=nn.Module)
STACK_NAMES = {
    "cross": "cross-attention",
    "encoder": "self-attention of the encoder",
    "decoder": "self-attention of the decoder",
    "text": "self-attention",
}
"""How the attention of each stack is called in every output."""
ATTENTION_CLASS = re.compile(r"attention|attend|attn", re.IGNORECASE)


class AttentionHook:
    """A hook that follows which module runs and leaves its tensors alone: no model leaves its fast path because of it."""

    def __init__(self, function: Callable[..., None]):
        self.function = function

    def __call__(self, *args: object) -> None:
        self.function(*args)


def attention_modules(model: nn.Module, layers: Indices = None, kinds: NamePatterns = None) -> dict[str, Attention]:
    """Return the attention modules of a model by names such as `decoder.blocks.0.cross_attention`."""
    return select_modules(_own_attention(named_modules(model)), layers, kinds)


def named_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return every module of a model by its name, without what torch.compile puts in front."""
    found: dict[nn.Module, str] = {}

    def visit(name: str, module: nn.Module) -> None:  # what `model.named_modules()` does, in a third of the time
        if module not in found:
            found[module] = name
            prefix = name + "." if name else ""
            for part, child in module._modules.items():
                if child is not None:
                    visit(prefix + part, child)

    visit("", model)
    return {name.removeprefix("_orig_mod").removeprefix("."): module for module, name in found.items()}


def _own_attention(modules: dict[str, nn.Module]) -> dict[str, Attention]:
    own = _instances(modules, lambda kind: issubclass(kind, Attention))
    return {name.removesuffix(".attend"): module for name, module in own.items() if isinstance(module, Attention)}


def _instances(modules: dict[str, nn.Module], includes: Callable[[type[nn.Module]], object]) -> dict[str, nn.Module]:
    """Return the modules of some classes. Many modules have few classes, and a GPU waits until a watch has begun."""
    kinds = {kind for kind in set(map(type, modules.values())) if includes(kind)}
    return {name: module for name, module in modules.items() if type(module) in kinds} if kinds else {}


def attention_like_modules(modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the modules of any model that probably attend: regard's own, or the innermost whose class is called attention."""
    own = _own_attention(modules)
    if own:
        return dict(own)
    named = _instances(modules, lambda kind: ATTENTION_CLASS.search(kind.__name__))
    outer = {around for name in named for around in names_around(name)}
    return {name: module for name, module in named.items() if name not in outer}


def names_around(name: str) -> Iterator[str]:
    """Yield the names of the modules that contain one, from the innermost: a.b and a of a.b.c."""
    while name := name.rpartition(".")[0]:
        yield name


def attends_in_own_modules(modules: dict[str, nn.Module]) -> bool:
    """Return whether all attention of a model is in regard's own attention modules: every other module is regard's too, or a
    layer of torch.nn that does not attend."""

    def is_known(kind: type[nn.Module]) -> bool:
        return kind.__module__.startswith("regard.") or (
            kind.__module__.startswith(("torch.nn.", "torch._dynamo.")) and not ATTENTION_CLASS.search(kind.__name__)
        )

    kinds = {type(module) for module in modules.values()}
    return any(issubclass(kind, Attention) for kind in kinds) and all(map(is_known, kinds))


def has_decoder(modules: dict[str, nn.Module]) -> bool:
    """Return whether a model has an encoder and a decoder that attends; the last layer of BERT is called a decoder too."""
    attends = any("decoder" in name.split(".") for name in attention_like_modules(modules))
    return attends and any("encoder" in name.split(".") for name in modules)


def hidden_state_modules(model: nn.Module, layers: Indices = None, kinds: NamePatterns = None) -> dict[str, nn.Module]:
    """Return the modules whose outputs are hidden states, by name: blocks with attention in them, and recurrent layers."""
    modules = named_modules(model)
    blocks = {block.group() for name in attention_like_modules(modules) if (block := re.match(r"(.*?\.)?\d+(?=\.)", name))}
    chosen = {name: module for name, module in modules.items() if name in blocks or isinstance(module, nn.RNNBase)}
    return select_modules(chosen, layers, kinds)


def select_modules(found: dict[str, Module], layers: Indices, kinds: NamePatterns) -> dict[str, Module]:
    """Return the modules in `layers` whose names match one of the patterns; raise UserError where no layer is there."""
    chosen = {name: module for name, module in found.items() if matches(name, _kind_by_name(name), layers, kinds)}
    if found and not chosen and layers is not None and not any(layer_index(name) in layers for name in found):
        numbers = sorted({number for name in found if (number := layer_index(name)) is not None})
        raise UserError(
            f"layers = {list(layers)}: the model has " + (f"{numbers[0]} to {numbers[-1]}" if numbers else "no layers")
        )
    return chosen


def matches(name: str, kind: str, layers: Indices, kinds: NamePatterns) -> bool:
    """Return whether a module of this name and kind is in `layers` and is of one of the kinds, or matches one of the patterns."""
    if layers is not None and layer_index(name) not in layers:
        return False
    try:
        patterns = [kinds] if isinstance(kinds, str) else kinds
        return patterns is None or any(_is_of_kind(name, kind, pattern) for pattern in patterns)
    except re.error as error:
        raise UserError(
            f"kinds = {kinds!r}: not a regular expression ({error}); use names such as 'self', 'cross', 'decoder.*self'"
        ) from None


def _is_of_kind(name: str, kind: str, pattern: str) -> bool:
    if pattern in ("self", "cross", "causal"):
        return kind == pattern or (pattern == "self" and kind == "causal")
    return re.search(pattern, name) is not None


def _kind_by_name(name: str) -> str:
    return "cross" if "cross" in name else "self"


def layer_index(name: str) -> int | None:
    """Return the number of the layer in a module's name, if it has one."""
    number = re.search(r"\.(\d+)(\.|$)", name)
    return int(number.group(1)) if number else None


def layer_names(modules: Iterable[str]) -> dict[str, str]:
    """Return the names of a model's attention modules as every output gives them, layers counted from 1:
    `decoder.blocks.1.cross_attention` is "cross-attention, layer 2"."""
    stacks = {name: _stack_by_name(name) for name in modules}
    both = {"cross", "decoder"} & set(stacks.values()) and set(stacks.values()) != {"decoder"}
    return {
        name: f"{STACK_NAMES[stack if both else 'text']}, layer {(layer_index('.' + name) or 0) + 1}"
        for name, stack in stacks.items()
    }


def _stack_by_name(name: str) -> str:
    parts, lower = name.split("."), name.lower()
    if any(word in lower for word in ("cross", "encoder_attn", "encdec")) or ("decoder" in parts and "self" not in lower):
        return "cross"
    return "decoder" if "decoder" in parts else "encoder"
