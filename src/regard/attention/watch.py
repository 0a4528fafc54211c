"""Look at attention, or change it, without touching the model.

`watch` records weights beside the path the output always came from: they are computed again from q and k, part by part.
`edit` replaces weights on the written-out path (ablation, permutation). Both run the module itself: a compiled callable beside it
is run uncompiled meanwhile.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from regard.attention import kernel
from regard.attention.core import Dot, attention_scores, attention_weights, mix, share
from regard.attention.masks import Mask
from regard.attention.multihead import Attend
from regard.attention.record import Budget, Map
from regard.attention.seen import Seen
from regard.errors import Mistake

Chosen = Sequence[int] | None
Names = str | Sequence[str] | None


def places(model: nn.Module, layers: Chosen = None, kinds: Names = None) -> dict[str, Attend]:
    """The named places of attention in a model, such as `decoder.blocks.0.cross_attention`."""
    found = {plain(name).removesuffix(".attend"): module for name, module in model.named_modules() if isinstance(module, Attend)}
    return choose(found, layers, kinds)


def states_of(model: nn.Module, layers: Chosen = None, kinds: Names = None) -> dict[str, nn.Module]:
    """The named modules whose outputs are hidden states: blocks with attention in them, and recurrent cells."""
    blocks = {above.group() for name in places(model) if (above := re.match(r".*\.\d+(?=\.)", name))}
    return choose({plain(name): module for name, module in model.named_modules()
                   if plain(name) in blocks or isinstance(module, nn.RNNBase)}, layers, kinds)


def plain(name: str) -> str:
    return name.removeprefix("_orig_mod.")            # what torch.compile puts around a module


def choose(found: dict[str, Any], layers: Chosen, kinds: Names) -> dict[str, Any]:
    """Those of the chosen layers whose names match one of the patterns. Where there is anything, something has to be chosen."""
    patterns = [kinds] if isinstance(kinds, str) else kinds
    try:
        chosen = {name: module for name, module in found.items() if (layers is None or layer_of(name) in layers)
                  and (patterns is None or any(re.search(pattern, name) for pattern in patterns))}
    except re.error as error:
        raise Mistake(f"kinds = {kinds!r}: no pattern of a name ({error}); such as 'self', 'cross', 'decoder.*self'") from None
    if found and not chosen and layers is not None and not any(layer_of(name) in layers for name in found):
        numbers = sorted({number for name in found if (number := layer_of(name)) is not None})
        raise Mistake(f"layers = {list(layers)}: the model has " + (f"{numbers[0]} to {numbers[-1]}" if numbers else "no layers"))
    return chosen


def layer_of(name: str) -> int | None:
    number = re.search(r"\.(\d+)(\.|$)", name)
    return int(number.group(1)) if number else None


@contextmanager
def watch(model: nn.Module, *, layers: Chosen = None, heads: Chosen = None, rows: Chosen = None, kinds: Names = None,
          budget: int | str | None = None, keep: str = "blocks", states: bool = False,
          gradients: bool = False, values: bool = False, queries: bool = False) -> Iterator[Seen]:
    """Record attention while the block runs; the model's output does not change by one bit.

    `layers`, `heads` and `rows` (queries of each call) are numbers counted from 0, `kinds` patterns of names: "self", "cross",
    "encoder", "decoder.*self". A `budget` ("200MB") is for the record and what it takes to make it; what does not fit is kept as
    `keep` says: "blocks" (means), "top" (the largest of each row), "rows" (every n-th) or "entropy".
    With `states`, what each layer makes of its input comes too, with `values` what is mixed under the weights, with `queries` the
    queries and keys of the chosen heads and the scores that the softmax is taken of, and with `gradients` those of the loss with
    respect to the weights, when it goes backward.
    """
    watched = places(model, layers, kinds)
    allowance = Budget(budget, len(watched) * (1 + gradients), keep)
    seen = Seen(heads=None if heads is None else list(heads), rows=None if rows is None else list(rows), budget=allowance)

    def look(name: str) -> Callable:
        def hook(module: Attend, args: tuple, options: dict, output: Tensor) -> None:
            q, k, v = (part.detach() for part in args)
            first = name not in seen.calls
            with torch.no_grad():
                whole = weights_map(q, k, module, heads_of(heads, q, name), **options)
                seen.calls.setdefault(name, []).append(allowance.record(of_rows(whole, rows, name), first=first))
            if values:
                keep_whole(seen.values, name, v, "values")
            if queries:
                with torch.no_grad():
                    keep_asked(name, q, k, module, **options)
            if gradients:
                calls = seen.gradient_calls.setdefault(name, [])
                calls.append(None)
                if output.requires_grad:
                    output.register_hook(remember(name, calls, len(calls) - 1, v, first))
        return hook

    def remember(name: str, calls: list, number: int, v: Tensor, first: bool) -> Callable:
        def hook(gradient: Tensor) -> None:
            with torch.no_grad():
                whole = gradient_map(gradient, v, heads_of(heads, gradient, name))
                calls[number] = allowance.record(of_rows(whole, rows, name), first=first)
        return hook

    def remember_state(name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, output: Any) -> None:
            keep_whole(seen.states, name, state_in(output).detach(), "states")
        return hook

    def keep_asked(name: str, q: Tensor, k: Tensor, module: Attend, **options: Any) -> None:
        q, k, options["mask"], options["bias"] = of_heads(q, share(k, q.size(1)), heads_of(heads, q, name), **options)
        chosen = slice(None) if rows is None else numbers_of(rows, q.size(2), name, q.device)
        keep_whole(seen.queries, name, q[:, :, chosen], "queries")
        keep_whole(seen.keys, name, k, "keys")
        shape = (*q[:, :, chosen].shape[:3], k.size(2))
        if fits(name, "scores", shape, torch.promote_types(q.dtype, torch.float32)):
            found = attention_scores(q, k, score=module.score, scale=module.scale, rows=chosen, **options)
            seen.scores.setdefault(name, []).append(found)

    def keep_whole(kept: dict[str, list[Tensor]], name: str, x: Tensor, what: str) -> None:
        if fits(name, what, x.shape, x.dtype):        # a cache is written over when a search goes on
            kept.setdefault(name, []).append(x.clone() if what in ("keys", "values") else x)

    def fits(name: str, what: str, shape: Sequence[int], dtype: torch.dtype) -> bool:
        if allowance.take(prod(shape) * dtype.itemsize):
            return True
        seen.left_out[f"{name} ({what})"] = f"{'hidden ' if what == 'states' else ''}{what} {tuple(shape)}"
        return False

    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        for name, place in watched.items():
            stack.callback(place.register_forward_hook(look(name), with_kwargs=True).remove)
        for name, layer in states_of(model, layers).items() if states else ():
            stack.callback(layer.register_forward_hook(remember_state(name)).remove)
        yield seen


@contextmanager
def edit(model: nn.Module, change: Callable[[str, Tensor], Tensor], *, layers: Chosen = None, heads: Chosen = None,
         kinds: Names = None, states: bool = False) -> Iterator[None]:
    """Replace the weights (B, H, T, S) at each place by `change(name, weights)` while the block runs; of the chosen heads alone,
    where there are such. With `states`, what each block gives on (B, T, D) instead."""
    def replace_weights(name: str) -> Callable:
        def hook(module: Attend, args: tuple, options: dict, output: Tensor) -> Tensor:
            q, k, v = args
            weights = attention_weights(q, k, score=module.score, scale=module.scale, **options)
            chosen = heads_of(heads, q, name)
            picked = weights if chosen is None else weights[:, chosen]
            changed = checked(name, picked, change(name, picked))
            if chosen is not None:
                changed = weights.index_copy(1, torch.tensor(chosen, device=weights.device), changed.to(weights.dtype))
            return mix(F.dropout(changed, module.dropout, module.training), v)
        return hook

    def replace_state(name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, output: Any) -> Tensor:
            if not isinstance(output, Tensor):
                raise Mistake(f"edit of {name}: the states of recurrent cells can be watched, not changed; edit their attention")
            return checked(name, output, change(name, output))
        return hook

    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        if states:
            for name, layer in states_of(model, layers, kinds).items():
                stack.callback(layer.register_forward_hook(replace_state(name)).remove)
        else:
            for name, place in places(model, layers, kinds).items():
                stack.callback(place.register_forward_hook(replace_weights(name), with_kwargs=True).remove)
        yield


def checked(name: str, before: Tensor, after: Tensor) -> Tensor:
    if not isinstance(after, Tensor) or after.shape != before.shape:
        became = tuple(after.shape) if isinstance(after, Tensor) else type(after).__name__
        raise Mistake(f"edit of {name}: {tuple(before.shape)} became {became}; give back a tensor of the same shape")
    return after


def uncompiled() -> AbstractContextManager:
    """Compiled callables run their module; there are none where nothing has imported the compiler."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def weights_map(q: Tensor, k: Tensor, place: Attend, heads: list[int] | None = None, *, mask: Mask | None = None,
                bias: Tensor | None = None) -> Map:
    """The weights at a place, to be computed part by part."""
    (B, _, T, _), S = q.shape, k.size(-2)
    q, k, mask, bias = of_heads(q, k, heads, mask=mask, bias=bias)

    def part(batch: slice, rows: Tensor | slice) -> Tensor:
        added = bias if bias is None or bias.dim() < 4 or bias.size(0) == 1 else bias[batch]
        return attention_weights(q[batch], k[batch], score=place.score, mask=None if mask is None else mask.rows(batch),
                                 bias=added, scale=place.scale, rows=rows, least=q.dtype)

    if place.score is None and kernel.can_run(q, mask):
        fill = partial(kernel.fill, q=q, k=k, mask=mask, bias=bias, scale=place.scale)
        return Map((B, q.size(1), T, S), q.dtype, q.device, part, fill=fill)
    return Map((B, q.size(1), T, S), q.dtype, q.device, part, width=1 if place.score is None else k.size(-1))


