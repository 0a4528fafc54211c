"""Smoothed BLEU of single sentences, fast enough to be computed in every training step.

Corpus BLEU is sacreBLEU's (translation.py). Of one sentence most counts of long n-grams are 0, so that one is added to the counts
of bigrams and longer ones (BLEU+1, Lin & Och 2004). That prefers short sentences (Nakov et al. 2012), and so does a
model that is trained on it; the brevity penalty is therefore for the mean length of the references, not for the closest.
"""

import math
from collections import Counter
from collections.abc import Sequence

ORDERS = range(1, 5)
NgramCounts = list[Counter[tuple[str, ...]]]


def count_ngrams(words: Sequence[str]) -> NgramCounts:
    """Return how often each n-gram occurs, for n from 1 to 4."""
    return [Counter(zip(*(words[i:] for i in range(n)))) for n in ORDERS]


class ReferenceNgrams:
    """The references of one sentence, counted once for all hypotheses that are compared with them."""

    def __init__(self, references: Sequence[Sequence[str]]):
        self.length = sum(map(len, references)) / len(references)
        self.most: NgramCounts = [Counter() for _ in ORDERS]
        for reference in references:
            for most, counts in zip(self.most, count_ngrams(reference)):
                most |= counts

    def bleu(self, words: Sequence[str]) -> float:
        """Return the smoothed BLEU of a hypothesis, from 0 to 1: the geometric mean of the precisions of its n-grams, times the
        brevity penalty."""
        matches = [(counts & most).total() for counts, most in zip(count_ngrams(words), self.most)]
        if not matches[0]:
            return 0.0
        totals = [max(0, len(words) - n + 1) for n in ORDERS]
        log_precisions = [math.log((found + (n > 1)) / (total + (n > 1))) for n, found, total in zip(ORDERS, matches, totals)]
        return math.exp(sum(log_precisions) / len(ORDERS) + min(0.0, 1 - self.length / len(words)))
