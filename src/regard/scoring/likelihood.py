"""Perplexity."""

import math
from collections.abc import Sequence

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, bootstrap_score, make_signature


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
