"""Change attention without touching the model: replace weights on the written-out path (ablation, permutation).

Compiled callables beside a module run uncompiled meanwhile.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import attention_weights, mix
from regard.attention.lazy_maps import check_heads
from regard.attention.modules import Indices, NamePatterns, attention_modules, force_eager, hidden_state_modules
from regard.attention.multihead import Attention
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
    """Replace the weights (B, H, T, S) of each attention module by `fn(name, weights)` while the context is open.

    `layers`, `heads` and `kinds` choose as in `watch`. With `states`, replace the output (B, T, D) of each block instead.
    """

    def replace_weights(name: str) -> Callable[..., Tensor]:
        def hook(module: Attention, args: tuple[Tensor, ...], options: dict[str, Any], output: Tensor) -> Tensor:
            q, k, v = args
            weights = attention_weights(q, k, score=module.score, scale=module.scale, **options)
            chosen = check_heads(heads, q, name)
            picked = weights if chosen is None else weights[:, chosen]
            changed = _check_shape(name, picked, fn(name, picked))
            if chosen is not None:
                changed = weights.index_copy(1, torch.tensor(chosen, device=weights.device), changed.to(weights.dtype))
            return mix(F.dropout(changed, module.dropout, module.training), v)

        return hook

    def replace_state(name: str) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: tuple[object, ...], output: object) -> Tensor:
            if not isinstance(output, Tensor):
                raise UserError(f"edit of {name}: the states of recurrent cells can only be watched; edit their attention")
            return _check_shape(name, output, fn(name, output))

        return hook

    with ExitStack() as stack:
        stack.enter_context(force_eager())
        if states:
            for name, layer in hidden_state_modules(model, layers, kinds).items():
                stack.callback(layer.register_forward_hook(replace_state(name)).remove)
        else:
            for name, module in attention_modules(model, layers, kinds).items():
                stack.callback(module.register_forward_hook(replace_weights(name), with_kwargs=True).remove)
        yield


def _check_shape(name: str, before: Tensor, after: Tensor) -> Tensor:
    if not isinstance(after, Tensor) or after.shape != before.shape:
        became = tuple(after.shape) if isinstance(after, Tensor) else type(after).__name__
        raise UserError(f"edit of {name}: {tuple(before.shape)} became {became}; return a tensor of the same shape")
    return after
