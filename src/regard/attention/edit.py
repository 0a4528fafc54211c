"""Change attention without touching the model: weights are replaced on the written-out path (ablation, permutation). It runs the
module itself: a compiled callable beside it is run uncompiled meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import attention_weights, mix
from regard.attention.maps import check_heads
from regard.attention.modules import Indices, NamePatterns, attention_modules, force_eager, hidden_state_modules
from regard.attention.multihead import Attention
from regard.errors import UserError


@contextmanager
def edit(
    model: nn.Module,
    change: Callable[[str, Tensor], Tensor],
    *,
    layers: Indices = None,
    heads: Indices = None,
    kinds: NamePatterns = None,
    states: bool = False,
) -> Iterator[None]:
    """Replace the weights (B, H, T, S) at each place by `change(name, weights)` while the block runs; of the chosen heads alone,
    where there are such. With `states`, what each block gives on (B, T, D) instead."""

    def replace_weights(name: str) -> Callable:
        def hook(module: Attention, args: tuple, options: dict, output: Tensor) -> Tensor:
            q, k, v = args
            weights = attention_weights(q, k, score=module.score, scale=module.scale, **options)
            chosen = check_heads(heads, q, name)
            picked = weights if chosen is None else weights[:, chosen]
            changed = checked(name, picked, change(name, picked))
            if chosen is not None:
                changed = weights.index_copy(1, torch.tensor(chosen, device=weights.device), changed.to(weights.dtype))
            return mix(F.dropout(changed, module.dropout, module.training), v)

        return hook

    def replace_state(name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, output: Any) -> Tensor:
            if not isinstance(output, Tensor):
                raise UserError(
                    f"edit of {name}: the states of recurrent cells can be watched, not changed; edit their attention"
                )
            return checked(name, output, change(name, output))

        return hook

    with ExitStack() as stack:
        stack.enter_context(force_eager())
        if states:
            for name, layer in hidden_state_modules(model, layers, kinds).items():
                stack.callback(layer.register_forward_hook(replace_state(name)).remove)
        else:
            for name, place in attention_modules(model, layers, kinds).items():
                stack.callback(place.register_forward_hook(replace_weights(name), with_kwargs=True).remove)
        yield


def checked(name: str, before: Tensor, after: Tensor) -> Tensor:
    if not isinstance(after, Tensor) or after.shape != before.shape:
        became = tuple(after.shape) if isinstance(after, Tensor) else type(after).__name__
        raise UserError(f"edit of {name}: {tuple(before.shape)} became {became}; give back a tensor of the same shape")
    return after
