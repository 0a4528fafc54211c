"""Record attention without changing the model or its output.

Weights are recomputed from q and k in chunks, beside the path that the output comes from. Compiled callables beside a module run
uncompiled meanwhile.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from math import prod
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from regard.attention.core import attention_scores, repeat_kv
from regard.attention.lazy_maps import LazyMap, MemoryBudget, check_heads, gradient_map, row_indices, select_heads, weights_map
from regard.attention.modules import Indices, NamePatterns, attention_modules, force_eager, hidden_state_modules
from regard.attention.multihead import Attention
from regard.attention.record import MapShape, Record, RecordedMap, module_record, normalize_tokens
from regard.errors import UserError


class HypothesisRows(Protocol):
    """A hypothesis of a search: its row of the batch each time the model read a token."""

    @property
    def rows(self) -> Sequence[int]: ...


@dataclass
class AttentionRecording:
    """What `watch` recorded: for every watched module, the weights (B, H, T, S) of each call, oldest first."""

    calls: dict[str, list[RecordedMap]] = field(default_factory=dict)
    gradient_calls: dict[str, list[RecordedMap | None]] = field(default_factory=dict)
    """dL/dW likewise; None where no gradient came back."""
    states: dict[str, list[Tensor]] = field(default_factory=dict)
    """For every layer, its output (B, T, D) in each call, before the norm at the end of a stack."""
    values: dict[str, list[Tensor]] = field(default_factory=dict)
    """For every watched module, the values (B, G, S, J) in each call."""
    queries: dict[str, list[Tensor]] = field(default_factory=dict)
    """For every watched module, the queries of the chosen heads (B, H, T, K) in each call, after rotary positions."""
    keys: dict[str, list[Tensor]] = field(default_factory=dict)
    """The keys that each of those heads sees (B, H, S, K)."""
    scores: dict[str, list[Tensor]] = field(default_factory=dict)
    """The inputs of the softmax (B, H, T, S): scores with bias, -∞ where a key is hidden."""
    omitted: dict[str, str] = field(default_factory=dict)
    """States, values, queries, keys and scores that did not fit into the budget."""
    heads: list[int] | None = None
    rows: list[int] | None = None
    budget: MemoryBudget | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> Tensor:
        """Return the weights of a module, the queries of all calls concatenated: a recurrent decoder makes one call per token."""
        return _whole(name, self.recorded(name))

    def gradient(self, name: str) -> Tensor:
        """Return the gradients by the weights of a module, zero where none came back."""
        calls = self.gradient_calls.get(name)
        if not calls or all(call is None for call in calls):
            raise UserError(f"{name}: no gradients; watch with gradients=True, and call backward() on an output of the model")
        like = next(part for call in calls if call is not None for part in call.parts.values())

        def zeros(shape: MapShape) -> RecordedMap:
            return _record_whole(like.new_zeros(shape))

        return _whole(name, [call or zeros(weights.shape) for call, weights in zip(calls, self.recorded(name))])

    def names(self) -> list[str]:
        """Return the names of the modules that were called."""
        return list(self.calls)

    def recorded(self, name: str) -> list[RecordedMap]:
        """Return the record of each call of a module, whole or reduced."""
        if name not in self.calls:
            raise UserError(f"{name}: not watched; there are {', '.join(self.calls) or 'no modules that were called'}")
        return self.calls[name]

    @property
    def dropped(self) -> dict[str, str]:
        """What the budget dropped of each module, in words."""
        missing = {name: [call.dropped for call in calls if call.dropped] for name, calls in self.calls.items()}
        missing |= {
            f"{name} (gradients)": [call.dropped for call in calls if call and call.dropped]
            for name, calls in self.gradient_calls.items()
        }
        return {name: "; ".join(dict.fromkeys(words)) for name, words in missing.items() if words} | self.omitted

    @property
    def nbytes(self) -> int:
        weights = sum(call.nbytes for calls in self.calls.values() for call in calls)
        gradients = sum(call.nbytes for calls in self.gradient_calls.values() for call in calls if call)
        return weights + gradients + sum(x.nbytes for tensors in self._tensors for calls in tensors.values() for x in calls)

    @property
    def _tensors(self) -> list[dict[str, list[Tensor]]]:
        """Everything that is recorded as it came."""
        return [self.states, self.values, self.queries, self.keys, self.scores]

    def stack(self, pattern: str = "") -> Tensor:
        """Return the weights of every module whose name matches, layer by layer: (L, B, H, T, S)."""
        return torch.stack([self[name] for name in self.calls if re.search(pattern, name)])

    def clear(self) -> None:
        """Forget everything recorded so far; `for_hypothesis` needs the record of one search only."""
        self.calls.clear()
        self.gradient_calls.clear()
        self.omitted.clear()
        for tensors in self._tensors:
            tensors.clear()
        if self.budget is not None:
            self.budget.reset()

    def to_record(
        self, tokens: Any = None, *, model: nn.Module | None = None, inputs: Mapping[str, Tensor] | None = None
    ) -> Record:
        """Return a record that can be written to a file, with `tokens` as in `Record` and hashes of the model and inputs."""

        def join(name: str, calls: list[RecordedMap]) -> list[RecordedMap]:
            reduced = any(call.dropped for call in calls)
            return [call.numpy() for call in (calls if reduced else [_record_whole(self[name])])]

        modules = {name: module_record(name, join(name, calls), self.heads, self.rows) for name, calls in self.calls.items()}
        return Record(
            modules,
            normalize_tokens(tokens),
            "" if model is None else fingerprint(model.state_dict()),
            "" if inputs is None else fingerprint(inputs),
        )

    def for_hypothesis(self, hypothesis: HypothesisRows, name: str, prefix: Sequence[int] = ()) -> Tensor:
        """Return the weights (H, T, S) of a module for one hypothesis of the watched search, as if it alone had been decoded from
        the start: T counts the tokens that it continued from. `prefix` is its row of the prefix, without its padding (-1). A
        module that was called before the search (an encoder) gives its row of the batch."""
        calls, rows = self.recorded(name), list(hypothesis.rows)
        if not rows:
            raise UserError("this hypothesis has no rows; take it from greedy decoding, sampling or beam search")
        sentence, prefilled, padding = rows[0], max(0, len(prefix) - 1), sum(token < 0 for token in prefix)
        before = queries = 0
        while queries < prefilled and before < len(calls):
            queries, before = queries + calls[before].shape[2], before + 1
        steps = calls[before : before + len(rows)]
        if queries != prefilled or len(steps) < len(rows) or steps[0].shape[2] != 1:
            return _whole(name, calls)[sentence]
        widths = [call.shape[3] for call in calls]
        if widths != sorted(widths):
            raise UserError(f"{name}: more than one search was recorded; watch one, or call clear() before each")
        maps = [_whole(name, calls[:before])[sentence]] if before else []
        # the hypotheses of a sentence lie side by side, in the batch or, before a source they share, among the queries
        maps += [_whole(name, [call]).transpose(1, 2).flatten(0, 1)[row][:, None] for call, row in zip(steps, rows)]
        return _concatenate(maps)[:, padding:, 0 if "cross" in name else padding :]


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, shapes, dtypes and values, in sorted order."""
    digest = sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _record_whole(weights: Tensor) -> RecordedMap:
    B, H, T, S = weights.shape
    return RecordedMap("weights", (B, H, T, S), {"weights": weights})


