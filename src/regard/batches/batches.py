"""Batches of a token budget with little padding; each is a pure function of (seed, epoch, index)."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from regard.batches.batch import Batch
from regard.batches.rows import Rows

SHUFFLE_STREAM = 1
UNIFORM_FRACTION = 0.95


class EpochPlan(NamedTuple):
    """The batches of one epoch."""

    epoch: int
    batches: list[np.ndarray]
    """The rows of each batch."""
    max_lengths: list[int]
    """The longest row of each side."""


class Batches:
    """The batches of every epoch over some rows; rank `rank` of `world_size` gets its shard of each batch.

    Rows may be padded to a multiple of positions (`pad_to_multiple_of`), so that few batch shapes occur, again and again.
    """

    def __init__(
        self, examples: Rows, tokens_per_batch: int, seed: int, *, rank: int = 0, world_size: int = 1, pad_to_multiple_of: int = 1
    ):
        self.examples, self.tokens_per_batch, self.seed = examples, tokens_per_batch, seed
        self.rank, self.world_size, self.pad_to_multiple_of = rank, world_size, pad_to_multiple_of
        self._last_plan: EpochPlan | None = None

    def plan(self, epoch: int) -> list[np.ndarray]:
        """Return the rows of each batch of an epoch."""
        return self._plan(epoch).batches

    def _plan(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch, remembered until another one is asked for."""
        if self._last_plan is None or self._last_plan.epoch != epoch:
            self._last_plan = self._make_plan(epoch)
        return self._last_plan

    def _make_plan(self, epoch: int) -> EpochPlan:
        rng = np.random.default_rng([self.seed, SHUFFLE_STREAM, epoch])
        lengths = self._padded_lengths(epoch)
        batches = group_by_length(lengths, self.tokens_per_batch, rng.permutation(len(lengths[0])))
        return EpochPlan(epoch, [batches[i] for i in rng.permutation(len(batches))], [int(side.max()) for side in lengths])

    def _padded_lengths(self, epoch: int) -> list[np.ndarray]:
        """Return the padded length of each row on each side; never beyond the longest row, which the model can take."""
        sides = self.examples.lengths(self.seed, epoch)
        multiple = self.pad_to_multiple_of
        return sides if multiple == 1 else [np.minimum(-(-side // multiple) * multiple, side.max()) for side in sides]

    def batch(self, epoch: int, index: int) -> Batch:
        """Return this rank's shard of a batch."""
        return self._build(self._plan(epoch), index)

    def _build(self, plan: EpochPlan, index: int) -> Batch:
        """Build this rank's shard of a batch; if it has too few rows, a dummy row, excluded from the loss."""
        rows = plan.batches[index]
        shard = rows[self.rank :: self.world_size]
        batch = self.examples.batch(shard if len(shard) else rows[:1], self.seed, plan.epoch)
        batch = batch if self.pad_to_multiple_of == 1 else batch.pad_to_multiple(self.pad_to_multiple_of, plan.max_lengths)
        return batch if len(shard) else replace(batch, in_loss=False)

    def iterate(self, number: int, epoch: int = 0, index: int = 0, *, workers: int = 1) -> Iterator[tuple[int, int, Batch]]:
        """Yield (epoch, index, batch) of the next `number` batches from a place on; `workers` threads prepare them ahead, and
        another one the plan of the next epoch."""
        if not workers:
            for plan, i in self._places(number, epoch, index, planner=None):
                yield plan.epoch, i, self._build(plan, i)
            return
        with ThreadPoolExecutor(workers) as pool, ThreadPoolExecutor(1) as planner:
            pending: deque[tuple[int, int, Future[Batch]]] = deque()
            for plan, i in self._places(number, epoch, index, planner):
                pending.append((plan.epoch, i, pool.submit(self._build, plan, i)))
                if len(pending) == 2 * workers + 2:
                    e, i, future = pending.popleft()
                    yield e, i, future.result()
            for e, i, future in pending:
                yield e, i, future.result()

    def _places(self, number: int, epoch: int, index: int, planner: ThreadPoolExecutor | None) -> Iterator[tuple[EpochPlan, int]]:
        """Yield the plan and the index of the next `number` batches; a planner makes the plan of each epoch during the one
        before."""
        plan = self._plan(epoch)
        while True:
            end = min(len(plan.batches), index + number)
            number -= max(0, end - index)
            following = planner.submit(self._make_plan, plan.epoch + 1) if planner is not None and number else None
            for i in range(index, end):
                yield plan, i
            if not number:
                return
            plan, index = self._make_plan(plan.epoch + 1) if following is None else following.result(), 0

    def has_uniform_length(self) -> bool:
        """Return whether nearly all rows have one length."""
        return all(np.bincount(side).max() >= UNIFORM_FRACTION * len(side) for side in self._padded_lengths(0))

    def shape_counts(self, epoch: int = 0) -> Counter[tuple[int, ...]]:
        """Return how many batches of an epoch have each shape: rows, and the length of each side."""
        return Counter(self._shapes(epoch))

    def _shapes(self, epoch: int) -> Iterator[tuple[int, ...]]:
        lengths = self._padded_lengths(epoch)
        return ((len(rows), *(int(side[rows].max()) for side in lengths)) for rows in self.plan(epoch))

    def typical_batch(self) -> Batch:
        """Return a batch of the most frequent shape of the first epoch: the same one in every run over these rows. Shapes with
        two equal sizes come last, since a compiler would take these for one size."""
        shapes = list(self._shapes(0))
        counts = Counter(shapes)
        best = max(counts, key=lambda shape: (len({1, *shape}) == 1 + len(shape), counts[shape], shape))
        return self.batch(0, shapes.index(best))

    def mean_lengths(self, epoch: int = 0) -> tuple[int, int]:
        """Return the mean lengths of source and target; the same length twice if rows have one side."""
        sides = [max(1, round(float(side.mean()))) for side in self._padded_lengths(epoch)]
        return sides[0], sides[-1]

    def padding_fraction(self, epoch: int = 0) -> float:
        """Return the fraction of all positions, on all sides, that is padding."""
        real = sum(int(side.sum()) for side in self.examples.lengths(self.seed, epoch))
        lengths = self._padded_lengths(epoch)
        padded = sum(len(rows) * int(side[rows].max()) for rows in self.plan(epoch) for side in lengths)
        return 1 - real / padded


def group_by_length(sides: Sequence[np.ndarray], budget: int, order: np.ndarray) -> list[np.ndarray]:
    """Group rows, given their lengths on each side, into batches of at most `budget` positions on the longest side.

    Rows are sorted by their longest side and, within one length, by the difference of the sides, ascending and descending in
    turn, so that neighbours have similar lengths on all sides. `order` decides among rows of equal lengths.
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


def sequential_batches(examples: Rows, tokens_per_batch: int) -> Iterator[Batch]:
    """Yield every example once, sorted by length, without shuffling, BPE-dropout or augmentation: for evaluation."""
    examples = examples.deterministic()
    for rows in group_by_length(examples.lengths(0, 0), tokens_per_batch, np.arange(len(examples))):
        yield examples.batch(rows, 0, 0)
