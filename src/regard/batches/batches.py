"""Batches filled to a token budget with little padding; each is a pure function of (seed, epoch, step)."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.batches.store import Store
from regard.tokens.special import BOS, EOS, PAD

SHUFFLE = 1


@dataclass
class Batch:
    """B sentence pairs; the target is what the decoder reads, the labels what it should say next."""

    source: Tensor                                                                # (B, S)
    lengths: Tensor                                                               # (B,)
    target: Tensor                                                                # (B, T)
    labels: Tensor                                                                # (B, T)
    rows: np.ndarray                                                              # (B,) which pairs of the store

    def to(self, device: torch.device) -> "Batch":
        source, lengths, target, labels = (send(part, device) for part in (self.source, self.lengths, self.target, self.labels))
        return Batch(source, lengths, target, labels, self.rows)


def send(x: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; from pinned memory, so that a GPU is not waited for."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" and not x.is_cuda else x.to(device)


class Batches:
    """The batches of every epoch over a store. `rank` of `ranks` takes its share of each batch's rows."""

    def __init__(self, store: Store, tokens_per_batch: int, seed: int, *, rank: int = 0, ranks: int = 1):
        self.store, self.budget, self.seed = store, tokens_per_batch, seed
        self.rank, self.ranks = rank, ranks
        self.planned: tuple[int, list[np.ndarray]] | None = None

    def plan(self, epoch: int) -> list[np.ndarray]:
        """The rows of each batch of an epoch."""
        planned = self.planned
        if planned is None or planned[0] != epoch:
            source = self.store.source.lengths(self.seed, epoch) + 1              # the end of the sentence
            target = self.store.target.lengths(self.seed, epoch) + 1
            chance = np.random.default_rng([self.seed, SHUFFLE, epoch])
            batches = fill(source, target, self.budget, chance.permutation(len(source)))
            planned = self.planned = epoch, [batches[i] for i in chance.permutation(len(batches))]
        return planned[1]

    def rows(self, epoch: int, index: int) -> np.ndarray:
        """The rows of one batch that are this rank's."""
        rows = self.plan(epoch)[index]
        return rows[self.rank::self.ranks] if len(rows) >= self.ranks else rows

    def batch(self, epoch: int, index: int) -> Batch:
        return build_batch(self.store, self.rows(epoch, index), self.seed, epoch)

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
                    ahead.append((e, i, pool.submit(build_batch, self.store, self.rows(e, i), self.seed, e)))
                e, i, future = ahead.popleft()
                yield e, i, future.result()

    def places(self, epoch: int, index: int) -> Iterator[tuple[int, int]]:
        while True:
            for i in range(index, len(self.plan(epoch))):
                yield epoch, i
            epoch, index = epoch + 1, 0

    def padding_share(self, epoch: int = 0) -> float:
        """The part of all positions, on both sides, that is padding."""
        lengths = [side.lengths(self.seed, epoch) + 1 for _, side in self.store.sides()]
        real = sum(int(side.sum()) for side in lengths)
        padded = sum(len(rows) * int(side[rows].max()) for rows in self.plan(epoch) for side in lengths)
        return 1 - real / padded


def fill(source: np.ndarray, target: np.ndarray, budget: int, order: np.ndarray) -> list[np.ndarray]:
    """Cut the pairs into batches of at most `budget` positions on the longer side.

    They are sorted by the longer side, and within one length by the difference of the two, up and down in turns, so that
    neighbours are alike on both sides. `order` decides among pairs of equal lengths.
    """
    longer, difference = np.maximum(source, target), source - target
    order = order[np.lexsort((np.where(longer % 2, difference, -difference)[order], longer[order]))]
    batches, start = [], 0
    while start < len(order):
        window = longer[order[start:start + budget]]
        size = max(1, int(np.searchsorted(window * np.arange(1, len(window) + 1), budget, side="right")))
        batches.append(order[start:start + size])
        start += size
    return batches


def build_batch(store: Store, rows: np.ndarray, seed: int, epoch: int) -> Batch:
    source, target = store.source.take(rows, seed, epoch), store.target.take(rows, seed, epoch)
    return Batch(torch.from_numpy(source.padded(pad=PAD, after=[EOS])), torch.from_numpy(source.lengths + 1),
                 torch.from_numpy(target.padded(pad=PAD, before=[BOS])), torch.from_numpy(target.padded(pad=PAD, after=[EOS])),
                 rows)


def in_order(store: Store, budget: int) -> Iterator[Batch]:
    """Every pair once, unshuffled and without dropout: for evaluation."""
    plain = store.plain()
    source, target = plain.source.lengths(0, 0) + 1, plain.target.lengths(0, 0) + 1
    for rows in fill(source, target, budget, np.arange(len(store))):
        yield build_batch(plain, rows, 0, 0)