def _whole(name: str, calls: Sequence[RecordedMap]) -> Tensor:
    for call in calls:
        if call.dropped:
            raise UserError(f"{name}: the budget dropped {call.dropped}; see recorded({name!r}), or raise the budget")
    if len({call.shape[0] for call in calls}) > 1:
        raise UserError(f"{name}: the batch changes from call to call, as in a search; use for_hypothesis(hypothesis, {name!r})")
    return _concatenate([call.parts["weights"] for call in calls])


def _concatenate(maps: Sequence[Tensor]) -> Tensor:
    """Concatenate the query rows of several maps (…, T, S); maps over fewer keys are padded with zeros."""
    keys = max(weights.size(-1) for weights in maps)
    return maps[0] if len(maps) == 1 else torch.cat([F.pad(weights, (0, keys - weights.size(-1))) for weights in maps], dim=-2)


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
    """Record attention while the context is open; the output of the model does not change by one bit.

    `layers`, `heads` and `rows` (queries of each call) are indices from 0, `kinds` patterns of names: "self", "cross", "encoder",
    "decoder.*self". `budget` ("200MB") limits the recording and its workspace; a map that does not fit is reduced as `keep` says:
    "blocks" (means), "top" (the largest of each row), "rows" (every n-th) or "entropy".
    `states` adds the output of each layer, `values` the values, `queries` the queries and keys of the chosen heads and the inputs
    of the softmax, and `gradients` those of the loss by the weights, once backward() is called.
    """
    watched = attention_modules(model, layers, kinds)
    memory = MemoryBudget(budget, len(watched) * (1 + gradients), keep)
    recording = AttentionRecording(
        heads=None if heads is None else list(heads), rows=None if rows is None else list(rows), budget=memory
    )
    recorder = _Recorder(recording, memory, gradients=gradients, values=values, queries=queries)
    with ExitStack() as stack:
        stack.enter_context(force_eager())
        for name, module in watched.items():
            stack.callback(module.register_forward_hook(partial(recorder.record_call, name), with_kwargs=True).remove)
        for name, layer in hidden_state_modules(model, layers).items() if states else ():
            stack.callback(layer.register_forward_hook(partial(recorder.record_state, name)).remove)
        yield recording


