"""Perplexity of a language model and accuracy of a classifier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, bootstrap_score, make_signature

Z95 = 1.959963984540054  # the 97.5% quantile of the normal distribution


def perplexity(
    log_probabilities: Sequence[float] | np.ndarray,
    token_counts: Sequence[int] | np.ndarray,
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
) -> Score:
    """exp(-Σ log p / Σ tokens) over the whole corpus, with a bootstrap interval over sentences.

    log_probabilities: (N,) natural logarithms, summed over the tokens of each sentence; token_counts: (N,). A sentence
    without tokens (nothing was masked in it) says nothing and is left out. Perplexity depends on the tokenizer: compare
    only models that share one.
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
        raise UserError("no tokens to take the perplexity of: the set is empty")
    signature = make_signature("perplexity", base="e", bs=samples, seed=seed, units="tokens")
    return bootstrap_score(
        "perplexity", np.stack([sums[kept], counts[kept]], axis=1), _perplexity, signature, samples=samples, seed=seed
    )


def _perplexity(total: np.ndarray) -> float:
    return math.exp(min(-total[0] / total[1], 700.0))  # beyond e^700 a float overflows; JSON has no infinity


def accuracy(right: Sequence[bool] | np.ndarray, name: str = "accuracy") -> Score:
    """The percentage of items that are right, with the score interval of Wilson (1927).

    With p of n right, the interval is (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n). Unlike a bootstrap it
    does not shrink to a point when all are right. Items count as independent: for tags, give whole sentences or read the
    interval as too narrow.
    """
    hits = np.asarray(right, dtype=bool).ravel()
    if hits.size == 0:
        raise UserError(f"no items to take the {name} of: the set is empty")
    n, p = hits.size, float(hits.mean())
    centre = p + Z95**2 / (2 * n)
    spread = Z95 * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
    low, high = ((centre + side * spread) / (1 + Z95**2 / n) for side in (-1, 1))
    signature = make_signature(name, ci="wilson", n=n, units="percent")
    return Score(name, 100 * p, 100 * max(0.0, min(low, p)), 100 * min(1.0, max(high, p)), signature)


def grouped_accuracy(
    right: Sequence[tuple[int, int]], name: str = "accuracy", *, samples: int = SAMPLES, seed: int = SEED
) -> Score:
    """The percentage of items that are right where they come in groups (the words of a sentence): a group gives how many are
    right and how many there are, and the bootstrap draws whole groups."""
    counts = np.asarray(right, dtype=np.float64).reshape(-1, 2)
    if counts[:, 1].sum() == 0:
        raise UserError(f"no items to take the {name} of: the set is empty")
    signature = make_signature(name, bs=samples, seed=seed, n=int(counts[:, 1].sum()), units="percent")
    return bootstrap_score(name, counts, lambda total: 100 * total[0] / max(total[1], 1.0), signature, samples=samples, seed=seed)


def compare_accuracy(right: Mapping[str, Sequence[bool]], name: str = "accuracy") -> list[dict[str, Any]]:
    """Is each system different from the first? McNemar's exact test (1947): of the items that only one of the two has right, each
    is as likely to be the one's as the other's. One row a system, as `compare` gives them."""
    rows: list[dict[str, Any]] = []
    first = np.asarray(next(iter(right.values())), dtype=bool)
    for system, found in right.items():
        score = accuracy(found, name)
        mine, theirs = np.asarray(found, dtype=bool) & ~first, first & ~np.asarray(found, dtype=bool)
        p_value = sign_test(int(mine.sum()), int(theirs.sum())) if rows else None
        rows.append(
            {
                "system": system,
                "metric": name,
                "score": score.score,
                "mean": score.score,
                "ci": (score.high - score.low) / 2,
                "p_value": p_value,
                "signature": f"{score.signature}|test:mcnemar-exact",
            }
        )
    return rows


def sign_test(a: int, b: int) -> float:
    """The two-sided probability of a split at least as uneven as a : b if both were equally likely."""
    n, few = a + b, min(a, b)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(few + 1)) / 2**n)
