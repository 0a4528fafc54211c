"""F1 and the correlation of Matthews (1975) between the labels said and those meant, with bootstrap intervals over items."""

from collections.abc import Sequence

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, make_signature, resample_score


def classification_scores(
    said: Sequence[str], meant: Sequence[str], *, positive: str | None = None, samples: int = SAMPLES, seed: int = SEED
) -> dict[str, Score]:
    """100 · F1 of the positive label, or without one the mean over the labels that occur; and 100 · R_K."""
    if len(said) != len(meant) or not len(meant):
        raise UserError(f"{len(said)} labels to compare with {len(meant)}: as many of both are needed, and at least one")
    labels = sorted({*said, *meant} | ({positive} if positive is not None else set()))
    number = {label: i for i, label in enumerate(labels)}
    one, other = (np.array([number[label] for label in column]) for column in (said, meant))
    chosen = None if positive is None else number[positive]

    def counted(rows: np.ndarray | slice) -> np.ndarray:
        """How often each label is right, said, meant: (3, C)."""
        a, b = one[rows], other[rows]
        return np.stack([np.bincount(column, minlength=len(labels)) for column in (a[a == b], a, b)]).astype(np.float64)

    average = {"average": "macro"} if positive is None else {"positive": positive}
    metrics = {"f1": (average, lambda rows: f1(counted(rows), chosen)), "mcc": ({}, lambda rows: mcc(counted(rows)))}
    return {
        name: resample_score(
            name,
            len(one),
            metric,
            make_signature(name, **how, bs=samples, seed=seed, n=len(one), units="percent"),
            samples=samples,
            seed=seed,
        )
        for name, (how, metric) in metrics.items()
    }


def f1(counts: np.ndarray, positive: int | None = None) -> float:
    """100 · 2 right / (said + meant) of one label, or its mean over all that are said or meant."""
    right, said, meant = counts
    each = 2 * right / np.maximum(said + meant, 1)
    return 100 * float(each[said + meant > 0].mean() if positive is None else each[positive])


def mcc(counts: np.ndarray) -> float:
    """100 · R_K (Gorodkin 2004), of two labels Matthews's: how said and meant go together; 0 where one of them never changes."""
    right, said, meant = counts
    n = said.sum()
    scale = np.sqrt((n**2 - (said**2).sum()) * (n**2 - (meant**2).sum()))
    return float(100 * (n * right.sum() - (said * meant).sum()) / scale) if scale > 0 else 0.0
