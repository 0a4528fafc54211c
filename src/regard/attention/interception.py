"""See every application of attention in a PyTorch model, under its own kernels and without changing them.

A `TorchFunctionMode` sees the calls of

    attend                              regard's own
    F.scaled_dot_product_attention      transformers (sdpa), timm, diffusers, x-transformers, …
    F.multi_head_attention_forward      torch.nn.MultiheadAttention, and through it torchvision, open_clip, nn.Transformer
    transformers' implementations       flash-attn, kernels of the hub, Flex attention (attention/transformers_interface.py)
    softmax, then a product             eager attention, where a softmax over keys is multiplied with values

The mode is not active inside a function that it sees. `F.multi_head_attention_forward` is written in Python and checks for modes
first, so a copy of it without that check runs under the mode again. With a mode active, torch.nn's encoder layers do not take
their fused inference path, in which no attention can be seen.

A mode costs the host some microseconds for each function of torch and each attribute of a tensor (`x.shape`, `x.dtype`), which a
launch of a Triton kernel reads by the dozen. A model whose attention is all regard's own needs the mode only while one of these
modules runs.
"""

import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention.calls import AttentionCall, ProjectedCall, SoftmaxCall, canonical_layout, sdpa_call
from regard.attention.core import VISIBLE_ATTENTION
from regard.attention.modules import (
    AttentionHook,
    attends_in_own_modules,
    attention_like_modules,
    named_modules,
    names_around,
)
from regard.attention.multihead import Attention
from regard.attention.transformers_interface import visible_implementations

CASTS = {"to", "type", "type_as", "float", "half", "bfloat16", "double", "contiguous", "clone", "nan_to_num"}
SAME_WEIGHTS = CASTS | {"dropout", "masked_fill", "masked_fill_", "mul", "__mul__", "mul_", "__getitem__", "narrow"}
"""Functions whose result is still the weights: casts, dropout, head masks, slices that drop an attention sink."""
RESHAPES = {"view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "expand"}
AXIS_SWAPS = {"transpose", "permute", "swapaxes", "swapdims", "movedim", "mT", "t"}
PRODUCTS = {"matmul", "__matmul__", "bmm", "baddbmm", "einsum"}
SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax}
ENTRIES = {F.scaled_dot_product_attention, F.multi_head_attention_forward, *SOFTMAX}
HEAD_COUNTS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "heads", "nhead")
CROSS_INPUTS = ("key_value_states", "encoder_hidden_states", "context", "cross_attention_states")
CROSS_NAMES = re.compile(r"cross|encoder_attn|EncDecAttention|multihead_attn")

OnCall = Callable[[AttentionCall, Callable[[], Tensor]], Tensor]
"""Gets a call and a function that makes it; returns the output."""


def _without_mode_check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function of torch.nn.functional that does not look for modes, so that it can run under one."""
    assert isinstance(function, FunctionType)
    scope = {**function.__globals__, "has_torch_function": lambda tensors: False}
    copy = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_multi_head_attention_forward = _without_mode_check(F.multi_head_attention_forward)


@dataclass
class ModuleCall:
    """A module whose forward is running."""

    name: str
    module: nn.Module
    options: Mapping[str, Any]
    attended: int = 0
    """How often it has attended since it was called."""


@dataclass
class SoftmaxOutput:
    """A softmax over what may be keys, on its way to a product with values."""

    operand: Tensor
    """The softmax after casts, dropout and reshapes."""
    undropped: Tensor
    """The same without dropout."""
    scores: Tensor | None
    """The input of the softmax, as long as it has the operand's layout."""
    key_axis: int
    """The dimension of the operand that holds the keys, counted from the end: negative."""
    depth: int
    """How many modules were running when it was made; it is forgotten with the last of them that returns it."""


