"""Record attention without changing the model or its output, in any PyTorch model.

The output comes from the path that it always comes from; weights are computed again from q and k in chunks (interception.py finds
them). Compiled models run as their modules meanwhile.
"""

import difflib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from regard.attention.calls import AttentionCall
from regard.attention.interception import Interceptor, intercept
from regard.attention.lazy_maps import LazyMap, MemoryBudget, check_heads, row_indices
from regard.attention.modules import (
    Indices,
    NamePatterns,
    attention_like_modules,
    has_decoder,
    hidden_state_modules,
    matches,
    named_modules,
    select_modules,
)
from regard.attention.record import RecordedMap
from regard.attention.recording import AttentionRecording
from regard.errors import UserError


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
    """Record the attention of any PyTorch model while the context is open; its output does not change by one bit.

    `layers`, `heads` and `rows` (queries of each call) are indices from 0; `kinds` are "self", "causal", "cross", or patterns of
    module names such as "decoder.*self". `budget` ("200MB") limits the recording and its workspace; a map that does not fit is
    reduced as `keep` says: "blocks" (means), "top" (the largest of each row), "rows" (every n-th) or "entropy".
    `states` adds the output of each layer, `values` the values, `queries` the queries and keys of the chosen heads and the inputs
    of the softmax, and `gradients` those of the loss by the weights, once backward() is called.
    """
    modules = named_modules(model)
    expected = select_modules(attention_like_modules(modules), layers, kinds)
    memory = MemoryBudget(budget, max(1, len(expected)) * (1 + gradients), keep)
    recording = AttentionRecording(
        heads=None if heads is None else list(heads),
        rows=None if rows is None else list(rows),
        budget=memory,
        has_decoder=has_decoder(modules),
    )
    selection = PlaceSelection(layers, kinds)
    recorder = _Recorder(recording, memory, selection, gradients=gradients, values=values, queries=queries)
    with ExitStack() as stack:
        interceptor = stack.enter_context(intercept(model, recorder.record_call, modules))
        for name, layer in hidden_state_modules(model, layers).items() if states else ():
            stack.callback(layer.register_forward_hook(partial(recorder.record_state, name)).remove)
        yield recording
    if not recording.states:
        selection.check(interceptor)


@dataclass
class PlaceSelection:
    """The places of a model that `layers` and `kinds` select, as they are found."""

    layers: Indices
    kinds: NamePatterns
    found: dict[str, str] = field(default_factory=dict)
    """The kind of every place that attended: "self", "causal" or "cross"."""
    selected: set[str] = field(default_factory=set)

    def selects(self, call: AttentionCall) -> bool:
        """Return whether a call is selected."""
        if call.name not in self.found:
            causal = call.kind == "self" and call.is_causal()
            self.found[call.name] = "causal" if causal else call.kind
            if matches(call.name, self.found[call.name], self.layers, self.kinds):
                self.selected.add(call.name)
        return call.name in self.selected

    def check(self, interceptor: Interceptor) -> None:
        """Raise UserError where the model ran, and nothing was found or selected."""
        ran = [name for name in attention_like_modules(interceptor.modules) if name in interceptor.ran]
        if self.found and (unseen := [name for name in ran if name not in interceptor.attended]):
            names = f"{', '.join(unseen[:3])}{', …' * bool(unseen[3:])}"
            warnings.warn(f"no attention was seen in {names}: it is not a softmax over all keys", stacklevel=4)
        if self.selected or not interceptor.ran:
            return
        model = interceptor.model
        if not self.found:
            implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
            loaded = f" It uses attn_implementation={implementation!r}; load it with 'sdpa'." if implementation else ""
            classes = sorted({type(module).__name__ for module in model.modules()})
            raise UserError(
                f"no attention found in {type(model).__name__}: looked for F.scaled_dot_product_attention, nn.MultiheadAttention "
                f"and a softmax multiplied with values.{loaded} Modules: {', '.join(classes[:12])}{', …' * bool(classes[12:])}"
            )
        asked = {"layers": self.layers, "kinds": self.kinds}
        given = ", ".join(f"{name} = {value!r}" for name, value in asked.items() if value is not None)
        patterns = [self.kinds] if isinstance(self.kinds, str) else list(self.kinds or ())
        near = [name for pattern in patterns for name in difflib.get_close_matches(pattern, self.found, 3, 0.3)]
        examples = ", ".join(list(dict.fromkeys(near)) or [*self.found][:3])
        raise UserError(f"{given}: no attention of the model matches; {len(self.found)} were seen, such as {examples}")


