"""F1 of the words that two texts share: SQuAD's answers and ROUGE's summaries.

Answers: exact match and F1 as SQuAD defines them (Rajpurkar et al. 2016, sec. 6.1; 2018 where there may be no answer).
ROUGE (Lin 2004): each text is scored by F1, and the score is the mean over texts, as in the package rouge-score. Words are runs
of letters and digits of any script, in lower case and not stemmed; that package knows ASCII only. ROUGE-L treats a text as one
sentence.
"""

import re
import string
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, comparison_row, make_signature, mean_score

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")
WORD = re.compile(r"[^\W_]+")
ROUGE_KINDS = ("rouge1", "rouge2", "rougel")


def overlap_f1(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """Return F1 of two bags of words or n-grams: 2PR / (P + R) = 2 · common / (words of both)."""
    return f1((Counter(a) & Counter(b)).total(), a, b)


def f1(common: int, a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    return 2 * common / (len(a) + len(b)) if a or b else 0.0


# answers


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
    exact = float(answer in references)
    return exact, max(exact, *(overlap_f1(answer.split(), gold.split()) for gold in references))


# summaries


def rouge_scores(
    outputs: Sequence[str], references: Sequence[str], *, samples: int = SAMPLES, seed: int = SEED
) -> dict[str, Score]:
    """Return 100 · F1 by words, bigrams and the longest common subsequence, each the mean over texts."""
    found = rouge_f1(outputs, references)  # (N, 3)
    scores = {}
    for kind, column in zip(ROUGE_KINDS, found.T):
        signature = make_signature(kind, bs=samples, seed=seed, n=len(column), tok="words-lower", stem="no", units="percent")
        scores[kind] = mean_score(kind, column, signature, samples=samples, seed=seed)
    return scores


def rouge_f1(outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Return F1 of each text, of the three kinds: (N, 3)."""
    if len(outputs) != len(references) or not outputs:
        raise UserError(f"{len(outputs)} summaries but {len(references)} references: give one line of each per text")
    rows = []
    for one, other in zip(outputs, references):
        a, b = WORD.findall(one.lower()), WORD.findall(other.lower())
        rows.append([overlap_f1(a, b), overlap_f1(list(pairwise(a)), list(pairwise(b))), f1(lcs_length(a, b), a, b)])
    return np.array(rows)


def lcs_length(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the length of the longest common subsequence. A row of the usual table grows by 0 or 1 per column, so one integer
    holds it, one bit per column (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for i, word in enumerate(a):
        places[word] = places.get(word, 0) | 1 << i
    whole = (1 << len(a)) - 1
    flat = whole  # bit i is 0 where the row grows at column i
    for word in b:
        steps = flat & places.get(word, 0)
        flat = ((flat + steps) | (flat - steps)) & whole
    return len(a) - flat.bit_count()


def compare_rouge(
    outputs: Mapping[str, Sequence[str]], references: Sequence[str], *, samples: int = SAMPLES, seed: int = SEED
) -> list[dict[str, Any]]:
    """Test whether each system differs from the first by a paired bootstrap over texts (Koehn 2004): how often the difference
    changes its sign in a resample. Return rows as `compare_systems` does."""
    rows: list[dict[str, Any]] = []
    baseline = rouge_f1(next(iter(outputs.values())), references)
    drawn = np.random.default_rng(seed).integers(len(references), size=(samples, len(references)))
    for number, (system, texts) in enumerate(outputs.items()):
        scores, differences = rouge_scores(texts, references, samples=samples, seed=seed), rouge_f1(texts, references) - baseline
        for kind, difference in zip(ROUGE_KINDS, differences.T):
            score, means = scores[kind], difference[drawn].mean(1)
            other = np.mean(means <= 0) if difference.mean() > 0 else np.mean(means >= 0)
            p_value = None if number == 0 else 1.0 if not difference.any() else min(1.0, 2 * float(other))
            rows.append(comparison_row(system, score, p_value, "paired-bootstrap"))
    return rows
