"""How well pictures are made of codes again, and how well the codes are used; with bootstrap intervals over pictures."""

import math

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, bootstrap_score, make_signature

MAX_PSNR = 100.0
"""Decibels of a picture that is the same again; JSON has no infinity."""


def reconstruction_scores(
    errors: np.ndarray, codes: np.ndarray, book: int, *, samples: int = SAMPLES, seed: int = SEED
) -> dict[str, Score]:
    """From the mean squared error of each picture (N,), of pixels from 0 to 1, and its codes (N, h, w): the mean squared error,
    the peak signal-to-noise ratio in decibels, the share of the book in use and the perplexity of its codes."""
    if not len(errors):
        raise UserError("no pictures to make again: the set is empty")
    squared = np.stack([errors, np.ones(len(errors))], axis=1).astype(np.float64)
    used = np.stack([np.bincount(grid.ravel(), minlength=book) for grid in codes])  # (N, V)
    how = dict(bs=samples, seed=seed, n=len(errors))
    again = dict(samples=samples, seed=seed)
    return {
        "psnr": bootstrap_score("psnr", squared, psnr, make_signature("psnr", **how, units="dB"), **again),
        "mse": bootstrap_score(
            "mse", squared, lambda total: total[0] / total[1], make_signature("mse", **how, pixels="0-1"), **again
        ),
        "codes_used": bootstrap_score(
            "codes_used",
            used,
            lambda total: 100 * float((total > 0).mean()),
            make_signature("codes_used", **how, book=book, units="percent"),
            **again,
        ),
        "code_perplexity": bootstrap_score(
            "code_perplexity", used, code_perplexity, make_signature("code_perplexity", **how, book=book), **again
        ),
    }


def psnr(total: np.ndarray) -> float:
    """-10 log₁₀ of the mean squared error."""
    return min(MAX_PSNR, -10 * math.log10(max(total[0] / total[1], 1e-30)))


def code_perplexity(counts: np.ndarray) -> float:
    """exp of the entropy of how often each code is used: as many codes, used alike, would say as much."""
    p = counts[counts > 0] / counts.sum()
    return float(np.exp(-(p * np.log(p)).sum()))
