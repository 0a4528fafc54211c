"""Word alignment read off attention weights, and its error rate (Och & Ney 2003).

A link is (s, t): source word s, target word t, both counted from 0, written `s-t` in the Moses format. Weights are
(T, S), one row per target word, as attention gives them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from regard.errors import Mistake
from regard.scoring.score import SAMPLES, SEED, Score, bootstrapped, sign

Link = tuple[int, int]
NO_MASS = 1e-12  # a row with less than this on real words looked only at special tokens


def parse_moses(line: str, where: str = "alignment") -> set[Link]:
    """`0-0 1-2` -> {(0, 0), (1, 2)}. `where` (a file:line) opens the message when a link cannot be read."""
    found = set()
    for text in line.split():
        if not re.fullmatch(r"[0-9]+-[0-9]+", text):
            raise Mistake(f"{where}: {text!r} is not a link such as 0-3 (source-target, counted from 0)")
        source, target = text.split("-")
        found.add((int(source), int(target)))
    return found


def format_moses(pairs: Iterable[Link]) -> str:
    """{(1, 2), (0, 0)} -> `0-0 1-2`, in order of the source."""
    return " ".join(f"{s}-{t}" for s, t in sorted(pairs))


def merge_words(weights: np.ndarray, target_words: Sequence[int], source_words: Sequence[int]) -> np.ndarray:
    """Attention between sub-words (T_sub, S_sub) -> between words (T_words, S_words).

    `target_words` and `source_words` give the word index of every sub-word, -1 for a special token. A word is looked at as
    much as its pieces together (sum over source pieces) and looks where its pieces look on average (mean over target
    pieces), as in Clark et al. (2019, sec. 4.1). Special tokens are dropped and each row made to sum to 1 again; a row that
    looked only at special tokens is zeros.
    """
    rows, columns = _membership(target_words), _membership(source_words)                   # (T_sub, T_words), (S_sub, S_words)
    assert weights.shape == (len(rows), len(columns)), f"weights {weights.shape}, words {(len(rows), len(columns))}"
    merged = rows.T @ np.asarray(weights, dtype=np.float64) @ columns                      # (T_words, S_words)
    mass = merged.sum(axis=1, keepdims=True)                                               # sum or mean of pieces: divided out
    return np.divide(merged, mass, out=np.zeros_like(merged), where=mass > NO_MASS)


def _membership(words: Sequence[int]) -> np.ndarray:
    """Word index of every sub-word -> (sub-words, words) with 1 where the one belongs to the other."""
    index = np.asarray(words, dtype=np.int64)
    return (index[:, None] == np.arange(index.max(initial=-1) + 1)).astype(np.float64)


def links(weights: np.ndarray) -> set[Link]:
    """Each target word's most attended source word (the first of equals): (T, S) -> links. A row of zeros gives none."""
    if weights.size == 0:
        return set()
    return {(int(s), t) for t, s in enumerate(weights.argmax(axis=1)) if weights[t, s] > 0}


def alignment_error(
    predicted: Sequence[set[Link]], gold: Sequence[set[Link]], *, samples: int = SAMPLES, seed: int = SEED
) -> Score:
    """AER = 1 - 2|A ∩ G| / (|A| + |G|) over the corpus, 0 (perfect) to 1, with a bootstrap interval over sentences.

    Every gold link counts as sure, so Och & Ney's sure and possible sets are one and AER = 1 - F1. Two empty
    alignments agree: 0.
    """
    _same_length(len(predicted), "alignments", len(gold))
    counts = np.array([(len(a & g), len(a) + len(g)) for a, g in zip(predicted, gold)], dtype=np.float64)  # (N, 2)
    signature = sign("aer", bs=samples, seed=seed, units="words", gold="sure")
    return bootstrapped("AER", counts, _aer, signature, samples=samples, seed=seed)


def _aer(total: np.ndarray) -> float:
    return float(1 - 2 * total[0] / total[1]) if total[1] else 0.0


def best_head(weights: Sequence[np.ndarray], gold: Sequence[set[Link]], *, samples: int = SAMPLES) -> tuple[Link, Score]:
    """The (layer, head) whose links have the lowest AER; the first of equals.

    weights: one array (layers, heads, T, S) per sentence, over words. Choose on validation data and score the chosen
    head on other data: this Score is the winner's, and so flattered by the choice.
    """
    _same_length(len(weights), "sentences", len(gold))
    totals = sum(_head_counts(w, g) for w, g in zip(weights, gold))                        # (layers, heads, 2)
    errors = np.apply_along_axis(_aer, -1, totals)                                         # (layers, heads)
    layer, head = (int(i) for i in np.unravel_index(errors.argmin(), errors.shape))
    return (layer, head), alignment_error([links(w[layer, head]) for w in weights], gold, samples=samples)


def _head_counts(weights: np.ndarray, gold: set[Link]) -> np.ndarray:
    """|A ∩ G| and |A| + |G| of every head of one sentence, without a set per head: (layers, heads, T, S) -> (…, 2)."""
    target, source = weights.shape[-2:]
    if not target or not source:
        return np.broadcast_to(np.array([0.0, len(gold)]), (*weights.shape[:2], 2))
    truth = np.zeros((target, source), dtype=bool)
    for s, t in gold:
        if s < source and t < target:                                                      # a link to a cut-off word is missed
            truth[t, s] = True
    linked = weights.max(axis=-1) > 0                                                      # (layers, heads, T)
    hits = linked & truth[np.arange(target), weights.argmax(axis=-1)]
    return np.stack([hits.sum(axis=-1), linked.sum(axis=-1) + len(gold)], axis=-1).astype(np.float64)


def uniform_error(shapes: Iterable[tuple[int, int]], gold: Sequence[set[Link]], *, samples: int = SAMPLES) -> Score:
    """AER of attention that knows nothing but position: what a head has to beat.

    Under uniform attention all source words tie; here the tie is broken by place, so target word t of T links to source
    word round(t S / T), the diagonal (the prior of Dyer et al. 2013). shapes: (T, S) of every sentence.
    """
    diagonal = [{(min(s - 1, int(i * s / t + 0.5)), i) for i in range(t) if s} for t, s in shapes]
    return alignment_error(diagonal, gold, samples=samples)


def _same_length(count: int, what: str, gold: int) -> None:
    if count != gold:
        raise Mistake(f"{count} {what} but {gold} gold alignments: give one of each per sentence")
    if not count:
        raise Mistake("no alignments to score: the set is empty")
