"""What the measures of faithfulness mean, in words: which method to believe, and why.

Methods are ranked by their advantage over random features: how much more the output loses without their top features
(comprehensiveness), plus how much less it loses with these alone (sufficiency).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regard.explain.faithfulness import RANDOM_BASELINE
from regard.explain.target import TEXT_WORDING, Wording
from regard.scoring.score import Score

SIMILAR_ABOVE, DIFFERENT_BELOW = 0.5, 0.2
MIN_PERMUTATION_EFFECT = 0.1
MIN_DIFFERENCE = 0.01
"""Of scores, in their unit."""
MIN_FRACTION = 0.05
"""Of the best method's advantage: a smaller one is no better than random."""
CLOSE_FRACTION = 0.9
"""Of the best method's advantage: a method that has as much is as good."""
MISSED_RANK = 3
"""A method misses the feature that matters most alone if it ranks it lower."""
SAME_MAP_BELOW = 0.1
"""Maps at a smaller distance look the same."""


@dataclass(frozen=True)
class Verdict:
    """Which method to believe, and a sentence on each method."""

    best: str | None
    """None if no method does better than random features."""
    headline: str
    methods: dict[str, str]


def format_number(number: float) -> str:
    """Return a number with two digits after the point; there is no minus before 0.00."""
    return f"{number:z.2f}"


def format_probability(probability: float) -> str:
    """Return a probability, or a p-value, that is never rounded to 0 or 1."""
    if 0 < probability < 0.0001:
        return "< 0.0001"
    return "> 0.999" if 0.9995 <= probability < 1 else f"{probability:.4f}" if 0 < probability < 0.01 else f"{probability:.3f}"


def format_change(loss: float, unit: str) -> str:
    """Return "falls by 0.20 nats" or "rises by 0.20 nats"."""
    if abs(loss) < MIN_DIFFERENCE / 2:
        return "does not change"
    return f"{'falls' if loss > 0 else 'rises'} by {abs(loss):.2f} {unit}"


# one output


def single_verdict(
    features: Sequence[str],
    attributions: Mapping[str, Sequence[float]],
    measured: Mapping[str, Mapping[str, float]],
    wording: Wording = TEXT_WORDING,
) -> Verdict:
    """Return which method to believe for one output."""
    methods = [name for name in measured if name != RANDOM_BASELINE]
    if not methods:
        return Verdict(None, "No method applies to this output.", {})
    learned = [name for name in methods if not measured[name].get("randomized", 0.0) > SIMILAR_ABOVE]
    best = max(learned or methods, key=lambda name: measured[name]["advantage"])
    least = max(MIN_DIFFERENCE, MIN_FRACTION * measured[best]["advantage"])
    sentences = {name: f"{standing(name, best, least, measured, wording)}." for name in methods}
    for name in methods:
        missed = missed_feature(features, attributions, name, wording)
        more = [missed] if missed else []
        if "map distance" in measured[name]:
            selectivity = measured[name]["selectivity"]
            bounds = (selectivity - MIN_DIFFERENCE, selectivity + MIN_DIFFERENCE)
            more.append(
                discrimination_verdict(measured[name]["map distance"], measured[name].get("map distance randomized"), *bounds)
            )
        if "completeness residual" in measured[name]:
            more.append(completeness_verdict(measured[name], wording))
        sentences[name] = " ".join([sentences[name], *(f"{part[0].upper()}{part[1:]}." for part in more)])
    if measured[best]["advantage"] <= MIN_DIFFERENCE:
        return Verdict(None, f"No method does better than random {wording.features} here: do not believe any.", sentences)
    return Verdict(best, headline(best, methods, measured, wording), sentences)


def headline(best: str, methods: Sequence[str], measured: Mapping[str, Mapping[str, float]], wording: Wording) -> str:
    """Return which method to believe, what for, and which others are as good."""
    own, random = measured[best], measured[RANDOM_BASELINE]
    on_both = own["above random"] > 0 and own["below random"] > 0
    close = [name for name in methods if name != best and is_close(measured[name], own)]
    unlearned = [name for name in close if measured[name].get("randomized", 0.0) > SIMILAR_ABOVE]
    close = [name for name in close if name not in unlearned]
    quantity = "log-probability" if wording.score == "probability" else wording.score
    tests = [
        f"{format_change(own[name], wording.unit)} ({name}; random {wording.features}: {format_number(random[name])})"
        for name in ("comprehensiveness", "sufficiency")
    ]
    text = (
        f"Believe {best} here{'' if on_both else ', with reserve'}: without its top {wording.features} the {quantity} of the "
        f"output {tests[0]}, and with them alone it {tests[1]}."
    )
    if close:
        text += f" About as good: {', '.join(close)}."
    if unlearned:
        text += f" As good here, but nearly the same with random weights: {', '.join(unlearned)}."
    if best == "occlusion" and len(methods) > 1:
        text += f" Occlusion masks {wording.features} as these tests do, and so has it easier than the others."
    return text


def is_close(own: Mapping[str, float], best: Mapping[str, float]) -> bool:
    """Return whether a method has nearly the best one's advantage, on both tests."""
    return own["advantage"] >= CLOSE_FRACTION * best["advantage"] and min(own["above random"], own["below random"]) > 0


