"""Metrics of translations by name, for those who ask for more: sacreBLEU's others, and COMET (Rei et al. 2020), a trained model.

COMET is the package unbabel-comet, `pip install 'regard[comet]'`. Its weights come from the hub at the first use, or from a
checkpoint named as `comet:FILE.ckpt`; COMET reads them with torch's pickle, so use only those you trust.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.scoring.score import SAMPLES, SEED, Score, make_signature, mean_score
from regard.scoring.translation import METRICS, translation_scores, unknown_metric

COMET_MODEL = "Unbabel/wmt22-comet-da"
COMET_BATCH = 16
TranslationMetric = Callable[[Sequence[str], Sequence[str], Sequence[str]], Score]
"""The score of sources, outputs and references, one of each per sentence."""


def open_metric(name: str, device: str = "cpu") -> TranslationMetric:
    """Return the metric of a name: one of sacreBLEU's, `comet`, or `comet:MODEL` with a name on the hub or a checkpoint file."""
    if name in METRICS:
        return lambda sources, outputs, references: translation_scores(outputs, references, metrics=[name])[name]
    kind, _, model = name.partition(":")
    if kind != "comet":
        raise unknown_metric(name, [*METRICS, "comet"])
    return open_comet(model or COMET_MODEL, device)


def open_comet(model: str, device: str) -> TranslationMetric:
    """Return COMET with these weights: 100 · the mean of its sentence scores, with a bootstrap interval over sentences."""
    try:
        import comet
    except ImportError:
        raise UserError("--metric comet: COMET is not installed; pip install 'regard[comet]'") from None
    try:
        checkpoint = model if Path(model).is_file() else comet.download_model(model)
    except (KeyError, OSError):
        raise UserError(
            f"--metric comet: {model} is neither a checkpoint file nor to be had from the hub; give --metric comet:FILE.ckpt"
        ) from None
    opened: Any = comet.load_from_checkpoint(checkpoint)

    def score(sources: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> Score:
        samples = [{"src": s, "mt": output, "ref": r} for s, output, r in zip(sources, outputs, references, strict=True)]
        found = opened.predict(samples, batch_size=COMET_BATCH, gpus=int(device.startswith("cuda")), progress_bar=False)
        signature = make_signature("comet", model=model, bs=SAMPLES, seed=SEED, n=len(samples), scale=100)
        return mean_score("comet", np.asarray(found.scores, dtype=np.float64), signature)

    return score
