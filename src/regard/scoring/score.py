"""A score with its confidence interval and signature, and the bootstrap over sentences (Koehn 2004)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard import __version__
from regard.errors import UserError

SAMPLES = 1000
SEED = 12345  # sacreBLEU's own default


@dataclass(frozen=True)
class Score:
    """A number, its 95% interval [low, high], and the signature that says how both were computed."""

    metric: str
    score: float
    low: float
    high: float
    signature: str

    def to_json(self) -> dict[str, float | str]:
        """Return the entry of `scores.json`: floats with four decimals."""
        numbers = {name: round(float(getattr(self, name)), 4) for name in ("score", "low", "high")}
        return {**numbers, "signature": self.signature}

    def __str__(self) -> str:
        decimals = 1 if self.high >= 10 else 2 if self.high >= 1 else 3
        return f"{self.metric} {self.score:.{decimals}f} [{self.low:.{decimals}f}, {self.high:.{decimals}f}]"


def bootstrap_interval(
    statistics: np.ndarray, metric: Callable[[np.ndarray], float], *, samples: int = SAMPLES, seed: int = SEED
) -> tuple[float, float]:
    """Return the 95% percentile interval of a corpus metric that is a function of sums over sentences.

    `statistics` (N, ...) is what each sentence contributes; `metric` turns their sum (...) into the score. Each of the
    `samples` corpora is N sentences drawn with replacement; the interval leaves out 2.5% of their scores on either side.
    A draw is stored as the number of times each sentence occurs (N), so memory does not grow with `samples`.
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    if samples < 2:
        raise UserError(f"samples = {samples}: an interval needs at least 2 resamples (1000 is usual)")
    assert len(statistics) > 0, "nothing to resample"
    flat = statistics.reshape(len(statistics), -1)
    generator = np.random.default_rng(seed)
    scores = np.empty(samples)
    for i in range(samples):
        drawn = generator.integers(len(flat), size=len(flat))
        times = np.bincount(drawn, minlength=len(flat)).astype(np.float64)  # (N,)
        scores[i] = metric((times @ flat).reshape(statistics.shape[1:]))
    low, high = np.percentile(scores, [2.5, 97.5])
    return float(low), float(high)


def bootstrap_score(
    name: str,
    statistics: np.ndarray,
    metric: Callable[[np.ndarray], float],
    signature: str,
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
) -> Score:
    """Return the metric of all sentences with its bootstrap interval, widened if necessary to hold the score itself."""
    score = float(metric(np.asarray(statistics, dtype=np.float64).sum(axis=0)))
    low, high = bootstrap_interval(statistics, metric, samples=samples, seed=seed)
    return Score(name, score, min(low, score), max(high, score), signature)


def percentage(total: np.ndarray) -> float:
    """Return 100 · the first sum / the second; 0 if there is nothing to count."""
    return float(100 * total[0] / total[1]) if total[1] else 0.0


def mean_score(name: str, values: np.ndarray, signature: str, *, samples: int = SAMPLES, seed: int = SEED) -> Score:
    """Return 100 · the mean of values (N,), with a bootstrap interval."""
    counted = np.stack([values, np.ones(len(values))], axis=1)
    return bootstrap_score(name, counted, percentage, signature, samples=samples, seed=seed)


def resample_score(
    name: str,
    number: int,
    metric: Callable[[np.ndarray | slice], float],
    signature: str,
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
) -> Score:
    """Like `bootstrap_score`, for a metric that is not a function of sums: it is called with the indices of each resample."""
    generator = np.random.default_rng(seed)
    score = metric(slice(None))
    low, high = np.percentile([metric(generator.integers(number, size=number)) for _ in range(samples)], [2.5, 97.5])
    return Score(name, score, min(float(low), score), max(float(high), score), signature)


def make_signature(metric: str, **fields: object) -> str:
    """Return a signature in sacreBLEU's format (Post 2018) for our own metrics: `metric:aer|bs:1000|…|regard:0.1.0`."""
    return "|".join(f"{key}:{value}" for key, value in {"metric": metric, **fields, "regard": __version__}.items())


def comparison_row(system: str, score: Score, p_value: float | None, test: str) -> dict[str, Any]:
    """Return a row of a comparison of systems, in the format of `compare_systems`."""
    return {
        "system": system,
        "metric": score.metric,
        "score": score.score,
        "mean": score.score,
        "ci": (score.high - score.low) / 2,
        "p_value": p_value,
        "signature": f"{score.signature}|test:{test}",
    }


def paired_t_test(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of paired differences by Student's t-test, for the scores of two settings over the same seeds.

    The distribution for n - 1 degrees of freedom is a finite sum (Abramowitz & Stegun 1964, 26.7.3 and 26.7.4).
    """
    n, mean = len(differences), float(np.mean(differences))
    if (deviation := float(np.std(differences, ddof=1))) == 0:
        return 1.0 if mean == 0 else 0.0
    freedom = n - 1
    angle = math.atan(mean / (deviation / math.sqrt(n)) / math.sqrt(freedom))
    sine, cosine, odd = math.sin(abs(angle)), math.cos(angle), freedom % 2
    term, total = cosine**odd, 0.0
    for exponent in range(odd, freedom - 1, 2):
        total += term
        term *= cosine**2 * (exponent + 1) / (exponent + 2)
    inside = (2 / math.pi) * (abs(angle) + sine * total) if odd else sine * total
    return max(0.0, 1.0 - inside)


def paired_randomization_test(differences: Sequence[float] | np.ndarray, *, samples: int = 10_000, seed: int = SEED) -> float:
    """Return the two-sided p-value of paired differences, one for each example, by approximate randomization (Noreen 1989): if
    the systems were equal, every difference could as well have the other sign."""
    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0]
    observed = abs(values.sum())
    generator = np.random.default_rng(seed)
    as_extreme = 0
    for _ in range(samples):
        signs = generator.integers(2, size=len(values)) * 2 - 1
        as_extreme += int(abs(signs @ values) >= observed - 1e-9)
    return (1 + as_extreme) / (1 + samples)
