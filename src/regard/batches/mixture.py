"""Examples of several tasks in one epoch (Raffel et al. 2020, sec. 3.5.2): which examples is a pure function of (seed, epoch)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from regard.batches.batch import Batch
from regard.batches.rows import Rows, cache_per_epoch

MIXTURE_STREAM = 13


@dataclass
class MixtureRows(Rows):
    """The examples of every task that an epoch reads, task after task. A task continues in the next epoch where it stopped in
    this one, so that all its examples are read before one is read again."""

    parts: list[Rows]
    counts: list[int]
    """How many examples of each task an epoch reads."""

    def __len__(self) -> int:
        return sum(self.counts)

    @cache_per_epoch
    def chosen(self, seed: int, epoch: int) -> list[np.ndarray]:
        """Return the rows of each task in this epoch."""
        return [
            shuffled_passes(len(part), epoch * count, count, [seed, MIXTURE_STREAM, number])
            for number, (part, count) in enumerate(zip(self.parts, self.counts))
        ]

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        parts = [[side[rows] for side in part.lengths(seed, epoch)] for part, rows in zip(self.parts, self.chosen(seed, epoch))]
        return [np.concatenate(side) for side in zip(*parts)]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        ends = np.cumsum(self.counts)
        task = np.searchsorted(ends, rows, side="right")
        batches = []
        for number, (part, chosen) in enumerate(zip(self.parts, self.chosen(seed, epoch))):
            own = rows[task == number]
            if len(own):
                first = ends[number] - self.counts[number]
                batches.append(replace(part.batch(chosen[own - first], seed, epoch), rows=own))
        return Batch.concat(batches)

    def deterministic(self) -> "MixtureRows":
        return MixtureRows([part.deterministic() for part in self.parts], self.counts)

    def truncate(self, max_length: int) -> "MixtureRows":
        return MixtureRows([part.truncate(max_length) for part in self.parts], self.counts)


def shuffled_passes(size: int, first: int, number: int, key: Sequence[int]) -> np.ndarray:
    """Return `number` entries, from `first` on, of an endless sequence of shuffles of 0 … size - 1."""
    shuffles = range(first // size, (first + number - 1) // size + 1)
    sequence = np.concatenate([np.random.default_rng([*key, shuffle]).permutation(size) for shuffle in shuffles])
    return sequence[first % size :][:number]


def examples_per_epoch(
    sizes: Sequence[int], weights: Sequence[float], temperature: float = 1.0, size_limit: int | None = None
) -> list[int]:
    """Return how many examples of each task an epoch reads, which has as many as there are in all: in proportion to
    weight · min(size, size_limit)^(1/T), and at least one."""
    limited = np.minimum(np.array(sizes, np.float64), size_limit or np.inf)
    rates = np.array(weights) * limited ** (1 / temperature)
    return [max(1, round(examples)) for examples in sum(sizes) * rates / rates.sum()]