@dataclass
class _Recorder:
    """The hooks of `watch`: they record what was asked for, as far as the budget allows."""

    recording: AttentionRecording
    budget: MemoryBudget
    selection: PlaceSelection
    gradients: bool
    values: bool
    queries: bool

    def record_call(self, call: AttentionCall, make: Callable[[], Tensor]) -> Tensor:
        output = make()
        if not self.selection.selects(call):
            return output
        call = call.padded()
        name, first = call.name, call.name not in self.recording.calls
        heads = check_heads(self.recording.heads, call.heads, name)
        self.recording.kinds[name] = self.selection.found[name]
        with torch.no_grad():
            self.recording.calls.setdefault(name, []).append(self._record(name, call.lazy_weights(heads), first))
            if self.values:
                self._keep_values(name, call)
            if self.queries:
                self._keep_queries(name, call, heads)
        if self.gradients:
            calls = self.recording.gradient_calls.setdefault(name, [])
            calls.append(None)
            call.on_gradient(output, partial(self._record_gradient, name, calls, len(calls) - 1, first), heads)
        return output

    def record_state(self, name: str, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._keep(self.recording.states, name, _hidden_state(output).detach(), "states")

    def _record(self, name: str, lazy: LazyMap, first: bool) -> RecordedMap:
        rows = self.recording.rows
        if rows is not None:
            lazy = lazy.select_rows(row_indices(rows, lazy.shape[2], name, lazy.device))
        return self.budget.record(lazy, first=first)

    def _record_gradient(self, name: str, calls: list[RecordedMap | None], number: int, first: bool, lazy: LazyMap) -> None:
        with torch.no_grad():
            calls[number] = self._record(name, lazy, first)

    def _keep_values(self, name: str, call: AttentionCall) -> None:
        values = call.values()
        if values is None:
            self.recording.omitted[f"{name} (values)"] = "values: the model multiplies them in a layout of its own"
        else:
            self._keep(self.recording.values, name, values, "values")

    def _keep_queries(self, name: str, call: AttentionCall, heads: list[int] | None) -> None:
        """Keep queries, keys, and the inputs of the softmax."""
        lazy, projected = call.lazy_weights(heads), call.queries_and_keys(heads)
        rows = self.recording.rows
        chosen = slice(None) if rows is None else row_indices(rows, lazy.shape[2], name, lazy.device)
        if projected is None:
            self.recording.omitted[f"{name} (queries)"] = "queries and keys: the model computes its scores itself"
        else:
            self._keep(self.recording.queries, name, projected[0][:, :, chosen], "queries")
            self._keep(self.recording.keys, name, projected[1], "keys")
            if (score := call.score_function()) is not None:
                self.recording.score_functions[name] = score
        B, H, T, S = lazy.shape
        shape = (B, H, T if rows is None else len(rows), S)
        if self._fits(name, "scores", shape, torch.promote_types(lazy.dtype, torch.float32)):
            self.recording.scores.setdefault(name, []).append(call.scores(heads, chosen))

    def _keep(self, kept: dict[str, list[Tensor]], name: str, x: Tensor, what: str) -> None:
        if self._fits(name, what, x.shape, x.dtype):  # a KV cache is overwritten by later steps
            kept.setdefault(name, []).append(x.clone() if what in ("keys", "values") else x)

    def _fits(self, name: str, what: str, shape: Sequence[int], dtype: torch.dtype) -> bool:
        if self.budget.reserve(prod(shape) * dtype.itemsize):
            return True
        self.recording.omitted[f"{name} ({what})"] = f"{'hidden ' if what == 'states' else ''}{what} {tuple(shape)}"
        return False


def _hidden_state(output: Any) -> Tensor:
    """Return the hidden states (B, T, D) in the output of a block or of recurrent layers."""
    x = output[0] if isinstance(output, tuple) else output
    return pad_packed_sequence(x, batch_first=True)[0] if isinstance(x, PackedSequence) else x