def standing(name: str, best: str, least: float, measured: Mapping[str, Mapping[str, float]], wording: Wording) -> str:
    """Return how a method does on the two tests, against random features and against the best method."""
    own, features = measured[name], wording.features
    needed, enough = own["above random"] > least, own["below random"] > least
    figures = f"comprehensiveness {format_number(own['comprehensiveness'])}, sufficiency {format_number(own['sufficiency'])}"
    if not needed and not enough:
        result = f"no better than random {features}: do not believe it here"
    elif not needed:
        result = f"its top {features} suffice better than random ones, but matter no more"
    elif not enough:
        result = f"its top {features} matter more than random ones, but suffice no better"
    elif name == best:
        result = f"better than random {features} on both tests"
    elif is_close(own, measured[best]):
        result = f"about as good as {best}"
    else:
        fraction = own["advantage"] / measured[best]["advantage"]
        result = f"better than random {features} on both tests, with {fraction:.0%} of the advantage of {best}"
    result = f"the best here: {result}" if name == best and (needed or enough) else result
    randomized = own.get("randomized", float("nan"))
    learned = "; random weights give nearly the same, so it does not show what was learned" if randomized > SIMILAR_ABOVE else ""
    return f"{name}: {result} ({figures}){learned}"


def missed_feature(
    features: Sequence[str], attributions: Mapping[str, Sequence[float]], name: str, wording: Wording
) -> str | None:
    """Return a sentence if a method ranks the feature low whose masking alone costs most."""
    alone = attributions.get("occlusion")
    if alone is None or name == "occlusion" or len(features) <= MISSED_RANK:
        return None
    top = max(range(len(alone)), key=lambda i: alone[i])
    values = attributions[name]
    rank = 1 + sum(value > values[top] for value in values)
    if rank <= MISSED_RANK or alone[top] < 10 * MIN_DIFFERENCE:
        return None
    return (
        f"it ranks {features[top]!r} {rank} of {len(features)} ({values[top]:z.3f}), though masking that alone costs "
        f"{format_number(alone[top])} {wording.unit}"
    )


def completeness_verdict(own: Mapping[str, float], wording: Wording) -> str:
    """Return by how much integrated gradients miss the sum that they should have."""
    total, residual = own["score above baseline"], own["completeness residual"]
    return (
        f"its completeness residual is {residual:.3f} {wording.unit}: the values add up to the difference from the fully masked "
        f"input, {format_number(total)}, but for that"
    )


# two outputs


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


# sets


def set_headline(scores: Mapping[str, Mapping[str, Score]], wording: Wording = TEXT_WORDING) -> str:
    """Return which method to believe over a set: the one with the largest advantage, and those not distinguishable from it."""
    ranked = sorted((name for name in scores if name != RANDOM_BASELINE), key=lambda name: -scores[name]["advantage"].score)
    if not ranked or scores[ranked[0]]["advantage"].low <= 0:
        return f"No method can be distinguished from random {wording.features} on this set."
    best = ranked[0]
    own, random = scores[best], scores[RANDOM_BASELINE]
    text = f"Believe {best} on this set: " + ", ".join(
        f"{name} {format_number(own[name].score)} {wording.unit} (random {format_number(random[name].score)})"
        for name in ("comprehensiveness", "sufficiency")
    )
    behind = [name for name in ranked[1:] if "behind best" in scores[name] and scores[name]["behind best"].low <= 0]
    return text + (f"; not distinguishable from it: {', '.join(behind)}." if behind else "; every other method does worse.")


def set_verdict(method: str, scores: Mapping[str, Score], wording: Wording = TEXT_WORDING) -> str:
    """Return one sentence on a method, measured over a set."""
    parts = erasure_verdicts(scores, wording)
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
    if "completeness residual" in scores:
        parts.append(f"its completeness residual is {scores['completeness residual'].score:.3f} {wording.unit}")
    return f"{method}: {'; '.join(parts)}."


def erasure_verdicts(scores: Mapping[str, Score], wording: Wording) -> list[str]:
    """Return half sentences on the two tests against random features, and on the distance from the best method."""
    features, parts = wording.features, []
    above, below, behind = (scores.get(name) for name in ("above random", "below random", "behind best"))
    if above is not None:
        compared = "matter more to the output than" if above.low > 0 else "matter less to the output than"
        if above.low <= 0 <= above.high:
            compared = "cannot be distinguished in comprehensiveness from"
        parts.append(f"its top {features} {compared} random {features}")
    if below is not None:
        compared = "suffice better" if below.low > 0 else "suffice less" if below.high < 0 else "suffice no better"
        parts.append(f"they {compared} alone")
    if behind is not None:
        far = f"it is {format_number(behind.score)} {wording.unit} behind the best method"
        parts.append(far if behind.low > 0 else "it cannot be distinguished from the best method")
    return parts


def format_interval(score: Score) -> str:
    return f"{format_number(score.score)} [{format_number(score.low)}, {format_number(score.high)}]"


def permutation_verdict(score: Score, wording: Wording = TEXT_WORDING) -> str:
    """Return one sentence on how much the outputs depend on the shown attention weights."""
    effect = f"Permuting the shown attention weights changes the outputs by {score.score:.2f} of their {wording.score}: "
    if score.high < MIN_PERMUTATION_EFFECT:
        return effect + "the model predicts nearly the same whatever they are, so they explain little."
    return effect + "the outputs depend on them."
