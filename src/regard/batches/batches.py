"""Batches of a token budget with little padding; each is a pure function of (seed, epoch, index)."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from regard.batches.batch import Batch
from regard.batches.rows import Rows

SHUFFLE_STREAM = 1
UNIFORM_FRACTION = 0.95


class Batches:
    """The batches of every epoch over some rows; rank `rank` of `world_size` gets its shard of each batch.

    Rows may be padded to a multiple of positions (`pad_to_multiple_of`), so that few batch shapes occur, again and again.
    """

    def __init__(
        self, examples: Rows, tokens_per_batch: int, seed: int, *, rank: int = 0, world_size: int = 1, pad_to_multiple_of: int = 1
    ):
        self.examples, self.tokens_per_batch, self.seed = examples, tokens_per_batch, seed
        self.rank, self.world_size, self.pad_to_multiple_of = rank, world_size, pad_to_multiple_of
        self._cached_plan: tuple[int, list[np.ndarray], list[int]] | None = None

    def plan(self, epoch: int) -> list[np.ndarray]:
        """Return the rows of each batch of an epoch."""
        return self._plan(epoch)[0]

    def _plan(self, epoch: int) -> tuple[list[np.ndarray], list[int]]:
        """Return the rows of each batch of an epoch, and the longest row of each side."""
        cached = self._cached_plan
        if cached is None or cached[0] != epoch:
            rng = np.random.default_rng([self.seed, SHUFFLE_STREAM, epoch])
            lengths = self._padded_lengths(epoch)
            batches = group_by_length(lengths, self.tokens_per_batch, rng.permutation(len(lengths[0])))
            shuffled = [batches[i] for i in rng.permutation(len(batches))]
            cached = self._cached_plan = epoch, shuffled, [int(side.max()) for side in lengths]
        return cached[1:]

    def _padded_lengths(self, epoch: int) -> list[np.ndarray]:
        """Return the padded length of each row on each side; never beyond the longest row, which the model can take."""
        sides = self.examples.lengths(self.seed, epoch)
        multiple = self.pad_to_multiple_of
        return sides if multiple == 1 else [np.minimum(-(-side // multiple) * multiple, side.max()) for side in sides]

    def batch(self, epoch: int, index: int) -> Batch:
        """Return this rank's shard of a batch."""
        batches, max_lengths = self._plan(epoch)
        return self._build(batches[index], epoch, max_lengths)

    def _build(self, rows: np.ndarray, epoch: int, max_lengths: Sequence[int]) -> Batch:
        """Build this rank's shard of a batch of these rows; if there are too few, a dummy row, excluded from the loss."""
        shard = rows[self.rank :: self.world_size]
        batch = self.examples.batch(shard if len(shard) else rows[:1], self.seed, epoch)
        batch = batch if self.pad_to_multiple_of == 1 else batch.pad_to_multiple(self.pad_to_multiple_of, max_lengths)
        return batch if len(shard) else replace(batch, in_loss=False)

    def iterate(self, number: int, epoch: int = 0, index: int = 0, *, workers: int = 1) -> Iterator[tuple[int, int, Batch]]:
        """Yield (epoch, index, batch) of the next `number` batches from a place on; `workers` threads prepare them ahead."""
        places = self._places(number, epoch, index)
        if not workers:
            for e, i in places:
                yield e, i, self.batch(e, i)
            return
        with ThreadPoolExecutor(workers) as pool:
            pending: deque[tuple[int, int, Future[Batch]]] = deque()
            for e, i in places:
                batches, max_lengths = self._plan(e)
                pending.append((e, i, pool.submit(self._build, batches[i], e, max_lengths)))
                if len(pending) == 2 * workers + 2:
                    e, i, future = pending.popleft()
                    yield e, i, future.result()
            for e, i, future in pending:
                yield e, i, future.result()

    def _places(self, number: int, epoch: int, index: int) -> Iterator[tuple[int, int]]:
        """Yield (epoch, index) of the next `number` batches."""
        for _ in range(number):
            if index >= len(self.plan(epoch)):
                epoch, index = epoch + 1, 0
            yield epoch, index
            index += 1

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
