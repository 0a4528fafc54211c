"""How well numbers go together: Pearson's and Spearman's correlation, with bootstrap intervals over items."""

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, make_signature, resample_score


def correlation_scores(said: np.ndarray, meant: np.ndarray, *, samples: int = SAMPLES, seed: int = SEED) -> dict[str, Score]:
    """100 · r of the numbers themselves (Pearson) and of their ranks (Spearman 1904)."""
    said, meant = np.asarray(said, np.float64), np.asarray(meant, np.float64)
    if said.shape != meant.shape or len(said) < 3:
        raise UserError(f"{len(said)} numbers to correlate with {len(meant)}: at least three of each are needed, as many of both")
    pairs = {"pearson": np.stack([said, meant]), "spearman": np.stack([average_ranks(said), average_ranks(meant)])}
    return {
        name: resample_score(
            name,
            len(said),
            lambda rows, both=both: pearson(*both[:, rows]),  # type: ignore[misc]
            make_signature(name, bs=samples, seed=seed, n=len(said), units="percent"),
            samples=samples,
            seed=seed,
        )
        for name, both in pairs.items()
    }


def pearson(one: np.ndarray, other: np.ndarray) -> float:
    """100 · r; nothing goes together with what is always the same."""
    one, other = one - one.mean(), other - other.mean()
    scale = np.sqrt((one**2).sum() * (other**2).sum())
    return float(100 * (one * other).sum() / scale) if scale > 0 else 0.0


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 on; equal values share the mean of theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[group]
