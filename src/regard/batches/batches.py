"""Batches filled to a token budget with little padding; each is a pure function of (seed, epoch, step)."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from regard.batches.batch import Batch
from regard.batches.rows import Rows

SHUFFLE = 1
UNIFORM_FRACTION = 0.95


class Batches:
    """The batches of every epoch over some examples. `rank` of `ranks` takes its share of each batch's rows. Rows are filled
    up to a `multiple` of positions, so that few shapes of batches come, again and again."""

    def __init__(
        self, examples: Rows, tokens_per_batch: int, seed: int, *, rank: int = 0, world_size: int = 1, pad_to_multiple_of: int = 1
    ):
        self.examples, self.budget, self.seed = examples, tokens_per_batch, seed
        self.rank, self.world_size, self.pad_to_multiple_of = rank, world_size, pad_to_multiple_of
        self.planned: tuple[int, list[np.ndarray], list[int]] | None = None

    def plan(self, epoch: int) -> list[np.ndarray]:
        """The rows of each batch of an epoch."""
        return self.planned_for(epoch)[1]

    def planned_for(self, epoch: int) -> tuple[int, list[np.ndarray], list[int]]:
        """The epoch, the rows of each of its batches, and the longest row on each side."""
        planned = self.planned
        if planned is None or planned[0] != epoch:
            chance = np.random.default_rng([self.seed, SHUFFLE, epoch])
            lengths = self.lengths(epoch)
            batches = group_by_length(lengths, self.budget, chance.permutation(len(lengths[0])))
            planned = self.planned = (
                epoch,
                [batches[i] for i in chance.permutation(len(batches))],
                [int(side.max()) for side in lengths],
            )
        return planned

    def rows(self, epoch: int, index: int) -> np.ndarray:
        """The rows of one batch that are this rank's."""
        return self.plan(epoch)[index][self.rank :: self.world_size]

    def lengths(self, epoch: int) -> list[np.ndarray]:
        """Of each row on each side, filled up; never beyond the longest, for which models have room."""
        sides = self.examples.lengths(self.seed, epoch)
        if self.pad_to_multiple_of == 1:
            return sides
        return [np.minimum(-(-side // self.pad_to_multiple_of) * self.pad_to_multiple_of, side.max()) for side in sides]

    def batch(self, epoch: int, index: int) -> Batch:
        return self.made(self.plan(epoch)[index], epoch, self.planned_for(epoch)[2])

    def made(self, rows: np.ndarray, epoch: int, longest: Sequence[int]) -> Batch:
        """This rank's share of a batch of these rows; where there is none, a row that does not count."""
        mine = rows[self.rank :: self.world_size]
        batch = self.examples.batch(mine if len(mine) else rows[:1], self.seed, epoch)
        batch = batch if self.pad_to_multiple_of == 1 else batch.filled(self.pad_to_multiple_of, longest)
        return batch if len(mine) else replace(batch, counts=False)

    def run(self, epoch: int = 0, index: int = 0, *, workers: int = 1) -> Iterator[tuple[int, int, Batch]]:
        """Batches without end, from a given place on; `workers` threads prepare them ahead."""
        places = self.places(epoch, index)
        if not workers:
            for e, i in places:
                yield e, i, self.batch(e, i)
        with ThreadPoolExecutor(workers) as pool:
            ahead: deque[tuple[int, int, Future[Batch]]] = deque()
            while True:
                while len(ahead) < 2 * workers + 2:
                    e, i = next(places)
                    ahead.append((e, i, pool.submit(self.made, self.plan(e)[i], e, self.planned_for(e)[2])))
                e, i, future = ahead.popleft()
                yield e, i, future.result()

    def places(self, epoch: int, index: int) -> Iterator[tuple[int, int]]:
        while True:
            for i in range(index, len(self.plan(epoch))):
                yield epoch, i
            epoch, index = epoch + 1, 0

    def alike(self) -> bool:
        """Whether nearly all rows are of one length."""
        return all(np.bincount(side).max() >= UNIFORM_FRACTION * len(side) for side in self.lengths(0))

    def padding_fraction(self, epoch: int = 0) -> float:
        """The part of all positions, on all sides, that is padding."""
        lengths = self.examples.lengths(self.seed, epoch)
        real = sum(int(side.sum()) for side in lengths)
        filled = self.lengths(epoch)
        padded = sum(len(rows) * int(side[rows].max()) for rows in self.plan(epoch) for side in filled)
        return 1 - real / padded


def group_by_length(sides: Sequence[np.ndarray], budget: int, order: np.ndarray) -> list[np.ndarray]:
    """Cut the rows, of so many positions on each side, into batches of at most `budget` positions on the longest side.

    They are sorted by the longest side, and within one length by the difference of the sides, up and down in turns, so that
    neighbours are alike on all sides. `order` decides among rows of equal lengths.
    """
    longest, difference = np.max(sides, axis=0), sides[0] - sides[-1]
    order = order[np.lexsort((np.where(longest % 2, difference, -difference)[order], longest[order]))]
    batches, start = [], 0
    while start < len(order):
        window = longest[order[start : start + budget]]
        size = max(1, int(np.searchsorted(window * np.arange(1, len(window) + 1), budget, side="right")))
        batches.append(order[start : start + size])
        start += size
    return batches


def sequential_batches(examples: Rows, budget: int) -> Iterator[Batch]:
    """Every example once, unshuffled and without dropout: for evaluation."""
    plain = examples.deterministic()
    for rows in group_by_length(plain.lengths(0, 0), budget, np.arange(len(plain))):
        yield plain.batch(rows, 0, 0)
