"""Recall@k: how often the match of an image or a text is among the first k that a model retrieves (Hodosh et al. 2013)."""

from collections.abc import Sequence

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, bootstrap_score, make_signature

RECALL_AT = (1, 5, 10)
ROWS_AT_ONCE = 512


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
            scores[name] = bootstrap_score(
                name, each, lambda total: 100 * total[0] / max(total[1], 1.0), signature, samples=samples, seed=seed
            )
    return scores