@dataclass(eq=False)
class Interceptor(TorchFunctionMode):
    """The mode that sees attention while the modules of `model` run, in one thread."""

    model: nn.Module
    on_call: OnCall
    modules: dict[str, nn.Module]
    running: list[ModuleCall] = field(default_factory=list)
    softmaxes: dict[int, SoftmaxOutput] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    """The names of the modules that have run."""
    attended: set[str] = field(default_factory=set)
    """The names of those that have attended, themselves or in a submodule."""

    def __post_init__(self) -> None:
        super().__init__()
        self.thread, self.crosses = threading.get_ident(), False
        self.in_own_modules = attends_in_own_modules(self.modules)
        """Whether the mode is active only while a module of regard's own attention runs."""

    # the modules that are running

    def enter_module(self, name: str, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if threading.get_ident() == self.thread:
            self.running.append(ModuleCall(name, module, options))
            self.ran.add(name)
            if self.in_own_modules and isinstance(module, Attention):
                self.__enter__()  # type: ignore[no-untyped-call]

    def leave_module(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if threading.get_ident() != self.thread or not self.running or self.running[-1].module is not module:
            return
        depth = len(self.running)
        self._pop()
        if not self.softmaxes:
            return
        parts = output if isinstance(output, (tuple, list)) else [output]
        returned = {id(part) for part in parts}
        for key, found in list(self.softmaxes.items()):
            if found.depth >= depth:
                found.depth = depth - 1
                if key not in returned:
                    del self.softmaxes[key]

    def leave_all(self) -> None:
        """Leave the modules that were interrupted: torch calls no hooks after a KeyboardInterrupt."""
        while self.running:
            self._pop()

    def _pop(self) -> None:
        if isinstance(self.running.pop().module, Attention) and self.in_own_modules:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    # the functions that are called

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.running or not (self.softmaxes or func in ENTRIES or func in VISIBLE_ATTENTION):  # nearly all functions
            return func(*args, **kwargs)
        if func in VISIBLE_ATTENTION:
            name = self._place()
            q, k, v = args
            known = {key: value for key, value in kwargs.items() if key in ("score", "mask", "bias", "scale", "dropout")}
            call = ProjectedCall(name=name, kind=self._kind(name), q=q, k=k, v=v, **known)
            return self.on_call(call, lambda: func(*args, **kwargs))
        if func is F.scaled_dot_product_attention:
            name = self._place()
            sdpa = sdpa_call(name, self._kind(name), self._head_count(), *args, **kwargs)
            return self.on_call(sdpa, lambda: func(*args, **kwargs))
        if func is F.multi_head_attention_forward:
            self.crosses = args[0] is not args[1]
            if not torch.is_grad_enabled() and not self.running[-1].module.training and torch.backends.mha.get_fastpath_enabled():
                warnings.warn("torch.nn's fused inference path is off while watching: outputs differ by rounding", stacklevel=2)
            try:
                with self:
                    return _multi_head_attention_forward(*args, **kwargs)
            finally:
                self.crosses = False
        if func in SOFTMAX:
            return self._track(func, args, kwargs)
        return self._follow(func, getattr(func, "__name__", ""), args, kwargs)

    def _track(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        output: Tensor = func(*args, **kwargs)
        scores = args[0] if args else kwargs["input"]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if isinstance(dim, int) and output.dim() > 1:
            axis = dim % output.dim() - output.dim()
            self.softmaxes[id(output)] = SoftmaxOutput(output, output, scores, axis, len(self.running))
        return output

    def _follow(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Follow a softmax through casts and reshapes to its product with values."""
        operands = args[1:] if name == "einsum" else args
        if name == "einsum" and len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = tuple(operands[0])
        at = next((i for i, x in enumerate(operands[:3]) if isinstance(x, Tensor) and id(x) in self.softmaxes), None)
        if at is None:
            return func(*args, **kwargs)
        found = self.softmaxes[id(operands[at])]
        if name in PRODUCTS or (name in ("mul", "__mul__", "__rmul__") and found.key_axis == -2 and found.operand.size(-1) == 1):
            return self._product(func, name, args, kwargs, operands, at, found)
        output = func(*args, **kwargs)
        if not isinstance(output, Tensor) or at != 0:
            return output
        axis: int | None = None
        if name in SAME_WEIGHTS and output.dim() == found.operand.dim():
            axis = found.key_axis
        elif name in AXIS_SWAPS:
            axis = _moved_axis(func, args, kwargs, found)
        elif name in RESHAPES and found.key_axis == -1 and output.size(-1) == found.operand.size(-1):
            axis = -1
        elif name == "unsqueeze" and found.key_axis == -1 and output.size(-1) == 1:
            axis = -2
        if axis is not None:
            replay = name in RESHAPES | AXIS_SWAPS or (name != "dropout" and found.undropped is not found.operand)
            undropped = found.undropped if name == "dropout" else func(found.undropped, *args[1:], **kwargs) if replay else output
            scores = found.scores if name in SAME_WEIGHTS and output.shape == found.operand.shape else None
            self.softmaxes[id(output)] = SoftmaxOutput(output, undropped, scores, axis, found.depth)
        return output

    def _product(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: tuple[Any, ...],
        at: int,
        found: SoftmaxOutput,
    ) -> Tensor:
        """Make the product of weights with values, as a call of attention where it sums over the keys."""
        operand, heads = found.operand, self._head_count()
        order = _einsum_order(args[0], at, found) if name == "einsum" else _matmul_order(name, operands, at, found)
        if order is None:
            output: Tensor = func(*args, **kwargs)
            return output

        def product(weights: Tensor) -> Tensor:
            changed = [weights if x is operand else x for x in operands]
            multiplied: Tensor = func(*([args[0], *changed] if name == "einsum" else changed), **kwargs)
            return multiplied

        def canonical(x: Tensor) -> Tensor:
            return canonical_layout(x.permute(order), heads)

        shape = operand.permute(order).shape
        inverse = [order.index(axis) for axis in range(len(order))]
        others = [x for x in operands if isinstance(x, Tensor) and x is not operand]
        plain = name in ("matmul", "__matmul__", "bmm") and order == list(range(operand.dim())) and operand.dim() > 2
        place = self._place()
        call = SoftmaxCall(
            name=place,
            kind=self._kind(place),
            operand=operand,
            undropped=found.undropped,
            softmax_input=found.scores,
            canonical=canonical,
            restore=lambda weights: weights.reshape(shape).permute(inverse),
            product=product,
            model_values=canonical_layout(others[-1], heads) if plain else None,
        )
        self.softmaxes.clear()
        return self.on_call(call, lambda: func(*args, **kwargs))

    # the name, kind and heads of a place

    def _place(self) -> str:
        """Return the name of the module that attends; a module that attends again before it returns gets ":2", ":3"."""
        caller = self.running[-1]
        caller.attended += 1
        self.attended.update(call.name for call in self.running)
        return caller.name + (f":{caller.attended}" if caller.attended > 1 else "")

    def _kind(self, name: str) -> str:
        callers = [
            call for call in self.running[-2:] if call is self.running[-1] or type(call.module).__name__.endswith("Attention")
        ]
        given = any(isinstance(call.options.get(key), Tensor) for call in callers for key in CROSS_INPUTS)
        return "cross" if given or self.crosses or CROSS_NAMES.search(name) else "self"

    def _head_count(self) -> int | None:
        """Return the number of heads that the innermost module says it has."""
        for call in reversed(self.running):
            for name in HEAD_COUNTS:
                if isinstance(count := getattr(call.module, name, None), int) and not isinstance(count, bool):
                    return count
        return None


def _moved_axis(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: SoftmaxOutput) -> int | None:
    """Return where an exchange of axes puts the keys."""
    dims = found.operand.dim()
    probe = func(torch.empty(tuple(range(2, 2 + dims)), device="meta"), *args[1:], **kwargs)
    size = 2 + dims + found.key_axis
    return list(probe.shape).index(size) - probe.dim() if size in probe.shape else None


def _matmul_order(name: str, operands: tuple[Any, ...], at: int, found: SoftmaxOutput) -> list[int] | None:
    """Return the order of axes in which weights are (…, queries, keys); None where the product does not sum over the keys."""
    first = at == (1 if name == "baddbmm" else 0)
    if name in ("mul", "__mul__", "__rmul__"):  # weights (…, keys, 1) times values (…, keys, J), summed later
        summed = -2
    else:
        summed = -1 if first else -2
    if found.key_axis != summed:
        return None
    axes = list(range(found.operand.dim()))
    return axes if summed == -1 else [*axes[:-2], axes[-1], axes[-2]]


def _einsum_order(equation: object, at: int, found: SoftmaxOutput) -> list[int] | None:
    """Likewise, for a product of two operands written as an equation, `bhqk,bhkd->bhqd`."""
    parts = re.fullmatch(r"([a-zA-Z ]+),([a-zA-Z ]+)->([a-zA-Z ]+)", equation) if isinstance(equation, str) else None
    if parts is None:
        return None
    sides = [part.replace(" ", "") for part in parts.groups()]
    weights, values, output = sides[at], sides[1 - at], sides[2]
    key = weights[found.key_axis]
    queries = [i for i, letter in enumerate(weights) if letter in output and letter not in values]
    if key in output or key not in values or len(queries) > 1:
        return None
    rest = [i for i, letter in enumerate(weights) if letter != key and i not in queries]
    return [*rest, *queries, weights.index(key)]


@contextmanager
def intercept(model: nn.Module, on_call: OnCall, modules: dict[str, nn.Module] | None = None) -> Iterator[Interceptor]:
    """Let `on_call` make every call of attention in a model while the context is open. Compiled models run as their modules.

    Hooks follow which of the modules around attention runs.
    """
    interceptor = Interceptor(model, on_call, modules or named_modules(model))
    if "_orig_mod" in dict(model.named_children()):
        warnings.warn("the compiled model runs as its module while it is watched or edited", stacklevel=5)
    hooks = []
    try:
        hooked = _modules_that_attend if interceptor.in_own_modules else _modules_around_attention
        for name, module in hooked(interceptor.modules).items():
            name = name.removesuffix(".attend") or type(module).__name__
            enter, leave = AttentionHook(partial(interceptor.enter_module, name)), AttentionHook(interceptor.leave_module)
            hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.append(module.register_forward_hook(leave, always_call=True))
        with force_eager(), visible_implementations(), nullcontext() if interceptor.in_own_modules else interceptor:
            yield interceptor
    finally:
        interceptor.leave_all()
        for hook in hooks:
            hook.remove()


def _modules_that_attend(modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return regard's own attention modules, and the model, to know that it ran."""
    return {name: module for name, module in modules.items() if not name or isinstance(module, Attention)}


def _modules_around_attention(modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the modules that are called attention and those around them: attention found elsewhere gets the name of the
    innermost of these. Where none is called so, return all modules but torch.nn's layers without children, which never attend."""
    names = [name + ".attend" * (f"{name}.attend" in modules) for name in attention_like_modules(modules)]
    if not names:
        return {
            name: module
            for name, module in modules.items()
            if not name or any(True for _ in module.children()) or not type(module).__module__.startswith("torch.nn.")
        }
    around = {around for name in names for around in (name, *names_around(name))}
    return {name: module for name, module in modules.items() if name in around or not name}


class ForceEager:
    """Run compiled callables uncompiled while any block runs, so that hooks see them.

    The stance of the compiler is one for all threads, and blocks may end in any order: the first one sets it, the last one
    restores it. Without torch._dynamo imported there are no compiled callables.
    """

    def __init__(self) -> None:
        self._lock, self._blocks, self._stance = threading.Lock(), 0, ExitStack()
        self._is_set = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._blocks += 1
            if not self._is_set and "torch._dynamo" in sys.modules:
                self._stance.enter_context(torch.compiler.set_stance("force_eager"))
                self._is_set = True
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if not self._blocks:
                    self._stance.close()
                    self._is_set = False


force_eager = ForceEager()
