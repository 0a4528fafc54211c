"""What `watch` recorded."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.lazy_maps import MemoryBudget
from regard.attention.record_file import Record, module_record, normalize_tokens
from regard.attention.reductions import MapShape, RecordedMap
from regard.errors import UserError


class HypothesisRows(Protocol):
    """An output of a search: which row of the batch it was in each time the model read a token."""

    @property
    def rows(self) -> Sequence[int]: ...


@dataclass
class AttentionRecording:
    """For every watched place, what was kept of the weights (B, H, T, S) of each call, oldest first."""

    calls: dict[str, list[RecordedMap]] = field(default_factory=dict)
    gradient_calls: dict[str, list[RecordedMap | None]] = field(default_factory=dict)
    """dL/dW likewise; None where nothing came back."""
    states: dict[str, list[Tensor]] = field(default_factory=dict)
    """For every layer, what it gave on (B, T, D) in each call, before the norm at the end of a stack."""
    values: dict[str, list[Tensor]] = field(default_factory=dict)
    """For every watched place, what was mixed under the weights (B, G, S, J) in each call."""
    queries: dict[str, list[Tensor]] = field(default_factory=dict)
    """For every watched place, the queries of the chosen heads (B, H, T, K) in each call, turned where positions turn them;"""
    keys: dict[str, list[Tensor]] = field(default_factory=dict)
    """the keys that each of those heads sees (B, H, S, K);"""
    scores: dict[str, list[Tensor]] = field(default_factory=dict)
    """and what the softmax is taken of (B, H, T, S): with what is added to the scores, -∞ where a key is hidden."""
    left_out: dict[str, str] = field(default_factory=dict)
    """What else there was no room for."""
    heads: list[int] | None = None
    rows: list[int] | None = None
    budget: MemoryBudget | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> Tensor:
        """The weights at a place, the queries of all its calls one after another: a recurrent decoder calls once a word."""
        return whole(name, self.recorded(name))

    def gradient(self, name: str) -> Tensor:
        """The gradients with respect to the weights at a place, zero where none came back."""
        calls = self.gradient_calls.get(name)
        if not calls or all(kept is None for kept in calls):
            raise UserError(f"{name}: no gradients; watch with gradients=True, and go backward through what was watched")
        some = next(kept for kept in calls if kept is not None)
        return whole(name, [kept or nothing(same.shape, some) for kept, same in zip(calls, self.recorded(name))])

    def names(self) -> list[str]:
        return list(self.calls)

    def recorded(self, name: str) -> list[RecordedMap]:
        """What is kept of each call at a place, whole or reduced."""
        if name not in self.calls:
            raise UserError(f"{name}: not watched; there are {', '.join(self.calls) or 'no places that were called'}")
        return self.calls[name]

    @property
    def dropped(self) -> dict[str, str]:
        """In words, what is not kept of each place that is not whole."""
        words = {name: [kept.dropped for kept in calls if kept.dropped] for name, calls in self.calls.items()}
        words |= {
            f"{name} (gradients)": [kept.dropped for kept in calls if kept and kept.dropped]
            for name, calls in self.gradient_calls.items()
        }
        found = {name: "; ".join(dict.fromkeys(said)) for name, said in words.items() if said}
        return found | self.left_out

    @property
    def nbytes(self) -> int:
        weights = sum(kept.nbytes for calls in self.calls.values() for kept in calls)
        gradients = sum(kept.nbytes for calls in self.gradient_calls.values() for kept in calls if kept)
        beside = [x for kept in self.beside for calls in kept.values() for x in calls]
        return weights + gradients + sum(x.nbytes for x in beside)

    @property
    def beside(self) -> list[dict[str, list[Tensor]]]:
        """What is kept as it came."""
        return [self.states, self.values, self.queries, self.keys, self.scores]

    def stack(self, pattern: str = "") -> Tensor:
        """The weights at every place whose name matches, one layer after another: (L, B, H, T, S)."""
        return torch.stack([self[name] for name in self.calls if re.search(pattern, name)])

    def clear(self) -> None:
        """Forget it all: a record that is to be read by hypotheses holds one search."""
        self.calls.clear()
        self.gradient_calls.clear()
        for kept in self.beside:
            kept.clear()
        self.left_out.clear()
        if self.budget is not None:
            self.budget.reset()

    def to_record(
        self, tokens: Any = None, *, model: nn.Module | None = None, inputs: Mapping[str, Tensor] | None = None
    ) -> Record:
        """As a record that can be written to a file: `tokens` as `Record` has them; model and inputs leave their hashes."""

        def joined(name: str, calls: list[RecordedMap]) -> list[RecordedMap]:
            reduced = any(kept.dropped for kept in calls)
            return [kept.numpy() for kept in (calls if reduced else [of_weights(self[name])])]

        placed = {name: module_record(name, joined(name, calls), self.heads, self.rows) for name, calls in self.calls.items()}
        return Record(
            placed,
            normalize_tokens(tokens),
            "" if model is None else fingerprint(model.state_dict()),
            "" if inputs is None else fingerprint(inputs),
        )

    def for_hypothesis(self, hypothesis: HypothesisRows, name: str, prefix: Sequence[int] = ()) -> Tensor:
        """The weights (H, T, S) at a place along the way of one hypothesis of the search that was watched, as if it alone had
        been read from the beginning: T are the tokens it went on from. `prefix` is its row of the prefix it began with, where
        there was one; what fills it (-1) is left out. A place that was called before the search (an encoder) gives its row."""
        calls, rows = self.recorded(name), list(hypothesis.rows)
        if not rows:
            raise UserError("this hypothesis does not know its way; take it from walk or beam_search")
        sentence, read, filled = rows[0], max(0, len(prefix) - 1), sum(token < 0 for token in prefix)
        before = asked = 0
        while asked < read and before < len(calls):
            asked, before = asked + calls[before].shape[2], before + 1
        steps = calls[before : before + len(rows)]
        if asked != read or len(steps) < len(rows) or steps[0].shape[2] != 1:
            return whole(name, calls)[sentence]
        widths = [kept.shape[3] for kept in calls]
        if widths != sorted(widths):
            raise UserError(f"{name}: more than one search was recorded; watch one, or seen.clear() before each")
        maps = [whole(name, calls[:before])[sentence]] if before else []
        # the hypotheses of a sentence lie side by side, in the batch or, before a source they share, among the queries
        maps += [whole(name, [kept]).transpose(1, 2).flatten(0, 1)[row][:, None] for kept, row in zip(steps, rows)]
        return side_by_side(maps)[:, filled:, 0 if "cross" in name else filled :]


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, shapes, types and numbers, whatever the order."""
    found = sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def nothing(shape: MapShape, like: RecordedMap) -> RecordedMap:
    """The gradient of what does not depend on the weights."""
    return of_weights(next(iter(like.parts.values())).new_zeros(shape))


def of_weights(weights: Tensor) -> RecordedMap:
    B, H, T, S = weights.shape
    return RecordedMap("weights", (B, H, T, S), {"weights": weights})


def whole(name: str, calls: Sequence[RecordedMap]) -> Tensor:
    for kept in calls:
        if kept.dropped:
            raise UserError(f"{name}: the budget dropped {kept.dropped}; see seen.recorded({name!r}), or give more")
    if len({kept.shape[0] for kept in calls}) > 1:
        raise UserError(
            f"{name}: the batch changed from call to call, as in a search; use seen.for_hypothesis(hypothesis, {name!r})"
        )
    return side_by_side([kept.parts["weights"] for kept in calls])


def side_by_side(maps: Sequence[Tensor]) -> Tensor:
    """Rows of several maps (…, T, S), one after another; those over fewer keys are filled with zeros."""
    longest = max(weights.size(-1) for weights in maps)
    return maps[0] if len(maps) == 1 else torch.cat([F.pad(weights, (0, longest - weights.size(-1))) for weights in maps], dim=-2)
