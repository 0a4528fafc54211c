"""Accuracy with Wilson's interval and McNemar's test; F1, Matthews's correlation and perplexity with bootstrap intervals."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, bootstrap_score, comparison_row, make_signature, percentage, resample_score

Z95 = 1.959963984540054  # the 97.5% quantile of the normal distribution


def accuracy(correct: Sequence[bool] | np.ndarray, name: str = "accuracy") -> Score:
    """Return the percentage of correct items, with the score interval of Wilson (1927).

    With p of n correct, the interval is (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n). Unlike a bootstrap it
    does not shrink to a point when all are correct. Items count as independent: for tags, give whole sentences or read the
    interval as too narrow.
    """
    hits = np.asarray(correct, dtype=bool).ravel()
    if hits.size == 0:
        raise UserError(f"no items to compute the {name} of: the set is empty")
    n, p = hits.size, float(hits.mean())
    centre = p + Z95**2 / (2 * n)
    spread = Z95 * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
    low, high = ((centre + side * spread) / (1 + Z95**2 / n) for side in (-1, 1))
    signature = make_signature(name, ci="wilson", n=n, units="percent")
    return Score(name, 100 * p, 100 * max(0.0, min(low, p)), 100 * min(1.0, max(high, p)), signature)


def grouped_accuracy(
    correct: Sequence[tuple[int, int]], name: str = "accuracy", *, samples: int = SAMPLES, seed: int = SEED
) -> Score:
    """Return the percentage of correct items that come in groups (the words of a sentence): each group gives how many are correct
    and how many there are, and the bootstrap draws whole groups."""
    counts = np.asarray(correct, dtype=np.float64).reshape(-1, 2)
    if counts[:, 1].sum() == 0:
        raise UserError(f"no items to compute the {name} of: the set is empty")
    signature = make_signature(name, bs=samples, seed=seed, n=int(counts[:, 1].sum()), units="percent")
    return bootstrap_score(name, counts, percentage, signature, samples=samples, seed=seed)


def compare_accuracy(correct: Mapping[str, Sequence[bool]], name: str = "accuracy") -> list[dict[str, Any]]:
    """Test whether each system differs from the first by McNemar's exact test (1947): an item that only one of them has
    correct is equally likely to be either's. Return one row per system, as `compare_systems` does."""
    rows: list[dict[str, Any]] = []
    first = np.asarray(next(iter(correct.values())), dtype=bool)
    for system, hits in correct.items():
        score, own = accuracy(hits, name), np.asarray(hits, dtype=bool)
        p_value = sign_test(int((own & ~first).sum()), int((first & ~own).sum())) if rows else None
        rows.append(comparison_row(system, score, p_value, "mcnemar-exact"))
    return rows


def sign_test(a: int, b: int) -> float:
    """Return the two-sided probability of a split at least as uneven as a : b if both were equally likely."""
    n, fewer = a + b, min(a, b)
    return float(min(1.0, 2 * sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n))


def classification_scores(
    predicted: Sequence[str], labels: Sequence[str], *, positive: str | None = None, samples: int = SAMPLES, seed: int = SEED
) -> dict[str, Score]:
    """Return 100 · F1 of the positive label, or macro F1 without one, and 100 · R_K (Matthews's correlation)."""
    if len(predicted) != len(labels) or not len(labels):
        raise UserError(f"{len(predicted)} predictions for {len(labels)} labels: give equally many of both, and at least one")
    classes = sorted({*predicted, *labels} | ({positive} if positive is not None else set()))
    number = {label: i for i, label in enumerate(classes)}
    ours, gold = (np.array([number[label] for label in column]) for column in (predicted, labels))
    chosen = None if positive is None else number[positive]

    def count(rows: np.ndarray | slice) -> np.ndarray:
        """Return how often each class is correct, predicted and gold: (3, C)."""
        a, b = ours[rows], gold[rows]
        return np.stack([np.bincount(column, minlength=len(classes)) for column in (a[a == b], a, b)]).astype(np.float64)

    average = {"average": "macro"} if positive is None else {"positive": positive}
    metrics = {"f1": (average, lambda rows: class_f1(count(rows), chosen)), "mcc": ({}, lambda rows: mcc(count(rows)))}
    return {
        name: resample_score(
            name,
            len(ours),
            metric,
            make_signature(name, **fields, bs=samples, seed=seed, n=len(ours), units="percent"),
            samples=samples,
            seed=seed,
        )
        for name, (fields, metric) in metrics.items()
    }


def class_f1(counts: np.ndarray, positive: int | None = None) -> float:
    """Return 100 · 2 correct / (predicted + gold) of one class, or its mean over all classes that occur."""
    correct, predicted, gold = counts
    each = 2 * correct / np.maximum(predicted + gold, 1)
    return 100 * float(each[predicted + gold > 0].mean() if positive is None else each[positive])


def mcc(counts: np.ndarray) -> float:
    """Return 100 · R_K (Gorodkin 2004), Matthews's correlation for two classes; 0 if predictions or labels are constant."""
    correct, predicted, gold = counts
    n = predicted.sum()
    scale = np.sqrt((n**2 - (predicted**2).sum()) * (n**2 - (gold**2).sum()))
    return float(100 * (n * correct.sum() - (predicted * gold).sum()) / scale) if scale > 0 else 0.0


def perplexity(
    log_probabilities: Sequence[float] | np.ndarray,
    token_counts: Sequence[int] | np.ndarray,
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
) -> Score:
    """Return exp(-Σ log p / Σ tokens) over the whole corpus, with a bootstrap interval over sentences.

    `log_probabilities` (N,) are natural logarithms, summed over the tokens of each sentence; `token_counts` (N,). A sentence
    without tokens (nothing was masked in it) is left out. Perplexity depends on the tokenizer: compare models that share one.
    """
    sums = np.asarray(log_probabilities, dtype=np.float64)
    counts = np.asarray(token_counts, dtype=np.float64)
    if sums.shape != counts.shape:
        raise UserError(f"{sums.size} log-probabilities but {counts.size} token counts: give one of each per sentence")
    wrong = np.flatnonzero(~np.isfinite(sums) | (sums > 1e-3) | (counts < 0))
    if wrong.size:
        first = wrong[0]
        raise UserError(
            f"sentence {first + 1} has log-probability {sums[first]:g} over {counts[first]:g} tokens: "
            "it must be finite and at most 0 (give the sum of log p, not the loss)"
        )
    kept = counts > 0
    if not kept.any():
        raise UserError("no tokens to compute the perplexity of: the set is empty")
    signature = make_signature("perplexity", base="e", bs=samples, seed=seed, units="tokens")
    return bootstrap_score(
        "perplexity", np.stack([sums[kept], counts[kept]], axis=1), _perplexity, signature, samples=samples, seed=seed
    )


def _perplexity(total: np.ndarray) -> float:
    return math.exp(min(-total[0] / total[1], 700.0))  # beyond e^700 a float overflows; JSON has no infinity
