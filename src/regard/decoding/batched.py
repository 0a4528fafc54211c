"""Many sentences: sorted by length, decoded in batches of alike ones, returned in order."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from regard.tokens.special import FILL, OURS, Marks

Result = TypeVar("Result")
Search = Callable[[tuple[Tensor, Tensor], Tensor, np.ndarray], list[Result]]


def default_limit(length: int) -> int:
    """Most tokens of an output for an input of this many, ends included."""
    return 2 * length + 20


def limit_of(length: int, most: int, max_tokens: int | None = None) -> int:
    """Likewise, where the model takes at most so many, or the user wants no more."""
    return min(most, max_tokens + 1 if max_tokens else default_limit(length))


def decode_all(sources: Sequence[Sequence[int]], search: Search, *, batch_tokens: int, device: torch.device, most: int,
               max_tokens: int | None = None, marks: Marks = OURS) -> list:
    """`search((ids, lengths), limits, numbers)` over batches; limits and results do not depend on the batch."""
    results: list = [None] * len(sources)
    for numbers in batches_by_length([len(source) + marks.around for source in sources], batch_tokens):
        chosen = [[*marks.before, *sources[i], *marks.after] for i in numbers]
        lengths = torch.tensor([len(ids) for ids in chosen])
        ids = torch.full((len(chosen), int(lengths.max())), FILL)
        for row, tokens in zip(ids, chosen):
            row[:len(tokens)] = torch.tensor(tokens)
        limits = [limit_of(len(tokens), most, max_tokens) for tokens in chosen]
        found = search((ids.to(device), lengths.to(device)), torch.tensor(limits, device=device), np.array(numbers))
        for number, result in zip(numbers, found):
            results[number] = result
    return results


def batches_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices of sentences of similar length, longest first, each batch of at most `budget` padded positions."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    start = 0
    while start < len(order):
        size = max(1, budget // lengths[order[start]])
        yield order[start:start + size]
        start += size
