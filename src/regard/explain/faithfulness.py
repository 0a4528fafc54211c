"""Is an attribution faithful to the model? Measures of one output, and their means over many with intervals.

comprehensiveness   DeYoung et al. 2020: the loss when the top features are masked, mean over their number. Masked features are
                    replaced, not removed. The loss is in log-probability (nats), where the paper has probabilities; for CLIP, in
                    similarity
sufficiency         the same when only those features are kept: the lower, the better
above random        comprehensiveness minus that of random features
below random        the sufficiency of random features minus that of the method
advantage           the sum of the two: one number to rank methods by
behind best         over a set: how much less that is than the advantage of the best method, output by output
spearman, kendall   rank correlation with occlusion
randomized          Adebayo et al. 2018: Spearman's correlation with the attribution of a model with random weights; an
                    attribution that hardly changes does not show what the model has learned
alignment           whether the top token belongs to a word that the gold alignment links to the output
antecedent          whether, of the nouns that an "it" may refer to, the top one is its antecedent
completeness        of integrated gradients: by how much their sum misses f(x) − f(x₀), the error of the quadrature
box                 whether the top patch lies in a bounding box of what the output names
permutation effect  Jain & Wallace 2019: the total variation distance by which permuting the shown attention weights (of one
                    layer, and one head where one is chosen) changes the output distribution; a measure of the model

Is it class-discriminative? Rudin (2019, fig. 2) shows saliency maps of one image for "Siberian husky" and "transverse flute":
they look alike, and so explain neither. The measures of two outputs are ours:

map distance              1 − Spearman's correlation of the two maps: 0 the same map, 1 unrelated, 2 opposite
map distance randomized   the same for a model with random weights; maps that differ as much there differ for no learned reason
margin own                how much of the margin of the one output over the other (the difference of their log-probabilities, or
                          similarities) is lost when the top features of its own map are masked; mean over their number
margin other              the same with the top features of the other's map
selectivity               the first minus the second: above 0, each map marks what supports its own output rather than the other;
                          0 where the maps are equal
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.edit import edit
from regard.explain.attention_graph import attention_graph
from regard.explain.methods import attribute
from regard.explain.target import AttributionTarget
from regard.rng import hash_uniform
from regard.scoring.correlation import average_ranks, pearson
from regard.scoring.score import SAMPLES, SEED, Score, bootstrap_score, make_signature

TOP_PERCENTS = (1, 5, 10, 20, 50)
"""Percent of the features."""
MAX_COUNT = 5
"""The most features masked of a short text, in which percentages coincide: 1, 2, 3, 4, 5 of them, at most half."""
RANDOM_ORDERS = 10
"""Random rankings, and permutations."""
RANDOM_BASELINE = "random"
"""The baseline that every method has to beat: features in random order."""
MEASURES = (
    "comprehensiveness",
    "sufficiency",
    "advantage",
    "spearman",
    "kendall",
    "randomized",
    "alignment",
    "antecedent",
    "box",
    "map distance",
    "map distance randomized",
    "selectivity",
)


@dataclass(frozen=True)
class GroundTruth:
    """The features that are known to matter, among some candidates."""

    correct: frozenset[int]
    candidates: tuple[int, ...]

    def top_is_correct(self, values: Tensor) -> float:
        return float(max(self.candidates, key=lambda feature: float(values[feature])) in self.correct)

    @property
    def chance(self) -> float:
        """The accuracy of a random choice."""
        return len(self.correct) / len(self.candidates)


def erasure_steps(features: int) -> dict[str, int]:
    """Return how many of the top features are masked, by name: percentages; counts where percentages would coincide."""
    percents = {f"{percent}%": -(-features * percent // 100) for percent in TOP_PERCENTS}
    if len(set(percents.values())) == len(percents):
        return percents
    return {str(count): count for count in range(1, min(MAX_COUNT, -(-features // 2)) + 1)}


def erasure(target: AttributionTarget, values: Sequence[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Return what the output's score loses without the top features of each ranking (M, K), and with them alone (M, K)."""
    counts = erasure_steps(len(target.positions)).values()
    top = torch.stack([top_features(ranking, count) for ranking in values for count in counts])  # (M · K, N)
    scores = distinct_scores(target, torch.cat([torch.zeros_like(top[:1]), top, ~top]))
    without, alone = (scores[0] - scores[1:]).numpy().reshape(2, len(values), len(counts))
    return without, alone


def distinct_scores(target: AttributionTarget, masked: Tensor) -> Tensor:
    """Return the score of the output with features masked (R, N), equal rows computed once: (R,)."""
    distinct, index = masked.unique(dim=0, return_inverse=True)
    return target.masked_scores(distinct)[index]


