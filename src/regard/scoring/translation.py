"""BLEU (Papineni et al. 2002), chrF (Popović 2015) and TER (Snover et al. 2006) through sacreBLEU (Post 2018).

The score, its signature and the resampling are sacreBLEU's own (`corpus_score`, `PairedTest`). It reports the mean
over resamples ± half the distance between their 2.5% and 97.5% percentiles; low and high are that mean minus and plus that
half, kept within the metric's range and widened, if need be, to hold the score itself. The seed is sacreBLEU's (12345, or
the SACREBLEU_SEED of the environment) and stands in the signature. References are one list of sentences, or several lists
of equal length (not a list per sentence).
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from regard.errors import UserError
from regard.scoring.score import SAMPLES, Score

References = Sequence[str] | Sequence[Sequence[str]] | Sequence[Sequence[str | None]]

MAX_DRAWS = 10_000_000  # sentences drawn in all; sacreBLEU holds about 100 bytes for each at once


class PythonFloats:
    """Makes chrF and TER compute in Python floats. sacreBLEU resamples in float32 but returns a Python float if nothing matches
    (chrF 0) or a reference is empty (TER 0 or 100), and then cannot take the mean of both (TypeError in 2.6). If another version
    does not call this method, nothing changes."""

    def _compute_score_from_stats(self, stats: Any) -> Any:
        return super()._compute_score_from_stats([float(x) for x in stats])  # type: ignore[misc]


class PlainCHRF(PythonFloats, CHRF):
    pass


class PlainTER(PythonFloats, TER):
    pass


METRICS: dict[str, Callable[[], Metric]] = {
    "bleu": BLEU,
    "chrf": PlainCHRF,
    "chrf++": lambda: PlainCHRF(word_order=2),
    "ter": PlainTER,
}
TESTS = {"bootstrap": "bs", "randomization": "ar"}


def translation_scores(
    hypotheses: Sequence[str],
    references: References,
    *,
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    samples: int = SAMPLES,
) -> dict[str, Score]:
    """Return corpus scores of translations by the name of the metric.

    BLEU has sacreBLEU's defaults (13a tokens, exponential smoothing, orders 1 to 4 whatever the length), so a set in
    which no sentence has four words scores 0.
    """
    streams = reference_streams(hypotheses, references)
    samples = _affordable_samples(samples, len(hypotheses))
    return {name: sacrebleu_score(_metric(name), hypotheses, streams, samples) for name in metrics}


def sacrebleu_score(
    metric: Metric, hypotheses: Sequence[str], streams: list[list[str]], samples: int, signature_prefix: str = ""
) -> Score:
    """Return the score of one of sacreBLEU's metrics; the prefix adds to its signature what that leaves out."""
    result = metric.corpus_score(list(hypotheses), streams, n_bootstrap=samples)
    signature = str(metric.get_signature())
    result_json = json.loads(result.format(width=6, is_json=True, signature=signature))
    mean = result_json.get("confidence_mean", 0.0)  # left out when every resample scored 0
    half = result_json.get("confidence_var", 0.0)
    best = float("inf") if isinstance(metric, TER) else 100.0
    low, high = max(0.0, mean - half), min(best, mean + half)
    return Score(result.name, float(result.score), min(low, result.score), max(high, result.score), signature_prefix + signature)


def score_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    bins: int = 5,
    *,
    min_count: int = 30,
    samples: int = SAMPLES,
) -> list[dict[str, Any]]:
    """Return BLEU by the length of the source in words (Bahdanau et al. 2015, fig. 2).

    At most `bins` bins of about equally many sentences, each of at least `min_count` (one bin if there are fewer in all).
    A bin includes lengths from `low` to `high` words. Short bins may hold no 4-grams, so the orders counted are those
    that occur (`eff:yes` in the signature).
    """
    streams = reference_streams(hypotheses, references)
    if len(sources) != len(hypotheses):
        raise UserError(f"{len(sources)} sources but {len(hypotheses)} hypotheses: give one line of each per sentence")
    samples = _affordable_samples(samples, len(hypotheses))
    lengths = [len(source.split()) for source in sources]
    rows = []
    for low, high in _bins(lengths, bins, min_count):
        chosen = [i for i, length in enumerate(lengths) if low <= length <= high]
        metric = BLEU(effective_order=True, force=True)
        score = sacrebleu_score(metric, [hypotheses[i] for i in chosen], [[s[i] for i in chosen] for s in streams], samples)
        numbers = {"score": score.score, "ci_low": score.low, "ci_high": score.high, "signature": score.signature}
        rows.append({"low": low, "high": high, "count": len(chosen), **numbers})
    return rows


