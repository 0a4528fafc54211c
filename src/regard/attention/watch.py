"""Look at attention without touching the model.

Weights are recorded beside the path the output always came from: they are computed again from q and k, part by part. It runs the
module itself: a compiled callable beside it is run uncompiled meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from regard.attention.core import attention_scores, repeat_kv
from regard.attention.lazy_maps import MemoryBudget
from regard.attention.maps import check_heads, gradient_map, row_indices, select_heads, select_map_rows, weights_map
from regard.attention.modules import Indices, NamePatterns, attention_modules, force_eager, hidden_state_modules
from regard.attention.multihead import Attention
from regard.attention.recording import AttentionRecording


@contextmanager
def watch(
    model: nn.Module,
    *,
    layers: Indices = None,
    heads: Indices = None,
    rows: Indices = None,
    kinds: NamePatterns = None,
    budget: int | str | None = None,
    keep: str = "blocks",
    states: bool = False,
    gradients: bool = False,
    values: bool = False,
    queries: bool = False,
) -> Iterator[AttentionRecording]:
    """Record attention while the block runs; the model's output does not change by one bit.

    `layers`, `heads` and `rows` (queries of each call) are numbers counted from 0, `kinds` patterns of names: "self", "cross",
    "encoder", "decoder.*self". A `budget` ("200MB") is for the record and what it takes to make it; what does not fit is kept as
    `keep` says: "blocks" (means), "top" (the largest of each row), "rows" (every n-th) or "entropy".
    With `states`, what each layer makes of its input comes too, with `values` what is mixed under the weights, with `queries` the
    queries and keys of the chosen heads and the scores that the softmax is taken of, and with `gradients` those of the loss with
    respect to the weights, when it goes backward.
    """
    watched = attention_modules(model, layers, kinds)
    allowance = MemoryBudget(budget, len(watched) * (1 + gradients), keep)
    seen = AttentionRecording(
        heads=None if heads is None else list(heads), rows=None if rows is None else list(rows), budget=allowance
    )
    watcher = Watcher(seen, allowance, heads, rows, gradients=gradients, values=values, queries=queries)
    with ExitStack() as stack:
        stack.enter_context(force_eager())
        for name, place in watched.items():
            stack.callback(place.register_forward_hook(partial(watcher.look, name), with_kwargs=True).remove)
        for name, layer in hidden_state_modules(model, layers).items() if states else ():
            stack.callback(layer.register_forward_hook(partial(watcher.look_at_state, name)).remove)
        yield seen


@dataclass
class Watcher:
    """Stands behind every watched place, and keeps of what passes there what was asked for and what the budget allows."""

    seen: AttentionRecording
    allowance: MemoryBudget
    heads: Indices
    rows: Indices
    gradients: bool
    values: bool
    queries: bool

    def look(self, name: str, place: Attention, args: tuple, options: dict, output: Tensor) -> None:
        q, k, v = (part.detach() for part in args)
        first = name not in self.seen.calls
        with torch.no_grad():
            whole = weights_map(q, k, place, check_heads(self.heads, q, name), **options)
            self.seen.calls.setdefault(name, []).append(
                self.allowance.record(select_map_rows(whole, self.rows, name), first=first)
            )
            if self.values:
                self.keep_whole(self.seen.values, name, v, "values")
            if self.queries:
                self.keep_asked(name, q, k, place, **options)
        if self.gradients:
            calls = self.seen.gradient_calls.setdefault(name, [])
            calls.append(None)
            if output.requires_grad:
                output.register_hook(self.remember(name, calls, len(calls) - 1, v, first))

    def look_at_state(self, name: str, layer: nn.Module, args: tuple, output: Any) -> None:
        self.keep_whole(self.seen.states, name, state_in(output).detach(), "states")

    def remember(self, name: str, calls: list, number: int, v: Tensor, first: bool) -> Callable[[Tensor], None]:
        """What to do when the gradient of a call's output comes."""

        def hook(gradient: Tensor) -> None:
            with torch.no_grad():
                whole = gradient_map(gradient, v, check_heads(self.heads, gradient, name))
                calls[number] = self.allowance.record(select_map_rows(whole, self.rows, name), first=first)

        return hook

    def keep_asked(self, name: str, q: Tensor, k: Tensor, place: Attention, **options: Any) -> None:
        """Queries, keys, and the scores that the softmax is taken of."""
        q, k, options["mask"], options["bias"] = select_heads(
            q, repeat_kv(k, q.size(1)), check_heads(self.heads, q, name), **options
        )
        chosen = slice(None) if self.rows is None else row_indices(self.rows, q.size(2), name, q.device)
        self.keep_whole(self.seen.queries, name, q[:, :, chosen], "queries")
        self.keep_whole(self.seen.keys, name, k, "keys")
        shape = (*q[:, :, chosen].shape[:3], k.size(2))
        if self.fits(name, "scores", shape, torch.promote_types(q.dtype, torch.float32)):
            found = attention_scores(q, k, score=place.score, scale=place.scale, rows=chosen, **options)
            self.seen.scores.setdefault(name, []).append(found)

    def keep_whole(self, kept: dict[str, list[Tensor]], name: str, x: Tensor, what: str) -> None:
        if self.fits(name, what, x.shape, x.dtype):  # a cache is written over when a search goes on
            kept.setdefault(name, []).append(x.clone() if what in ("keys", "values") else x)

    def fits(self, name: str, what: str, shape: Sequence[int], dtype: torch.dtype) -> bool:
        if self.allowance.take(prod(shape) * dtype.itemsize):
            return True
        self.seen.left_out[f"{name} ({what})"] = f"{'hidden ' if what == 'states' else ''}{what} {tuple(shape)}"
        return False


def state_in(output: Any) -> Tensor:
    """(B, T, D) of a block or of recurrent cells."""
    x = output[0] if isinstance(output, tuple) else output
    return pad_packed_sequence(x, batch_first=True)[0] if isinstance(x, PackedSequence) else x
