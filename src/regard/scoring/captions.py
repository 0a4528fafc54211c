"""Captions against several references, and attention against the boxes of what is named.

BLEU-1 to BLEU-4 as captioners report them (Xu et al. 2015, table 1) are sacreBLEU's with the longest n-grams of so many words,
lower-cased; a picture may have any number of references.
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
    """BLEU-n of all captions, by its name; each picture has its list of references."""
    streams = reference_streams(captions, transpose_references(references))
    return {
        f"bleu_{n}": sacrebleu_score(
            BLEU(lowercase=True, max_ngram_order=n, force=True), captions, streams, samples, f"order:{n}|"
        )
        for n in orders
    }


def transpose_references(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """All first references, all second ones …, as sacreBLEU takes them; None where a picture has no more."""
    most = max((len(few) for few in references), default=0)
    return [[few[rank] if rank < len(few) else None for few in references] for rank in range(most)]


def sentence_bleu(caption: str, references: Sequence[str]) -> float:
    """Of one caption, to rank captions by: orders that it is too short for do not count."""
    return float(BLEU(lowercase=True, effective_order=True).sentence_score(caption, list(references)).score)


def attention_in_boxes(weights: np.ndarray, boxes: Sequence[Box], size: tuple[int, int]) -> tuple[float, float]:
    """The share of attention (T, rows, columns), mean over T, that falls into the boxes of a picture of this height and width;
    and the share of the picture that they cover, which is what looking everywhere alike would give."""
    part = box_coverage(boxes, size, weights.shape[1:])
    return float((weights * part).sum((1, 2)).mean()), float(part.mean())


def box_coverage(boxes: Sequence[Box], size: tuple[int, int], grid: tuple[int, ...]) -> np.ndarray:
    """How much of each place of a grid (rows, columns) boxes cover in a picture of this height and width, from 0 to 1."""
    cover = np.zeros(size)
    for x0, y0, x1, y1 in boxes:
        cover[y0:y1, x0:x1] = 1
    return overlap_matrix(size[0], grid[0]) @ cover @ overlap_matrix(size[1], grid[1]).T


def overlap_matrix(pixels: int, places: int) -> np.ndarray:
    """(places, pixels): the share that each pixel has in each of so many equal places in a row."""
    edges = np.arange(places + 1) * pixels / places
    at = np.arange(pixels)
    covered = np.minimum(edges[1:, None], at + 1) - np.maximum(edges[:-1, None], at)
    return covered.clip(0) * places / pixels


def grounding_scores(shares: Sequence[Sequence[tuple[float, float]]], *, samples: int = SAMPLES) -> dict[str, Score]:
    """Of each caption's noun phrases what `inside` found, in percent of the attention; intervals over captions."""
    totals = np.array([[sum(share for share, _ in each), sum(chance for _, chance in each), len(each)] for each in shares])
    return {
        name: bootstrap_score(
            name,
            totals[:, [column, 2]],
            percentage,
            make_signature(name, bs=samples, seed=SEED, units="phrases"),
            samples=samples,
        )
        for column, name in enumerate(("attention_inside", "inside_by_chance"))
    }


def percentage(total: np.ndarray) -> float:
    return float(100 * total[0] / total[1]) if total[1] else 0.0
