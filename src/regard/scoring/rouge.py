"""ROUGE (Lin 2004): how much of a summary's words, pairs of words and longest common subsequence are in the reference, and the
other way round.

Each text is scored by F1, and the score is the mean of all texts, as the package rouge-score has it. Words are runs of letters
and digits of any script, in lower case and not stemmed; that package knows ASCII only. ROUGE-L takes a text as one sentence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, bootstrap_score, make_signature

WORD = re.compile(r"[^\W_]+")
ROUGE_KINDS = ("rouge1", "rouge2", "rougel")


def rouge_scores(said: Sequence[str], meant: Sequence[str], *, samples: int = SAMPLES, seed: int = SEED) -> dict[str, Score]:
    """100 · F1 by words, by pairs of words and by the longest common subsequence, each the mean over texts."""
    found = rouge_f1(said, meant)  # (N, 3)
    scores = {}
    for kind, column in zip(ROUGE_KINDS, found.T):
        counted = np.stack([column, np.ones(len(column))], axis=1)
        signature = make_signature(kind, bs=samples, seed=seed, n=len(column), tok="words-lower", stem="no", units="percent")
        scores[kind] = bootstrap_score(
            kind, counted, lambda total: 100 * total[0] / total[1], signature, samples=samples, seed=seed
        )
    return scores


def rouge_f1(said: Sequence[str], meant: Sequence[str]) -> np.ndarray:
    """F1 of each text in each of the three kinds: (N, 3)."""
    if len(said) != len(meant) or not said:
        raise UserError(f"{len(said)} summaries but {len(meant)} references: give one line of each per text")
    rows = []
    for one, other in zip(said, meant):
        a, b = WORD.findall(one.lower()), WORD.findall(other.lower())
        pairs = list(pairwise(a)), list(pairwise(b))
        rows.append(
            [
                f1(multiset_overlap(a, b), len(a), len(b)),
                f1(multiset_overlap(*pairs), *map(len, pairs)),
                f1(lcs_length(a, b), len(a), len(b)),
            ]
        )
    return np.array(rows)


def f1(common: int, said: int, meant: int) -> float:
    """2PR / (P + R) = 2 · common / (said + meant)."""
    return 2 * common / (said + meant) if said + meant else 0.0


def multiset_overlap(a: Sequence[Any], b: Sequence[Any]) -> int:
    return sum((Counter(a) & Counter(b)).values())


def lcs_length(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence. A row of the usual table grows by 0 or 1 from place to place, so that one integer
    holds it, a bit a place (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for i, word in enumerate(a):
        places[word] = places.get(word, 0) | 1 << i
    whole = (1 << len(a)) - 1
    flat = whole  # bit i is 0 where the row grows at place i
    for word in b:
        steps = flat & places.get(word, 0)
        flat = ((flat + steps) | (flat - steps)) & whole
    return len(a) - flat.bit_count()


def compare_rouge(
    said: Mapping[str, Sequence[str]], meant: Sequence[str], *, samples: int = SAMPLES, seed: int = SEED
) -> list[dict[str, Any]]:
    """Is each system different from the first? A paired bootstrap over texts (Koehn 2004): how often the difference changes its
    sign when texts are drawn again. Rows as `compare` gives them."""
    rows: list[dict[str, Any]] = []
    baseline = rouge_f1(next(iter(said.values())), meant)
    drawn = np.random.default_rng(seed).integers(len(meant), size=(samples, len(meant)))
    for number, (system, outputs) in enumerate(said.items()):
        scores, differences = rouge_scores(outputs, meant, samples=samples, seed=seed), rouge_f1(outputs, meant) - baseline
        for kind, difference in zip(ROUGE_KINDS, differences.T):
            score, means = scores[kind], difference[drawn].mean(1)
            other = np.mean(means <= 0) if difference.mean() > 0 else np.mean(means >= 0)
            p_value = None if number == 0 else 1.0 if not difference.any() else min(1.0, 2 * float(other))
            rows.append(
                {
                    "system": system,
                    "metric": kind,
                    "score": score.score,
                    "mean": score.score,
                    "ci": (score.high - score.low) / 2,
                    "p_value": p_value,
                    "signature": f"{score.signature}|test:paired-bootstrap",
                }
            )
    return rows