def _bins(lengths: list[int], bins: int, min_count: int) -> list[tuple[int, int]]:
    """Return quantile bins over lengths; close one when it has its share of the rest and the rest can fill another."""
    if bins < 1:
        raise UserError(f"bins = {bins}: at least 1 is needed")
    found: list[tuple[int, int]] = []
    ordered = sorted(lengths)
    start = 0
    while start < len(ordered):
        left = len(ordered) - start
        size = max(min_count, left / max(1, bins - len(found)))
        end = start
        while end < len(ordered) and (end - start < size or ordered[end] == ordered[end - 1]):
            end += 1
        if len(ordered) - end < min_count or len(found) == bins - 1:
            end = len(ordered)
        found.append((ordered[start], ordered[end - 1]))
        start = end
    return found


def compare_systems(
    hypotheses: Mapping[str, Sequence[str]],
    references: References,
    *,
    metrics: Sequence[str] = ("bleu", "chrf"),
    test: str = "bootstrap",
    samples: int = SAMPLES,
) -> list[dict[str, Any]]:
    """Test whether each system differs from the first: paired bootstrap (Koehn 2004) or randomization (Riezler & Maxwell 2005).

    One row per system and metric: the score, sacreBLEU's mean ± ci over resamples, and the two-sided p-value (None for the
    first). One deviation from sacreBLEU, which counts only resamples that *exceed* the difference and so calls a system
    different from itself (p = 1/1001): equal scores get p = 1, and a randomization over m sentences that differ gets at least
    2^(1-m), since that fraction of all swaps reaches the difference by construction.
    """
    if test not in TESTS:
        raise UserError(f"no test {test!r}; choose one of {', '.join(TESTS)}")
    if len(hypotheses) < 2:
        raise UserError(f"{len(hypotheses)} system to compare: give at least 2")
    for system, outputs in hypotheses.items():
        streams = reference_streams(outputs, references, system)
    systems: list[tuple[str, Sequence[str]]] = [(name, list(outputs)) for name, outputs in hypotheses.items()]
    samples = _affordable_samples(samples, len(streams[0]))
    chosen = {name: _metric(name) for name in metrics}
    confidence = samples if test == "randomization" else -1
    paired = PairedTest(systems, chosen, streams, TESTS[test], samples, n_ar_confidence=confidence)
    signatures, results = paired()
    return _rows(systems, dict(zip(chosen, signatures)), signatures, results, test)  # both in the order of `metrics`


def _rows(
    systems: Sequence[tuple[str, Sequence[str]]],
    keys: Mapping[str, str],
    signatures: Mapping[str, object],
    results: Mapping[str, Sequence[Any]],
    test: str,
) -> list[dict[str, Any]]:
    """Return one row per system and metric from the results of PairedTest; `keys` has sacreBLEU's name of each metric."""
    rows = []
    for i, (system, outputs) in enumerate(systems):
        differing = sum(a != b for a, b in zip(outputs, systems[0][1]))
        for name, key in keys.items():
            first, result = results[key][0], results[key][i]
            row = {"system": system, "metric": name, "score": float(result.score), "mean": float(result.mean)}
            p = _p_value(result, first, differing, test) if i else None
            rows.append({**row, "ci": float(result.ci), "p_value": p, "signature": str(signatures[key])})
    return rows


def _p_value(result: Any, first: Any, differing: int, test: str) -> float:
    if result.score == first.score:
        return 1.0
    floor = 2.0 ** (1 - differing) if test == "randomization" else 0.0
    return float(max(result.p_value, floor))


def _metric(name: str) -> Metric:
    if name not in METRICS:
        raise unknown_metric(name, list(METRICS))
    return METRICS[name]()


def unknown_metric(name: str, known: Sequence[str]) -> UserError:
    """Return the error of a metric that is none of these."""
    close = get_close_matches(name, known, n=1)
    cure = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"
    return UserError(f"no metric {name!r}; {cure}")


def reference_streams(hypotheses: Sequence[str], references: References, name: str = "") -> list[list[str]]:
    """Return the references as sacreBLEU takes them, one list per translator; refuse lists of other lengths."""
    single = not references or isinstance(references[0], str)
    given: Any = [references] if single else references
    streams = [list(stream) for stream in given]
    whose = f" of {name}" if name else ""
    for number, stream in enumerate(streams, start=1):
        if len(stream) != len(hypotheses):
            which = "references" if single else f"references in list {number}"
            raise UserError(f"{len(hypotheses)} hypotheses{whose} but {len(stream)} {which}: give one line of each per sentence")
    if not hypotheses:
        raise UserError(f"no hypotheses{whose} to score: the set is empty")
    return streams


def _affordable_samples(samples: int, sentences: int) -> int:
    """Return fewer resamples for a very large set, whose interval is narrow anyway; the signature's `bs` is the number drawn."""
    if samples < 2:
        raise UserError(f"samples = {samples}: an interval needs at least 2 resamples (1000 is usual)")
    fewer = min(samples, max(100, MAX_DRAWS // sentences))
    if fewer < samples:
        warnings.warn(f"{sentences} sentences: {fewer} resamples instead of {samples}, to save memory", stacklevel=3)
    return fewer
