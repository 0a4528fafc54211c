"""Decoding of many sources: one description of what is decoded and how, for the command line, the server and Python.

A task describes its inputs as `Sources` and the search as `SearchParams`. `decode_all` sorts the sources by length, decodes them
in batches and returns the results in order; `DecodingRequest.from_source` (continuous_batching.py) decodes a single one together
with whatever else is running. Both give the same outputs.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from regard import distributed
from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy_or_sample
from regard.decoding.protocol import Decodable, Hypothesis, require_output
from regard.decoding.sampling import ChooseToken, SamplingParams, greedy, sample_index
from regard.progress import track
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, PAD, SpecialTokens

LENGTH_MULTIPLE = 8
"""On a GPU, lengths are padded to multiples of this, so that shapes recur and CUDA graphs are reused."""


@dataclass(frozen=True)
class SearchParams:
    """How the best outputs of a source are found: by beam search, greedily with `beam` = 1, or by sampling."""

    beam: int = 1
    length_penalty: float = 0.0
    """α of ((5 + length) / 6)^α (Wu et al. 2016, eq. 14)."""
    num_hypotheses: int = 1
    """Outputs per source, best first."""
    max_tokens: int | None = None
    batch_tokens: int = 8192
    """Source positions times hypotheses decoded together."""
    sampling: SamplingParams | None = None
    """If given, outputs are sampled and `beam` only limits the batch."""

    @property
    def width(self) -> int:
        """Hypotheses kept per source."""
        return self.beam if self.sampling is None else 1

    @property
    def samples(self) -> int:
        """How many times each source is decoded: a search finds several outputs, sampling draws one."""
        return 1 if self.sampling is None else self.num_hypotheses

    def chooser(self, sequence_ids: np.ndarray) -> ChooseToken:
        return greedy if self.sampling is None else self.sampling.chooser(sequence_ids)


class DecodingEngine(Protocol):
    """Another program that searches with a run's model, such as CTranslate2."""

    name: str

    def decode(self, sources: Sequence[Sequence[int]], params: SearchParams, max_length: int) -> list[list[Hypothesis]]: ...


@dataclass(frozen=True)
class Sources:
    """Inputs to decode from."""

    lengths: Sequence[int]
    """Positions that each takes in a batch."""
    limits: Sequence[int]
    """Most tokens of each output, end token included."""
    collate: Callable[[Sequence[int]], Any]
    """Return the model's inputs for the sources with these indices."""
    prefix: Callable[[Sequence[int]], Tensor] | None = None
    """Return the tokens (B, L) that their outputs continue, if any."""
    sequence_ids: Sequence[int] | None = None
    """What seeds the sampling of each; by default its index."""