@dataclass
class _Recorder:
    """The hooks of `watch`: they record what was asked for, as far as the budget allows."""

    recording: AttentionRecording
    budget: MemoryBudget
    gradients: bool
    values: bool
    queries: bool

    def record_call(self, name: str, module: Attention, args: tuple[Tensor, ...], options: dict[str, Any], output: Tensor) -> None:
        q, k, v = (part.detach() for part in args)
        first = name not in self.recording.calls
        with torch.no_grad():
            weights = weights_map(q, k, module, check_heads(self.recording.heads, q, name), **options)
            self.recording.calls.setdefault(name, []).append(self._record(name, weights, first))
            if self.values:
                self._keep(self.recording.values, name, v, "values")
            if self.queries:
                self._keep_queries(name, q, k, module, **options)
        if self.gradients:
            calls = self.recording.gradient_calls.setdefault(name, [])
            calls.append(None)
            if output.requires_grad:
                output.register_hook(self._gradient_hook(name, calls, len(calls) - 1, v, first))

    def record_state(self, name: str, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._keep(self.recording.states, name, _hidden_state(output).detach(), "states")

    def _record(self, name: str, lazy: LazyMap, first: bool) -> RecordedMap:
        rows = self.recording.rows
        if rows is not None:
            lazy = lazy.select_rows(row_indices(rows, lazy.shape[2], name, lazy.device))
        return self.budget.record(lazy, first=first)

    def _gradient_hook(self, name: str, calls: list[RecordedMap | None], number: int, v: Tensor, first: bool) -> Callable[[Tensor], None]:
        """Return a hook that records the gradient of one call's weights when the gradient of its output comes."""

        def hook(gradient: Tensor) -> None:
            with torch.no_grad():
                lazy = gradient_map(gradient, v, check_heads(self.recording.heads, gradient, name))
                calls[number] = self._record(name, lazy, first)

        return hook

    def _keep_queries(self, name: str, q: Tensor, k: Tensor, module: Attention, **options: Any) -> None:
        """Keep queries, keys, and the inputs of the softmax."""
        heads, rows = check_heads(self.recording.heads, q, name), self.recording.rows
        q, k, options["mask"], options["bias"] = select_heads(q, repeat_kv(k, q.size(1)), heads, **options)
        chosen = slice(None) if rows is None else row_indices(rows, q.size(2), name, q.device)
        self._keep(self.recording.queries, name, q[:, :, chosen], "queries")
        self._keep(self.recording.keys, name, k, "keys")
        shape = (*q[:, :, chosen].shape[:3], k.size(2))
        if self._fits(name, "scores", shape, torch.promote_types(q.dtype, torch.float32)):
            scores = attention_scores(q, k, score=module.score, scale=module.scale, rows=chosen, **options)
            self.recording.scores.setdefault(name, []).append(scores)

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
