"""Word alignment read off attention weights, and its error rate (Och & Ney 2003).

A link is (s, t): source word s, target word t, both counted from 0, written `s-t` in the Moses (Pharaoh) format, and in gold
alignments `s?t` or `spt` if it is possible but not sure. Weights are (T, S), one row per target word.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, bootstrap_score, make_signature

Link = tuple[int, int]
NO_MASS = 1e-12  # a row with less than this on words attended to special tokens only


def parse_moses(line: str, where: str = "alignment") -> tuple[set[Link], set[Link]]:
    """Return the sure links and those that are only possible: `0-0 1?2` -> {(0, 0)}, {(1, 2)}. `where` (a file:line) opens the
    message if a link is malformed."""
    sure: set[Link] = set()
    possible: set[Link] = set()
    for text in line.split():
        found = re.fullmatch(r"([0-9]+)([-?p])([0-9]+)", text)
        if found is None:
            raise UserError(f"{where}: {text!r} is not a link such as 0-3 (source-target, counted from 0; 0?3 if only possible)")
        (sure if found[2] == "-" else possible).add((int(found[1]), int(found[3])))
    return sure, possible - sure


def format_moses(pairs: Iterable[Link]) -> str:
    """Return links as text, in order of the source: {(1, 2), (0, 0)} -> `0-0 1-2`."""
    return " ".join(f"{s}-{t}" for s, t in sorted(pairs))


def sharpest_layer(weights: np.ndarray) -> int:
    """Return the layer of attention weights (L, H, T, S) whose mean over heads has the lowest entropy."""
    mean = weights.mean(1)  # (L, T, S)
    return int((mean * np.log(np.maximum(mean, 1e-12))).sum(-1).mean(-1).argmax())


def merge_words(weights: np.ndarray, target_words: Sequence[int], source_words: Sequence[int]) -> np.ndarray:
    """Merge attention between sub-words (T_sub, S_sub) into attention between words (T_words, S_words).

    `target_words` and `source_words` give the word index of every sub-word, -1 for a special token. Weights
    are summed over the source pieces of a word and averaged over its target pieces, as in Clark et al. (2019, sec. 4.1). Special
    tokens are dropped and each row is normalised to sum to 1; a row that attended to special tokens only is zeros.
    """
    rows, columns = _membership(target_words), _membership(source_words)  # (T_sub, T_words), (S_sub, S_words)
    assert weights.shape == (len(rows), len(columns)), f"weights {weights.shape}, words {(len(rows), len(columns))}"
    merged = rows.T @ np.asarray(weights, dtype=np.float64) @ columns  # (T_words, S_words)
    mass = merged.sum(axis=1, keepdims=True)  # sum or mean of pieces: divided out
    return np.asarray(np.divide(merged, mass, out=np.zeros_like(merged), where=mass > NO_MASS))


def _membership(words: Sequence[int]) -> np.ndarray:
    """Return a matrix (sub-words, words) that is 1 where a sub-word belongs to a word."""
    index = np.asarray(words, dtype=np.int64)
    return np.asarray(index[:, None] == np.arange(index.max(initial=-1) + 1), dtype=np.float64)


def argmax_links(weights: np.ndarray) -> set[Link]:
    """Return each target word's most attended source word (the first of equals): (T, S) -> links. A row of zeros gives none."""
    if weights.size == 0:
        return set()
    return {(int(s), t) for t, s in enumerate(weights.argmax(axis=1)) if weights[t, s] > 0}


def alignment_error(
    predicted: Sequence[set[Link]],
    gold: Sequence[set[Link]],
    possible: Sequence[set[Link]] | None = None,
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
) -> Score:
    """Return AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|) over the corpus, 0 (perfect) to 1, with an interval over sentences.

    `gold` are the sure links S, which are possible too; `possible` the others in P. Without these, AER = 1 - F1. Two empty
    alignments agree: 0.
    """
    _same_length(len(predicted), "alignments", len(gold))
    sets = zip(predicted, gold, possible or [set() for _ in gold])
    counts = np.array([(len(a & s) + len(a & (s | p)), len(a) + len(s)) for a, s, p in sets], dtype=np.float64)  # (N, 2)
    signature = make_signature(
        "aer", bs=samples, seed=seed, units="words", gold="sure+possible" if any(possible or ()) else "sure"
    )
    return bootstrap_score("AER", counts, _aer, signature, samples=samples, seed=seed)


def _aer(total: np.ndarray) -> float:
    return float(1 - total[0] / total[1]) if total[1] else 0.0


def best_head(
    weights: Sequence[np.ndarray],
    gold: Sequence[set[Link]],
    possible: Sequence[set[Link]] | None = None,
    *,
    samples: int = SAMPLES,
) -> tuple[Link, Score]:
    """Return the (layer, head) whose links have the lowest AER, the first of equals, and its score.

    `weights` has one array (layers, heads, T, S) per sentence, over words. Choose on validation data and score the chosen
    head on other data: this score is biased by the choice.
    """
    _same_length(len(weights), "sentences", len(gold))
    totals = sum(_head_counts(w, s, p) for w, s, p in zip(weights, gold, possible or [set() for _ in gold]))  # (layers, heads, 2)
    errors = np.apply_along_axis(_aer, -1, totals)  # (layers, heads)
    layer, head = (int(i) for i in np.unravel_index(errors.argmin(), errors.shape))
    return (layer, head), alignment_error([argmax_links(w[layer, head]) for w in weights], gold, possible, samples=samples)


def _head_counts(weights: np.ndarray, gold: set[Link], possible: set[Link]) -> np.ndarray:
    """Return |A ∩ S| + |A ∩ P| and |A| + |S| of every head of one sentence: (layers, heads, T, S) -> (layers, heads, 2)."""
    target, source = weights.shape[-2:]
    if not target or not source:
        return np.broadcast_to(np.array([0.0, len(gold)]), (*weights.shape[:2], 2))
    value = np.zeros((target, source))
    for s, t in gold | possible:
        if s < source and t < target:  # a link to a truncated word is missed
            value[t, s] = 2 if (s, t) in gold else 1
    linked = weights.max(axis=-1) > 0  # (layers, heads, T)
    hits = linked * value[np.arange(target), weights.argmax(axis=-1)]
    return np.stack([hits.sum(axis=-1), linked.sum(axis=-1) + len(gold)], axis=-1).astype(np.float64)


def uniform_alignment_error(
    shapes: Iterable[tuple[int, int]],
    gold: Sequence[set[Link]],
    possible: Sequence[set[Link]] | None = None,
    *,
    samples: int = SAMPLES,
) -> Score:
    """Return the AER of uniform attention with ties broken by position: the baseline that a head has to beat.

    Target word t of T links to source word round(t S / T), the diagonal (the prior of Dyer et al. 2013). `shapes` is (T, S) of
    every sentence.
    """
    diagonal = [{(min(s - 1, int(i * s / t + 0.5)), i) for i in range(t) if s} for t, s in shapes]
    return alignment_error(diagonal, gold, possible, samples=samples)


def _same_length(count: int, what: str, gold: int) -> None:
    if count != gold:
        raise UserError(f"{count} {what} but {gold} gold alignments: give one of each per sentence")
    if not count:
        raise UserError("no alignments to score: the set is empty")