def repeat_sources(sources: Sources, times: int) -> Sources:
    """Return each source several times in a row, to be sampled from."""

    def originals(indices: Sequence[int]) -> list[int]:
        return [i // times for i in indices]

    rows = [(i, sample) for i in range(len(sources.lengths)) for sample in range(times)]
    ids = range(len(sources.lengths)) if sources.sequence_ids is None else sources.sequence_ids
    prefix = sources.prefix
    return Sources(
        [sources.lengths[i] for i, _ in rows],
        [sources.limits[i] for i, _ in rows],
        lambda indices: sources.collate(originals(indices)),
        None if prefix is None else lambda indices: prefix(originals(indices)),
        [sample_index(ids[i], sample) for i, sample in rows],
    )


def text_sources(
    ids: Sequence[Sequence[int]],
    *,
    device: torch.device,
    max_length: int,
    max_tokens: int | None = None,
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
) -> Sources:
    """Return texts, given as token ids without special tokens, as sources; the model's inputs are (ids (B, S), lengths (B,))."""
    texts = [[*special_tokens.prefix, *text, *special_tokens.suffix] for text in ids]
    multiple = LENGTH_MULTIPLE if device.type == "cuda" else 1
    padded_lengths = [-(-len(text) // multiple) * multiple for text in texts]

    def collate(indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor([len(texts[i]) for i in indices])
        batch = torch.full((len(indices), max(padded_lengths[i] for i in indices)), PAD)
        for row, i in zip(batch, indices):
            row[: len(texts[i])] = torch.tensor(texts[i])
        return batch.to(device), lengths.to(device)

    return Sources(padded_lengths, [output_limit(len(text), max_length, max_tokens) for text in texts], collate)


def output_limit(length: int, max_length: int, max_tokens: int | None = None) -> int:
    """Return the most tokens of an output, end token included, for an input of this length: twice as many and 20 more, at most
    what the model takes, or what the user asked for."""
    return min(max_length, max_tokens + 1 if max_tokens else 2 * length + 20)


def search(
    model: Decodable,
    inputs: Any,
    limits: Tensor,
    params: SearchParams,
    sequence_ids: np.ndarray,
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
    prefix: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Return the best hypotheses of each source in a batch, best first."""
    if params.width > 1:
        found = beam_search(
            model,
            inputs,
            limits,
            beam=params.beam,
            alpha=params.length_penalty,
            number=params.num_hypotheses,
            special_tokens=special_tokens,
            prefix=prefix,
        )
        return [require_output(hypotheses) for hypotheses in found]
    choose = params.chooser(sequence_ids)
    outputs = greedy_or_sample(model, inputs, limits, choose, params.length_penalty, prefix, special_tokens)
    return [require_output([output]) for output in outputs]


def decode_all(
    model: Decodable,
    sources: Sources,
    params: SearchParams,
    *,
    device: torch.device,
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
    workers: int = 1,
) -> list[list[Hypothesis]]:
    """Return the best hypotheses of each source, best first, or its samples.

    Outputs depend neither on the batches nor on the number of workers. Ranks share the batches and exchange the results.
    """
    if params.samples > 1:
        found = decode_all(
            model,
            repeat_sources(sources, params.samples),
            replace(params, num_hypotheses=1),
            device=device,
            special_tokens=special_tokens,
            workers=workers,
        )
        return [list(chain(*found[start : start + params.samples])) for start in range(0, len(found), params.samples)]
    results: list[Any] = [None] * len(sources.lengths)

    def decode_batch(indices: list[int]) -> None:
        limits = torch.tensor([sources.limits[i] for i in indices], device=device)
        prefix = None if sources.prefix is None else sources.prefix(indices)
        ids = indices if sources.sequence_ids is None else [sources.sequence_ids[i] for i in indices]
        found = search(model, sources.collate(indices), limits, params, np.array(ids), special_tokens, prefix)
        for index, hypotheses in zip(indices, found):
            results[index] = hypotheses

    per_worker = -(-sum(sources.lengths) // workers)  # a batch per worker if there are only a few sources
    budget = max(1, min(max(1, params.batch_tokens // params.beam), per_worker))
    batches = list(distributed.shard(batches_by_length(sources.lengths, budget)))
    if workers == 1 or len(batches) <= 1:
        for indices in track(batches, len(sources.lengths), len):
            decode_batch(indices)
    else:
        with single_threaded_pool(workers) as pool:
            done = zip(batches, pool.map(decode_batch, batches))
            for _ in track(done, len(sources.lengths), lambda pair: len(pair[0])):
                pass
    if distributed.world_size() == 1:
        return results
    merged = distributed.merge_shards([None if found is None else [asdict(one) for one in found] for found in results])
    return [[Hypothesis(**one) for one in found] for found in merged]


@contextmanager
def single_threaded_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Yield workers that compute with one thread each: two searches side by side take less time than one whose small matrix
    products are each split between two threads that then wait for each other."""
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def num_workers(model: nn.Module, device: torch.device) -> int:
    """Return how many searches run at once: one per core on a CPU; one if hooks watch the model, or under autocast, which is
    local to this thread."""
    alone = device.type != "cpu" or is_watched(model) or torch.is_autocast_enabled("cpu")
    return 1 if alone else torch.get_num_threads()


def is_watched(model: nn.Module) -> bool:
    """Return whether hooks watch or edit the model."""
    return any(part._forward_hooks for part in model.modules())


def batches_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield the indices of sources of similar length, longest first, at most `budget` padded positions per batch."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    start = 0
    while start < len(order):
        size = max(1, budget // lengths[order[start]])
        yield order[start : start + size]
        start += size
