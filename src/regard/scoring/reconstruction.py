"""How well images are reconstructed from codes, and how well the codes are used; with bootstrap intervals over images."""

import math

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, bootstrap_score, make_signature

MAX_PSNR = 100.0
"""Decibels of a perfect reconstruction; JSON has no infinity."""


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
