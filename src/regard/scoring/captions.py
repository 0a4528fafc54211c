"""Captions against several references, and attention against the boxes of the objects that a caption names.

BLEU-1 to BLEU-4 as in captioning papers (Xu et al. 2015, table 1) are sacreBLEU's with n-grams of up to that many words,
lower-cased; an image may have any number of references.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics import BLEU

from regard.scoring.score import SAMPLES, SEED, Score, bootstrap_score, make_signature
from regard.scoring.translation import reference_streams, sacrebleu_score

Box = tuple[int, int, int, int]


def caption_scores(
    captions: Sequence[str], references: Sequence[Sequence[str]], *, orders: Sequence[int] = (1, 2, 3, 4), samples: int = SAMPLES
) -> dict[str, Score]:
    """Return BLEU-n of all captions by name; each image has its own list of references."""
    streams = reference_streams(captions, transpose_references(references))
    return {
        f"bleu_{n}": sacrebleu_score(
            BLEU(lowercase=True, max_ngram_order=n, force=True), captions, streams, samples, f"order:{n}|"
        )
        for n in orders
    }


def transpose_references(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """Return all first references, all second ones …, as sacreBLEU takes them; None where an image has fewer."""
    longest = max((len(own) for own in references), default=0)
    return [[own[rank] if rank < len(own) else None for own in references] for rank in range(longest)]


def sentence_bleu(caption: str, references: Sequence[str]) -> float:
    """Return BLEU of one caption, for ranking; n-gram orders that it is too short for are left out."""
    return float(BLEU(lowercase=True, effective_order=True).sentence_score(caption, list(references)).score)


def attention_in_boxes(weights: np.ndarray, boxes: Sequence[Box], size: tuple[int, int]) -> tuple[float, float]:
    """Return the fraction of attention (T, rows, columns), mean over T, inside the boxes of an image of this height and width;
    and the fraction of the image that they cover, which is what uniform attention gives."""
    coverage = box_coverage(boxes, size, weights.shape[1:])
    return float((weights * coverage).sum((1, 2)).mean()), float(coverage.mean())


def box_coverage(boxes: Sequence[Box], size: tuple[int, int], grid: tuple[int, ...]) -> np.ndarray:
    """Return the fraction of each cell of a grid (rows, columns) that boxes cover in an image of this height and width."""
    mask = np.zeros(size)
    for x0, y0, x1, y1 in boxes:
        mask[y0:y1, x0:x1] = 1
    return _overlap_matrix(size[0], grid[0]) @ mask @ _overlap_matrix(size[1], grid[1]).T


def _overlap_matrix(pixels: int, cells: int) -> np.ndarray:
    """Return the fraction of each of so many equal cells that each pixel of a line covers: (cells, pixels)."""
    edges = np.arange(cells + 1) * pixels / cells
    at = np.arange(pixels)
    overlap = np.minimum(edges[1:, None], at + 1) - np.maximum(edges[:-1, None], at)
    return overlap.clip(0) * cells / pixels


def grounding_scores(fractions: Sequence[Sequence[tuple[float, float]]], *, samples: int = SAMPLES) -> dict[str, Score]:
    """Return the mean of `attention_in_boxes` over the noun phrases of each caption, in percent; intervals over captions."""
    totals = np.array([[sum(inside for inside, _ in each), sum(uniform for _, uniform in each), len(each)] for each in fractions])
    return {
        name: bootstrap_score(
            name,
            totals[:, [column, 2]],
            _percentage,
            make_signature(name, bs=samples, seed=SEED, units="phrases"),
            samples=samples,
        )
        for column, name in enumerate(("attention_inside", "inside_by_chance"))
    }


def _percentage(total: np.ndarray) -> float:
    return float(100 * total[0] / total[1]) if total[1] else 0.0
