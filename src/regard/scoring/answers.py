"""Exact match and F1 of answers as SQuAD defines them (Rajpurkar et al. 2016, sec. 6.1; 2018 where there may be no answer)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, make_signature, mean_score

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Return the text in lower case, without punctuation and articles, with single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def answer_scores(
    predicted: Sequence[str], golds: Sequence[Sequence[str]], *, samples: int = SAMPLES, seed: int = SEED
) -> dict[str, Score]:
    """Return exact match and F1 with the best gold answer of each question, in percent; without one, the empty answer is gold."""
    if len(predicted) != len(golds) or not len(golds):
        raise UserError(f"{len(predicted)} answers for {len(golds)} questions: give equally many of both, and at least one")
    each = np.array([score_answer(text, gold) for text, gold in zip(predicted, golds)])  # (N, 2)
    return {
        name: mean_score(
            name,
            column,
            make_signature(name, norm="squad", bs=samples, seed=seed, n=len(each), units="percent"),
            samples=samples,
            seed=seed,
        )
        for name, column in zip(("exact_match", "f1"), each.T)
    }


def score_answer(predicted: str, golds: Sequence[str]) -> tuple[float, float]:
    """Return exact match and the best F1 of an answer; golds that are empty after normalisation count only if all are."""
    references = [gold for gold in map(normalize_answer, golds) if gold] or [""]
    answer = normalize_answer(predicted)
    return float(answer in references), max(_token_f1(answer, gold) for gold in references)


def _token_f1(predicted: str, gold: str) -> float:
    """Return F1 of the bags of words; if one of them is empty, whether both are."""
    ours, theirs = Counter(predicted.split()), Counter(gold.split())
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())