def top_features(values: Tensor, count: int) -> Tensor:
    """Return the mask (N,) of the top features; of equal ones the earlier."""
    chosen = torch.zeros(len(values), dtype=torch.bool)
    chosen[values.argsort(descending=True, stable=True)[:count]] = True
    return chosen


def random_rankings(features: int, seed: int) -> list[Tensor]:
    return [torch.from_numpy(hash_uniform(seed, order, np.arange(features))) for order in range(RANDOM_ORDERS)]


def spearman(one: Tensor, other: Tensor) -> float:
    """Return the rank correlation, -1 to 1; NaN for fewer than three features."""
    return pearson(average_ranks(one.numpy()), average_ranks(other.numpy())) / 100 if len(one) > 2 else float("nan")


def kendall(one: Tensor, other: Tensor) -> float:
    """Return τ_b (Kendall 1945): concordant minus discordant pairs, corrected for ties; NaN for fewer than three features."""
    if len(one) < 3:
        return float("nan")
    a, b = (torch.sign(x[:, None] - x[None]) for x in (one, other))
    scale = float((a.abs().sum() * b.abs().sum()).sqrt())
    return float((a * b).sum()) / scale if scale else 0.0


def permute_weights(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Permute the weights of each row among its visible keys; masked keys keep weight 0."""
    masked = weights <= 0
    noise = torch.rand(weights.shape, generator=generator).to(weights.device)
    shuffled, in_order = (noise + 2 * masked).argsort(-1), masked.to(torch.uint8).argsort(stable=True)
    return torch.zeros_like(weights).scatter(-1, in_order, weights.gather(-1, shuffled))


@torch.no_grad()
def permutation_effect(target: AttributionTarget, seed: int = SEED) -> float:
    """Return the mean change of the output distribution when the shown attention weights are permuted."""
    generator = torch.Generator().manual_seed(seed)
    before, graph = target.scores(target.input), attention_graph(target)
    shown, calls = graph.shown(target), itertools.count()
    shared = sum(stage.name == shown.name for stage in graph.stages)  # by so many layers
    shown_call = graph.call_from_the_end(shown) + shared

    def permute_shown(name: str, weights: Tensor) -> Tensor:
        if shared > 1 and next(calls) != shown_call:
            return weights
        permuted = permute_weights(weights, generator)
        if target.head is None:
            return permuted
        of_head = torch.arange(weights.size(1), device=weights.device)[:, None, None] == target.head - 1
        return torch.where(of_head, permuted, weights)

    with edit(target.model, permute_shown, kinds=rf"^{re.escape(shown.name)}$"):
        after = target.scores(target.mask(torch.zeros(RANDOM_ORDERS, len(target.positions), dtype=torch.bool)))
    return target.output_change(before, after)


def measure_faithfulness(
    target: AttributionTarget,
    values: Mapping[str, Tensor],
    *,
    randomized: nn.Module | None = None,
    truth: Mapping[str, GroundTruth] | None = None,
    seed: int = SEED,
) -> dict[str, dict[str, float]]:
    """Return every measure of every attribution of one output, and of the random baseline.

    `randomized` is the model with random weights, `truth` the features known to matter, by measure."""
    truth = truth or {}
    occluded = attribute(target, ["occlusion"])[0]["occlusion"] if "occlusion" not in values else values["occlusion"]
    control = {} if randomized is None else attribute(replace(target, model=randomized), tuple(values))[0]
    without, alone = erasure(target, [*values.values(), *random_rankings(len(target.positions), seed)])
    random_without, random_alone = without[len(values) :], alone[len(values) :]
    steps, found = list(erasure_steps(len(target.positions))), {}
    for (name, numbers), lost, kept in zip(values.items(), without, alone):
        above, below = lost.mean() - random_without.mean(), random_alone.mean() - kept.mean()
        found[name] = erasure_measures(lost, kept, steps)
        found[name] |= {"above random": above, "below random": below, "advantage": above + below}
        if name != "occlusion":
            found[name] |= {"spearman": spearman(numbers, occluded), "kendall": kendall(numbers, occluded)}
        if name in control:
            found[name]["randomized"] = spearman(numbers, control[name])
        found[name] |= {measure: known.top_is_correct(numbers) for measure, known in truth.items()}
    if "integrated-gradients" in found:
        found["integrated-gradients"] |= completeness(target, values["integrated-gradients"])
    found[RANDOM_BASELINE] = erasure_measures(random_without.mean(0), random_alone.mean(0), steps)
    found[RANDOM_BASELINE] |= {measure: known.chance for measure, known in truth.items()}
    return found


def erasure_measures(lost: np.ndarray, kept: np.ndarray, steps: Sequence[str]) -> dict[str, float]:
    """Return comprehensiveness and sufficiency from losses (K,): their means over the steps, and each step."""
    return {
        "comprehensiveness": float(lost.mean()),
        "sufficiency": float(kept.mean()),
        **{f"comprehensiveness {step}": float(x) for step, x in zip(steps, lost)},
        **{f"sufficiency {step}": float(x) for step, x in zip(steps, kept)},
    }


def completeness(target: AttributionTarget, values: Tensor) -> dict[str, float]:
    """Return f(x) − f(x₀), to which integrated gradients should add up (Sundararajan et al. 2017, prop. 1), and by how much they
    miss it."""
    whole, masked = target.masked_scores(torch.eye(2, dtype=torch.bool)[:, 1:].repeat(1, len(target.positions))).tolist()
    return {"score above baseline": whole - masked, "completeness residual": abs(float(values.sum()) - (whole - masked))}


def step_names(measures: Iterable[str]) -> list[str]:
    """Return the steps of erasure among the names of measures: percentages, or counts."""
    names = (name.removeprefix("comprehensiveness ") for name in measures if name.startswith("comprehensiveness "))
    return sorted(names, key=lambda name: int(name.removesuffix("%")))


def summarise(measured: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, Score]]:
    """Return the mean of every measure of every method over outputs, with its interval."""
    methods = list(dict.fromkeys(name for output in measured for name in output))
    found: dict[str, dict[str, Score]] = {}
    for method in methods:
        rows = [output[method] for output in measured if method in output]
        names = dict.fromkeys(name for row in rows for name in row)
        scores = {name: mean_score(name, [row.get(name, float("nan")) for row in rows]) for name in names}
        found[method] = {name: score for name, score in scores.items() if score is not None}
    ranked = [method for method in methods if "advantage" in found[method]]
    best = max(ranked, key=lambda method: found[method]["advantage"].score, default="")
    for method in ranked:
        behind = [row[best]["advantage"] - row[method]["advantage"] for row in measured if {best, method} <= row.keys()]
        score = mean_score("behind best", behind)
        if method != best and score is not None:
            found[method]["behind best"] = score
    return found


def mean_score(name: str, values: Sequence[float], samples: int = SAMPLES) -> Score | None:
    """Return the mean over the finite values with its interval; None if there are none."""
    known = np.array([value for value in values if np.isfinite(value)])
    if not len(known):
        return None
    return bootstrap_score(
        name,
        np.stack([known, np.ones_like(known)], axis=1),
        lambda total: float(total[0] / total[1]),
        make_signature(name.replace(" ", "-"), bs=samples, seed=SEED, n=len(known)),
        samples=samples,
    )


# is an attribution class-discriminative?


def margin_lost(target: AttributionTarget, other: AttributionTarget, values: list[Tensor]) -> list[float]:
    """Return how much of the target's margin over the other is lost without the top features of each ranking, mean over steps."""
    counts = erasure_steps(len(target.positions)).values()
    masked = torch.stack([top_features(ranking, count) for ranking in values for count in counts])  # (M · K, N)
    masked = torch.cat([torch.zeros_like(masked[:1]), masked])
    margin = distinct_scores(target, masked) - distinct_scores(other, masked)
    return (margin[0] - margin[1:]).view(len(values), len(counts)).mean(1).tolist()


def class_discrimination(
    target: AttributionTarget,
    other: AttributionTarget,
    values: Mapping[str, Tensor],
    others: Mapping[str, Tensor],
    *,
    randomized: nn.Module | None = None,
    seed: int = SEED,
) -> dict[str, dict[str, float]]:
    """Return the measures of every method that attributes both the target (`values`) and another one (`others`)."""
    names = [name for name in values if name in others]
    random = random_rankings(len(target.positions), seed)
    lost = margin_lost(target, other, [*(values[name] for name in names), *(others[name] for name in names), *random])
    control = [] if randomized is None else [attribute(replace(one, model=randomized), names)[0] for one in (target, other)]
    found = {}
    for number, name in enumerate(names):
        own, less = lost[number], lost[len(names) + number]
        found[name] = {
            "map distance": 1 - spearman(values[name], others[name]),
            "margin own": own,
            "margin other": less,
            "selectivity": own - less,
        }
        if control and name in control[0] and name in control[1]:
            found[name]["map distance randomized"] = 1 - spearman(control[0][name], control[1][name])
    return {**found, RANDOM_BASELINE: {"margin own": sum(lost[2 * len(names) :]) / len(random)}}