def of_heads(q: Tensor, k: Tensor, heads: list[int] | None, *, mask: Mask | None = None,
             bias: Tensor | None = None) -> tuple[Tensor, Tensor, Mask | None, Tensor | None]:
    """Everything that the weights of some heads are made of."""
    if heads is None:
        return q, k, mask, bias
    shared = q.size(1) // k.size(1)
    per_head = bias is not None and bias.dim() > 2 and bias.size(-3) > 1
    return (q[:, heads], k[:, [head // shared for head in heads]], None if mask is None else mask.heads(heads),
            bias[..., heads, :, :] if per_head and bias is not None else bias)


def gradient_map(gradient: Tensor, v: Tensor, heads: list[int] | None = None) -> Map:
    """dL/dW = dO·Vᵀ, for the mix O = W V."""
    (B, H, T, _), S = gradient.shape, v.size(-2)
    if heads is not None:
        shared = H // v.size(1)
        gradient, v = gradient[:, heads], v[:, [head // shared for head in heads]]
    return Map((B, gradient.size(1), T, S), gradient.dtype, gradient.device,
               lambda batch, rows: Dot(1.0)(gradient[batch][:, :, rows], v[batch]), signed=True)


def heads_of(heads: Chosen, q: Tensor, name: str) -> list[int] | None:
    for head in heads or ():
        if not 0 <= head < q.size(1):
            raise Mistake(f"heads = {list(heads or ())}: {name} has {q.size(1)}, counted from 0")
    return None if heads is None else list(heads)


def of_rows(whole: Map, rows: Chosen, name: str) -> Map:
    return whole if rows is None else whole.only(numbers_of(rows, whole.shape[2], name, whole.device))


def numbers_of(rows: Sequence[int], queries: int, name: str, device: torch.device) -> Tensor:
    for row in rows:
        if not -queries <= row < queries:
            raise Mistake(f"rows = {list(rows)}: a call of {name} has {queries} queries, counted from 0")
    return torch.tensor([row % queries for row in rows], device=device)


def state_in(output: Any) -> Tensor:
    """(B, T, D) of a block or of recurrent cells."""
    x = output[0] if isinstance(output, tuple) else output
    return pad_packed_sequence(x, batch_first=True)[0] if isinstance(x, PackedSequence) else x
