"""Exact match and F1 of answers as SQuAD defines them (Rajpurkar et al. 2016, sec. 6.1; 2018 where there may be no answer)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, bootstrap_score, make_signature

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """In lower case, without punctuation and articles, one space between words."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def answer_scores(
    said: Sequence[str], golds: Sequence[Sequence[str]], *, samples: int = SAMPLES, seed: int = SEED
) -> dict[str, Score]:
    """The mean over questions of the best match with one of the golds, in percent; where there is none, nothing is the gold."""
    if len(said) != len(golds) or not len(golds):
        raise UserError(f"{len(said)} answers to {len(golds)} questions: as many of both are needed, and at least one")
    each = np.array([score_answer(text, gold) for text, gold in zip(said, golds)])  # (N, 2)
    ones = np.ones(len(each))
    return {
        name: bootstrap_score(
            name,
            np.stack([column, ones], axis=1),
            lambda total: 100 * total[0] / total[1],
            make_signature(name, norm="squad", bs=samples, seed=seed, n=len(each), units="percent"),
            samples=samples,
            seed=seed,
        )
        for name, column in zip(("exact_match", "f1"), each.T)
    }


def score_answer(said: str, golds: Sequence[str]) -> tuple[float, float]:
    """Whether an answer is one of the golds, and its best F1; golds of which nothing is left do not count if others do."""
    wanted = [gold for gold in map(normalize_answer, golds) if gold] or [""]
    found = normalize_answer(said)
    return float(found in wanted), max(token_f1(found, gold) for gold in wanted)


def token_f1(said: str, gold: str) -> float:
    """F1 of the words, each as often as it occurs; where one of the two says nothing, whether both do."""
    one, other = Counter(said.split()), Counter(gold.split())
    if not one or not other:
        return float(one == other)
    return 2 * (one & other).total() / (one.total() + other.total())
