"""Change attention without touching the model: replace weights on the written-out path (ablation, permutation).

Compiled callables beside a module run uncompiled meanwhile.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from regard.attention.calls import AttentionCall
from regard.attention.interception import force_eager, intercept
from regard.attention.lazy_maps import check_heads
from regard.attention.modules import (
    Indices,
    NamePatterns,
    attention_like_modules,
    hidden_state_modules,
    named_modules,
    select_modules,
)
from regard.attention.watch import PlaceSelection
from regard.errors import UserError


@contextmanager
def edit(
    model: nn.Module,
    fn: Callable[[str, Tensor], Tensor],
    *,
    layers: Indices = None,
    heads: Indices = None,
    kinds: NamePatterns = None,
    states: bool = False,
) -> Iterator[None]:
    """Replace the weights (B, H, T, S) of each attention module of any PyTorch model by `fn(name, weights)` while the context is
    open.

    `layers`, `heads` and `kinds` choose as in `watch`. With `states`, replace the output (B, T, D) of each block instead.
    """

    selection = PlaceSelection(layers, kinds)
    select_modules(attention_like_modules(named_modules(model)), layers, None)

    def replace_weights(call: AttentionCall, make: Callable[[], Tensor]) -> Tensor:
        if not selection.selects(call):
            return make()
        call = call.padded()
        weights, chosen = call.weights(), check_heads(heads, call.heads, call.name)
        picked = weights if chosen is None else weights[:, chosen]
        changed = _check_shape(call.name, picked, fn(call.name, picked))
        if chosen is not None:
            changed = weights.index_copy(1, torch.tensor(chosen, device=weights.device), changed.to(weights.dtype))
        return call.output(changed)

    def replace_state(name: str) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: tuple[object, ...], output: object) -> Tensor:
            if not isinstance(output, Tensor):
                raise UserError(f"edit of {name}: the states of recurrent cells can only be watched; edit their attention")
            return _check_shape(name, output, fn(name, output))

        return hook

    if not states:
        with intercept(model, replace_weights) as interceptor:
            yield
        selection.check(interceptor)
        return
    with ExitStack() as stack:
        stack.enter_context(force_eager())
        for name, layer in hidden_state_modules(model, layers, kinds).items():
            stack.callback(layer.register_forward_hook(replace_state(name)).remove)
        yield


def _check_shape(name: str, before: Tensor, after: Tensor) -> Tensor:
    if not isinstance(after, Tensor) or after.shape != before.shape:
        became = tuple(after.shape) if isinstance(after, Tensor) else type(after).__name__
        raise UserError(f"edit of {name}: {tuple(before.shape)} became {became}; return a tensor of the same shape")
    return after
