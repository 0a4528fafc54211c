"""Recall: how often what belongs to a picture or a text is among the first that a model finds for it (Hodosh et al. 2013)."""

from collections.abc import Sequence

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, bootstrap_score, make_signature

RECALL_AT = (1, 5, 10)
ROWS_AT_ONCE = 512


def retrieval_ranks(images: np.ndarray, texts: np.ndarray, owners: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """How many of the others lie before the best of its own texts, for each picture (N,); and before its picture, for each text
    (M,). Vectors (N, E) and (M, E); `owners` (M,) says which picture a text belongs to. What lies as near counts as before, or
    a model that finds everything alike would find everything."""
    of = np.asarray(owners)
    if len(of) != len(texts) or not len(of) or not set(of.tolist()) == set(range(len(images))):
        raise UserError(
            f"{len(images)} pictures, {len(texts)} texts and {len(of)} owners: every text needs a picture, and every "
            "picture a text"
        )
    for_images, for_texts = np.zeros(len(images), np.int64), np.zeros(len(texts), np.int64)
    for start in range(0, len(images), ROWS_AT_ONCE):
        near = images[start : start + ROWS_AT_ONCE] @ texts.T  # (n, M)
        own = of == np.arange(start, start + len(near))[:, None]
        best = np.where(own, near, -np.inf).max(1, keepdims=True)
        for_images[start : start + len(near)] = ((near >= best) & ~own).sum(1)
    for start in range(0, len(texts), ROWS_AT_ONCE):
        near = texts[start : start + ROWS_AT_ONCE] @ images.T  # (m, N)
        best = near[np.arange(len(near)), of[start : start + len(near)]][:, None]
        for_texts[start : start + len(near)] = (near >= best).sum(1) - 1
    return for_images, for_texts


def retrieval_scores(
    images: np.ndarray, texts: np.ndarray, owners: Sequence[int], *, samples: int = SAMPLES, seed: int = SEED
) -> dict[str, Score]:
    """R@1, R@5 and R@10 from pictures to texts and from texts to pictures, in percent; the bootstrap draws pictures with all
    their texts."""
    for_images, for_texts = retrieval_ranks(images, texts, owners)
    of, count = np.asarray(owners), np.bincount(owners, minlength=len(images))
    scores = {}
    for direction, ranks in (("image_to_text", for_images), ("text_to_image", for_texts)):
        for k in RECALL_AT:
            hits = (ranks < k).astype(np.float64)
            right = hits if direction == "image_to_text" else np.bincount(of, hits, minlength=len(images))
            each = np.stack([right, np.ones(len(images)) if direction == "image_to_text" else count], axis=1)
            name = f"{direction}_r{k}"
            signature = make_signature(
                name, images=len(images), texts=len(texts), ties="against", bs=samples, seed=seed, units="percent"
            )
            scores[name] = bootstrap_score(
                name, each, lambda total: 100 * total[0] / max(total[1], 1.0), signature, samples=samples, seed=seed
            )
    return scores
