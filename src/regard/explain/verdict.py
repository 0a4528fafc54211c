"""What the measures of faithfulness mean, in words."""

from collections.abc import Mapping

from regard.explain.faithfulness import RANDOM_BASELINE
from regard.explain.target import TEXT_WORDING, Wording
from regard.scoring.score import Score

SIMILAR_ABOVE, DIFFERENT_BELOW = 0.5, 0.2
MIN_PERMUTATION_EFFECT = 0.1
MIN_DIFFERENCE = 0.01
SAME_MAP_BELOW = 0.1
"""Maps at a smaller distance look the same."""


def set_verdict(method: str, scores: Mapping[str, Score], wording: Wording = TEXT_WORDING) -> str:
    """Return one sentence on a method, measured over a set."""
    above, features = scores.get("above random"), wording.features
    parts = []
    if above is not None:
        compared = "matter more to the output than" if above.low > 0 else "matter less to the output than"
        if above.low <= 0 <= above.high:
            compared = "cannot be distinguished from"
        parts.append(f"its top {features} {compared} random {features}")
    agrees = scores.get("spearman")
    if agrees is not None:
        degree = "close to" if agrees.low > SIMILAR_ABOVE else "unlike" if agrees.high < DIFFERENT_BELOW else "somewhat like"
        parts.append(f"its ranking is {degree} that of occlusion")
    randomized = scores.get("randomized")
    if randomized is not None and randomized.score > SIMILAR_ABOVE:
        parts.append("a model with random weights gives nearly the same, so it does not show what this one has learned")
    for measure, what in (
        ("alignment", "its top token belongs to an aligned word"),
        ("antecedent", 'of the candidate nouns of an "it" its top one is the antecedent'),
        ("box", "its top patch lies in a box of what the output names"),
    ):
        if measure in scores:
            parts.append(f"{what} in {scores[measure].score:.0%} of the {wording.examples}")
    if "map distance" in scores:
        distance, control = scores["map distance"].score, scores.get("map distance randomized")
        low, high = scores["selectivity"].low, scores["selectivity"].high
        parts.append(discrimination_verdict(distance, None if control is None else control.score, low, high))
    return f"{method}: {'; '.join(parts)}."


def discrimination_verdict(distance: float, randomized: float | None, low: float, high: float) -> str:
    """Return half a sentence on the maps of two outputs; `low` to `high` is the interval of their selectivity."""
    if distance < SAME_MAP_BELOW:
        return "it gives both outputs nearly the same map, so it is not class-discriminative"
    chance = "" if randomized is None or randomized < distance else " (no more than with random weights)"
    if low > 0:
        return f"it is class-discriminative{chance}: each map marks what supports its own output"
    return f"its two maps differ{chance}, but " + (
        "each marks what supports the other output" if high < 0 else "do not mark what supports their own output"
    )


def permutation_verdict(score: Score, wording: Wording = TEXT_WORDING) -> str:
    """Return one sentence on how much the outputs depend on the shown attention weights."""
    effect = f"Permuting the shown attention weights changes the outputs by {score.score:.2f} of their {wording.score}: "
    if score.high < MIN_PERMUTATION_EFFECT:
        return effect + "the model predicts nearly the same whatever they are, so they explain little."
    return effect + "the outputs depend on them."


def single_verdict(method: str, measured: Mapping[str, Mapping[str, float]], wording: Wording = TEXT_WORDING) -> str:
    """Return one sentence on one attribution of one output."""
    own, random = measured[method], measured[RANDOM_BASELINE]
    more = own["comprehensiveness"] - random["comprehensiveness"]
    compared = "more than" if more > MIN_DIFFERENCE else "less than" if more < -MIN_DIFFERENCE else "as much as"
    sentence = (
        f"{method}: without its top {wording.features} the output loses {own['comprehensiveness']:z.2f} of its {wording.score}, "
        f"{compared} without random {wording.features} ({random['comprehensiveness']:z.2f})"
    )
    if "map distance" in own:
        low, high = own["selectivity"] - MIN_DIFFERENCE, own["selectivity"] + MIN_DIFFERENCE
        sentence += "; " + discrimination_verdict(own["map distance"], own.get("map distance randomized"), low, high)
    return sentence + "."
