"""What `watch` recorded: the weights of every call of attention, and what was asked for beside them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import DecomposableScore
from regard.attention.lazy_maps import MemoryBudget
from regard.attention.record import MapShape, Record, RecordedMap, Tokens, module_record, normalize_tokens
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.show.inline import InlineFigure


class HypothesisRows(Protocol):
    """A hypothesis of a search: its row of the batch each time the model read a token."""

    @property
    def rows(self) -> Sequence[int]: ...


@dataclass(repr=False)
class AttentionRecording:
    """What `watch` recorded: for every watched module, the weights (B, H, T, S) of each call, oldest first."""

    calls: dict[str, list[RecordedMap]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    """What each watched module does: "self", "causal" (self-attention that sees no later key) or "cross"."""
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
    score_functions: dict[str, DecomposableScore] = field(default_factory=dict)
    """How those queries and keys are scored, before any bias."""
    omitted: dict[str, str] = field(default_factory=dict)
    """States, values, queries, keys and scores that did not fit into the budget."""
    heads: list[int] | None = None
    rows: list[int] | None = None
    budget: MemoryBudget | None = field(default=None, repr=False)
    has_decoder: bool = False
    """Whether the model has an encoder and a decoder, and so two sides."""

    def __repr__(self) -> str:
        """Return a table of what was recorded: each module, its kind, its calls and the shape of its weights."""
        if not self.calls:
            return "nothing recorded yet: call the model inside `with watch(model) as seen`"
        table = [("module", "kind", "calls", "weights (B, H, T, S)")]
        for name, calls in self.calls.items():
            shapes = dict.fromkeys(" × ".join(map(str, call.shape)) for call in calls)
            first, *_, last = [*shapes, *shapes]
            reduced = "  reduced" if any(call.dropped for call in calls) else ""
            shown = first if len(shapes) == 1 else f"{first} … {last}"
            table.append((name, self.kinds.get(name, ""), str(len(calls)), shown + reduced))
        widths = [max(map(len, column)) for column in zip(*table)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table)

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
        self.kinds.clear()
        self.gradient_calls.clear()
        self.omitted.clear()
        self.score_functions.clear()
        for tensors in self._tensors:
            tensors.clear()
        if self.budget is not None:
            self.budget.reset()

    def to_record(
        self, tokens: Tokens | None = None, *, model: nn.Module | None = None, inputs: Mapping[str, Tensor] | None = None
    ) -> Record:
        """Return a record that can be written to a file, with `tokens` as in `Record` and hashes of the model and inputs."""

        def join(name: str, calls: list[RecordedMap]) -> list[RecordedMap]:
            reduced = any(call.dropped for call in calls)
            return [call.numpy() for call in (calls if reduced else [_record_whole(self[name])])]

        modules = {
            name: module_record(name, join(name, calls), self.heads, self.rows, stack=self._stack(name))
            for name, calls in self.calls.items()
        }
        return Record(
            modules,
            normalize_tokens(tokens),
            "" if model is None else fingerprint(model.state_dict()),
            "" if inputs is None else fingerprint(inputs),
        )

    def _stack(self, name: str) -> str:
        """Return the stack that a module belongs to, which says what its queries and keys are (`record.SIDES`)."""
        if self.kinds[name] == "cross":
            return "cross"
        if not self.has_decoder:
            return "text"
        return "encoder" if "encoder" in name.split(".") else "decoder"

    def show(
        self,
        view: str = "heads",
        tokens: Tokens | None = None,
        *,
        kind: str | None = None,
        layer: int | None = None,
        head: int | str | None = None,
        token: str | int | None = None,
        scale: str = "shown",
        row: int = 0,
    ) -> "InlineFigure":
        """Show one row of the batch as a figure that displays by itself in a notebook, and can be saved.

        `tokens` are those of one text, of each row, or of each side ({"source": …, "target": …}). `view` is "heads" (lines
        between tokens), "model" (all heads of all layers), "matrix", "token" (one token over the layers), "entropy" or, if
        queries were recorded, "neurons"; `kind` is "cross", "encoder" or "decoder"; `layer`, `head` and `token` count from 1.
        With `scale="absolute"` colours end at weight 1.
        """
        from regard.show.selection import ViewSelection
        from regard.show.views import show_recording

        selection = ViewSelection.of(view, kind, layer, head, token, scale=scale)
        return show_recording(self, tokens, selection, row=row)

    def of(self, result: HypothesisRows, kind: str | None = None) -> Tensor:
        """Return the weights (layers, H, T, S) that belong to one output of the watched search: a translation, or a hypothesis.

        `kind` is "cross", "causal" or "self"; by default the first of these that was recorded. T counts the begin token and the
        tokens of the output.
        """
        found = set(self.kinds.values())
        kind = kind or next((kind for kind in ("cross", "causal", "self") if kind in found), "cross")
        names = [name for name in self.calls if self.kinds[name] == kind]
        if not names:
            raise UserError(f"kind = {kind!r}: nothing of it was recorded; there is {', '.join(sorted(found)) or 'nothing'}")
        return torch.stack([self.for_hypothesis(result, name) for name in names])

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
        return _concatenate(maps)[:, padding:, 0 if self.kinds[name] == "cross" else padding :]


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
