"""Metrics of models that read or write images: captions, retrieval, reconstruction; intervals are over images.

BLEU-1 to BLEU-4 of captions, as in captioning papers (Xu et al. 2015, table 1), are sacreBLEU's with n-grams of up to that many
words, lower-cased; an image may have any number of references. Attention is compared with the boxes of the objects that a
caption names. Recall@k is how often the match of an image or a text is among the first k that a model retrieves (Hodosh et al.
2013).
"""

import math
from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, bootstrap_score, make_signature, percentage
from regard.scoring.translation import reference_streams, sacrebleu_score

Box = tuple[int, int, int, int]
RECALL_AT = (1, 5, 10)
ROWS_AT_ONCE = 512
MAX_PSNR = 100.0
"""Decibels of a perfect reconstruction; JSON has no infinity."""


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
    return np.asarray(_overlap_matrix(size[0], grid[0]) @ mask @ _overlap_matrix(size[1], grid[1]).T)


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
            percentage,
            make_signature(name, bs=samples, seed=SEED, units="phrases"),
            samples=samples,
        )
        for column, name in enumerate(("attention_inside", "inside_by_chance"))
    }


def retrieval_ranks(images: np.ndarray, texts: np.ndarray, owners: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rank of the best own text of each image (N,), and of the image of each text (M,), counted from 0.

    Vectors are (N, E) and (M, E); `owners` (M,) is the image of each text. Ties count against the match, or a model with
    constant vectors would retrieve everything.
    """
    image_of = np.asarray(owners)
    if len(image_of) != len(texts) or not len(image_of) or not set(image_of.tolist()) == set(range(len(images))):
        raise UserError(
            f"{len(images)} images, {len(texts)} texts and {len(image_of)} owners: every text needs an image, and every "
            "image a text"
        )
    for_images, for_texts = np.zeros(len(images), np.int64), np.zeros(len(texts), np.int64)
    for start in range(0, len(images), ROWS_AT_ONCE):
        similarity = images[start : start + ROWS_AT_ONCE] @ texts.T  # (n, M)
        own = image_of == np.arange(start, start + len(similarity))[:, None]
        best = np.where(own, similarity, -np.inf).max(1, keepdims=True)
        for_images[start : start + len(similarity)] = ((similarity >= best) & ~own).sum(1)
    for start in range(0, len(texts), ROWS_AT_ONCE):
        similarity = texts[start : start + ROWS_AT_ONCE] @ images.T  # (m, N)
        best = similarity[np.arange(len(similarity)), image_of[start : start + len(similarity)]][:, None]
        for_texts[start : start + len(similarity)] = (similarity >= best).sum(1) - 1
    return for_images, for_texts


def retrieval_scores(
    images: np.ndarray, texts: np.ndarray, owners: Sequence[int], *, samples: int = SAMPLES, seed: int = SEED
) -> dict[str, Score]:
    """Return R@1, R@5 and R@10 from images to texts and from texts to images, in percent; the bootstrap draws images with all
    their texts."""
    for_images, for_texts = retrieval_ranks(images, texts, owners)
    image_of, count = np.asarray(owners), np.bincount(owners, minlength=len(images))
    scores = {}
    for direction, ranks in (("image_to_text", for_images), ("text_to_image", for_texts)):
        for k in RECALL_AT:
            hits = (ranks < k).astype(np.float64)
            right = hits if direction == "image_to_text" else np.bincount(image_of, hits, minlength=len(images))
            each = np.stack([right, np.ones(len(images)) if direction == "image_to_text" else count], axis=1)
            name = f"{direction}_r{k}"
            signature = make_signature(
                name, images=len(images), texts=len(texts), ties="against", bs=samples, seed=seed, units="percent"
            )
            scores[name] = bootstrap_score(name, each, percentage, signature, samples=samples, seed=seed)
    return scores


def reconstruction_scores(
    errors: np.ndarray, codes: np.ndarray, codebook_size: int, *, samples: int = SAMPLES, seed: int = SEED
) -> dict[str, Score]:
    """Return the mean squared error, the peak signal-to-noise ratio in decibels, the percentage of the codebook in use and the
    perplexity of its codes, from the mean squared error of each image (N,), of pixels from 0 to 1, and its codes (N, h, w)."""
    if not len(errors):
        raise UserError("no images to reconstruct: the set is empty")
    squared = np.stack([errors, np.ones(len(errors))], axis=1).astype(np.float64)
    used = np.stack([np.bincount(grid.ravel(), minlength=codebook_size) for grid in codes])  # (N, V)
    fields = dict(bs=samples, seed=seed, n=len(errors))
    options = dict(samples=samples, seed=seed)
    return {
        "psnr": bootstrap_score("psnr", squared, psnr, make_signature("psnr", **fields, units="dB"), **options),
        "mse": bootstrap_score(
            "mse", squared, lambda total: total[0] / total[1], make_signature("mse", **fields, pixels="0-1"), **options
        ),
        "codes_used": bootstrap_score(
            "codes_used",
            used,
            lambda total: 100 * float((total > 0).mean()),
            make_signature("codes_used", **fields, book=codebook_size, units="percent"),
            **options,
        ),
        "code_perplexity": bootstrap_score(
            "code_perplexity", used, code_perplexity, make_signature("code_perplexity", **fields, book=codebook_size), **options
        ),
    }


def psnr(total: np.ndarray) -> float:
    """Return -10 log₁₀ of the mean squared error."""
    return min(MAX_PSNR, -10 * math.log10(max(total[0] / total[1], 1e-30)))


def code_perplexity(counts: np.ndarray) -> float:
    """Return exp of the entropy of the code frequencies: the number of equally used codes with the same entropy."""
    p = counts[counts > 0] / counts.sum()
    return float(np.exp(-(p * np.log(p)).sum()))
