"""Pearson's and Spearman's correlation, with bootstrap intervals over items.

Written out rather than taken from scipy: scipy adds about 100 MB to an installation that needs nothing else of it, its
`pearsonr` computes a p-value in each of the 1000 resamples, and it returns NaN with a warning for constant input, which a
resample may be. The tests compare both.
"""

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, make_signature, resample_score


def correlation_scores(
    predicted: np.ndarray, targets: np.ndarray, *, samples: int = SAMPLES, seed: int = SEED
) -> dict[str, Score]:
    """Return 100 · r of the numbers (Pearson) and of their ranks (Spearman 1904)."""
    predicted, targets = np.asarray(predicted, np.float64), np.asarray(targets, np.float64)
    if predicted.shape != targets.shape or len(predicted) < 3:
        raise UserError(f"{len(predicted)} numbers to correlate with {len(targets)}: give equally many of both, at least three")
    ranks = np.stack([average_ranks(predicted), average_ranks(targets)])
    pairs = {"pearson": np.stack([predicted, targets]), "spearman": ranks}
    return {
        name: resample_score(
            name,
            len(predicted),
            lambda rows, both=both: pearson(*both[:, rows]),  # type: ignore[misc]
            make_signature(name, bs=samples, seed=seed, n=len(predicted), units="percent"),
            samples=samples,
            seed=seed,
        )
        for name, both in pairs.items()
    }


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Return 100 · r; 0 if x or y is constant."""
    x, y = x - x.mean(), y - y.mean()
    scale = np.sqrt((x**2).sum() * (y**2).sum())
    return float(100 * (x * y).sum() / scale) if scale > 0 else 0.0


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 1 on; equal values share the mean of theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[group]
