"""Many sentences: sorted by length, decoded in batches of alike ones, returned in order."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from regard import distributed
from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy, greedy_or_sample
from regard.decoding.protocol import Decodable, Hypothesis
from regard.decoding.sampling import Sampler
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, PAD, SpecialTokens

LENGTH_MULTIPLE = 8
"""On a GPU, lengths are filled up to multiples of this."""
Result = TypeVar("Result")
SearchFunction = Callable[[Any, Tensor, np.ndarray], list[Result]]
"""Of inputs, limits, and the number of each example among all."""


def make_search(
    model: Decodable,
    *,
    beam: int,
    alpha: float,
    number: int = 1,
    temperature: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
) -> SearchFunction[list[Hypothesis]]:
    """The `number` best hypotheses of each example, best first; with a temperature, one that is drawn."""

    def search(inputs: Any, limits: Tensor, numbers: np.ndarray) -> list[list[Hypothesis]]:
        if temperature is None and beam > 1:
            return beam_search(model, inputs, limits, beam=beam, alpha=alpha, number=number, special_tokens=special_tokens)
        choose = (
            greedy
            if temperature is None
            else Sampler(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, sequence_ids=numbers)
        )
        return [[found] for found in greedy_or_sample(model, inputs, limits, choose, alpha, special_tokens=special_tokens)]

    return search


def default_output_limit(length: int) -> int:
    """Most tokens of an output for an input of this many, ends included."""
    return 2 * length + 20


def output_limit(length: int, most: int, max_tokens: int | None = None) -> int:
    """Likewise, where the model takes at most so many, or the user wants no more."""
    return min(most, max_tokens + 1 if max_tokens else default_output_limit(length))


def decode_all(
    sources: Sequence[Sequence[int]],
    search: SearchFunction,
    *,
    batch_tokens: int,
    device: torch.device,
    most: int,
    max_tokens: int | None = None,
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
    workers: int = 1,
) -> list:
    """`search((ids, lengths), limits, numbers)` over batches; limits and results do not depend on the batch, nor on how many
    are searched at once. Ranks share them."""
    results: list = [None] * len(sources)
    multiple = LENGTH_MULTIPLE if device.type == "cuda" else 1  # so that shapes come again and are recorded
    lengths_read = [-(-(len(source) + special_tokens.num_added) // multiple) * multiple for source in sources]

    def go(numbers: list[int]) -> None:
        chosen = [[*special_tokens.prefix, *sources[i], *special_tokens.suffix] for i in numbers]
        lengths = torch.tensor([len(ids) for ids in chosen])
        ids = torch.full((len(chosen), max(lengths_read[i] for i in numbers)), PAD)
        for row, tokens in zip(ids, chosen):
            row[: len(tokens)] = torch.tensor(tokens)
        limits = [output_limit(len(tokens), most, max_tokens) for tokens in chosen]
        found = search((ids.to(device), lengths.to(device)), torch.tensor(limits, device=device), np.array(numbers))
        for number, result in zip(numbers, found):
            results[number] = result

    share = -(-sum(lengths_read) // workers)  # a batch a worker, where all are few
    batches = list(distributed.shard(batches_by_length(lengths_read, max(1, min(batch_tokens, share)))))
    if workers == 1 or len(batches) <= 1:
        for numbers in batches:
            go(numbers)
    else:
        with single_threaded_pool(workers) as pool:
            list(pool.map(go, batches))
    return results if distributed.world_size() == 1 else gather_hypotheses(results)


def gather_hypotheses(found: list[list[Hypothesis] | None]) -> list[list[Hypothesis]]:
    """What all ranks have found."""
    said = distributed.merge_shards([some if some is None else [asdict(one) for one in some] for some in found])
    return [[Hypothesis(**one) for one in some] for some in said]


@contextmanager
def single_threaded_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Workers that compute with one thread each. Two searches side by side take less time than one whose every small product is
    shared out among two threads, which wait for each other after each."""
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def num_workers(model: nn.Module, device: torch.device) -> int:
    """Searches at once: a core each on a CPU, one where somebody watches or where the precision is that of this thread."""
    watched = any(part._forward_hooks for part in model.modules())
    return 1 if device.type != "cpu" or watched or torch.is_autocast_enabled("cpu") else torch.get_num_threads()


def batches_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices of sentences of similar length, longest first, each batch of at most `budget` padded positions."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    start = 0
    while start < len(order):
        size = max(1, budget // lengths[order[start]])
        yield order[start : start + size]
        start += size
