"""Look at attention, or change it, without touching the model.

`watch` records weights beside the path the output always came from: they are computed again from q and k, in row chunks.
`edit` replaces weights on the written-out path (ablation, permutation).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import Score, attention_weights, mix
from regard.attention.masks import NO_MASK, Mask
from regard.attention.multihead import Attend

ROWS_AT_ONCE = 256


@dataclass
class Seen:
    """What `watch` recorded: for every watched place, the weights (B, H, T, S) of each call, oldest first."""

    calls: dict[str, list[Tensor]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        """The weights at a place, the queries of all its calls one after another: a recurrent decoder calls once a word."""
        longest = max(weights.size(-1) for weights in self.calls[name])
        return torch.cat([F.pad(weights, (0, longest - weights.size(-1))) for weights in self.calls[name]], dim=2)

    def places(self) -> list[str]:
        return list(self.calls)

    def stack(self, pattern: str = "") -> Tensor:
        """The weights at every place whose name matches, one layer after another: (L, B, H, T, S)."""
        return torch.stack([self[name] for name in self.calls if re.search(pattern, name)])


def places(model: nn.Module, layers: Sequence[int] | None = None, kinds: str | Sequence[str] | None = None) -> dict[str, Attend]:
    """The named places of attention in a model, such as `decoder.blocks.0.cross_attention`."""
    found = {name.removesuffix(".attend"): module for name, module in model.named_modules() if isinstance(module, Attend)}
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds is not None:
        found = {name: place for name, place in found.items() if any(kind in name for kind in kinds)}
    if layers is not None:
        found = {name: place for name, place in found.items() if layer_of(name) in layers}
    return found


def layer_of(name: str) -> int | None:
    number = re.search(r"\.(\d+)\.", name)
    return int(number.group(1)) if number else None


@contextmanager
def watch(model: nn.Module, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None,
          kinds: str | Sequence[str] | None = None) -> Iterator[Seen]:
    """Record attention while the block runs; the model's output does not change by one bit.

    `layers` and `heads` are numbers counted from 0, `kinds` parts of names: "self", "cross", "encoder", "decoder.*self".
    """
    seen = Seen()

    def record(name: str):
        def hook(module: Attend, args: tuple, options: dict, output: Tensor) -> None:
            q, k, _ = args
            with torch.no_grad():
                seen.calls.setdefault(name, []).append(weights_in_chunks(q, k, heads=heads, score=module.score,
                                                                                  scale=module.scale, **options))
        return hook

    handles = [place.register_forward_hook(record(name), with_kwargs=True)
               for name, place in places(model, layers, kinds).items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def edit(model: nn.Module, change: Callable[[str, Tensor], Tensor], *, layers: Sequence[int] | None = None,
         kinds: str | Sequence[str] | None = None) -> Iterator[None]:
    """Replace the weights (B, H, T, S) at each place by `change(name, weights)` while the block runs."""
    def replace(name: str):
        def hook(module: Attend, args: tuple, options: dict, output: Tensor) -> Tensor:
            q, k, v = args
            return mix(change(name, attention_weights(q, k, score=module.score, scale=module.scale, **options)), v)
        return hook

    handles = [place.register_forward_hook(replace(name), with_kwargs=True)
               for name, place in places(model, layers, kinds).items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def weights_in_chunks(q: Tensor, k: Tensor, *, heads: Sequence[int] | None = None, score: Score | None = None,
                      mask: Mask | None = None, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """The written-out weights, a few query rows at a time, so that only the record itself takes memory."""
    T, S = q.size(-2), k.size(-2)
    allowed = (mask or NO_MASK).dense(T, S, q.device)
    bias = None if bias is None else bias.expand(*bias.shape[:-2], T, S)
    chunks = []
    for start in range(0, T, ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        part = None if allowed is None else Mask(allowed=allowed.expand(-1, -1, T, -1)[:, :, rows])
        added = None if bias is None else bias[..., rows, :]
        w = attention_weights(q[:, :, rows], k, score=score, mask=part, bias=added, scale=scale)
        chunks.append(w if heads is None else w[:, list(heads)])
    return torch.cat(chunks, dim=2)
