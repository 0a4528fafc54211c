"""Is an explanation true of the model? Measures of one sentence, and their means over many with intervals.

comprehensiveness   DeYoung et al. 2020: how much less probable the answer is without the k% of pieces that are said to matter
                    most; the mean over k. Hidden pieces are replaced by the stand-in, not taken out.
sufficiency         the same with those pieces alone: the nearer to 0, the better
spearman, kendall   how the ranking goes together with that of occlusion
fresh               Adebayo et al. 2018: Spearman's correlation with the explanation of a model with random weights; an
                    explanation that hardly changes does not show what the model has learned
alignment           whether the token that is said to matter most is of a word that a world's gold alignment names
antecedent          whether, of the nouns that an "it" might mean, that is said to matter most which it does
box                 whether the patch that is said to matter most is in a box of what a world of pictures knows to be named
apart, selective    of two answers' explanations: see apart.py
permuted            Jain & Wallace 2019: how far the answers' distribution moves (total variation) when the weights that are
                    shown are permuted; a measure of the model
"""

import re
from collections.abc import Mapping, Sequence
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
"""Percent of the pieces."""
RANDOM_ORDERS = 5
"""Orders drawn by lot, and permutations."""
RANDOM_BASELINE = "by lot"
"""The explanation that every other has to beat: an order drawn by lot."""
MEASURES = (
    "comprehensiveness",
    "sufficiency",
    "spearman",
    "kendall",
    "fresh",
    "alignment",
    "antecedent",
    "box",
    "apart",
    "apart fresh",
    "selective",
)


@dataclass(frozen=True)
class GroundTruth:
    """The pieces that are known to matter, among some."""

    right: frozenset[int]
    among: tuple[int, ...]

    def agrees(self, values: Tensor) -> float:
        return float(max(self.among, key=lambda piece: float(values[piece])) in self.right)

    @property
    def by_lot(self) -> float:
        return len(self.right) / len(self.among)


def erasure(target: AttributionTarget, values: Sequence[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """How much of what it counts by the answer loses without the first k% of each ranking (M, K), and with them alone (M, K)."""
    chosen = torch.stack([top_features(ranking, share) for ranking in values for share in TOP_PERCENTS])  # (M · K, N)
    nothing = torch.zeros(1, chosen.size(1), dtype=torch.bool)
    p = target.amounts(target.without(torch.cat([nothing, chosen, ~chosen]))).numpy()
    without, alone = (p[0] - p[1:]).reshape(2, len(values), len(TOP_PERCENTS))
    return without, alone


def top_features(values: Tensor, percent: int) -> Tensor:
    """Which pieces are the first k% by their numbers, one at least; of equals the earlier."""
    number = max(1, -(-len(values) * percent // 100))
    chosen = torch.zeros(len(values), dtype=torch.bool)
    chosen[values.argsort(descending=True, stable=True)[:number]] = True
    return chosen


def random_rankings(pieces: int, seed: int) -> list[Tensor]:
    return [torch.from_numpy(hash_uniform(seed, order, np.arange(pieces))) for order in range(RANDOM_ORDERS)]


def spearman(one: Tensor, other: Tensor) -> float:
    """-1 to 1; not a number where there are too few pieces to have an order."""
    return pearson(average_ranks(one.numpy()), average_ranks(other.numpy())) / 100 if len(one) > 2 else float("nan")


def kendall(one: Tensor, other: Tensor) -> float:
    """τ_b (Kendall 1945): pairs in the same order less pairs in the other, equals left out."""
    if len(one) < 3:
        return float("nan")
    a, b = (torch.sign(x[:, None] - x[None]) for x in (one, other))
    scale = float((a.abs().sum() * b.abs().sum()).sqrt())
    return float((a * b).sum()) / scale if scale else 0.0


def permute_weights(weights: Tensor, generator: torch.Generator) -> Tensor:
    """The weights of each row at other keys, drawn by lot; a key that may not be looked at keeps its nothing."""
    unseen = weights <= 0
    lot = torch.rand(weights.shape, generator=generator).to(weights.device)
    drawn, in_order = (lot + 2 * unseen).argsort(-1), unseen.to(torch.uint8).argsort(stable=True)
    return torch.zeros_like(weights).scatter(-1, in_order, weights.gather(-1, drawn))


@torch.no_grad()
def permuted(target: AttributionTarget, seed: int = SEED) -> float:
    """How far what is said moves, on the average, when the weights that are shown are permuted."""
    generator = torch.Generator().manual_seed(seed)
    before = target.scores(target.read)
    with edit(
        target.model,
        lambda name, weights: permute_weights(weights, generator),
        kinds=rf"^{re.escape(attention_graph(target).last.name)}$",
    ):
        after = target.scores(target.hide(torch.zeros(RANDOM_ORDERS, len(target.places), dtype=torch.bool)))
    return target.moved(before, after)


def measure_faithfulness(
    target: AttributionTarget,
    values: Mapping[str, Tensor],
    *,
    fresh: nn.Module | None = None,
    gold: Mapping[str, GroundTruth] | None = None,
    seed: int = SEED,
) -> dict[str, dict[str, float]]:
    """Every measure of every explanation of one answer, those by lot among them; `fresh` has random weights, `gold` are
    the pieces that are known to matter, by measure."""
    lots = random_rankings(len(target.places), seed)
    occluded = attribute(target, ["occlusion"])[0]["occlusion"] if "occlusion" not in values else values["occlusion"]
    others = {} if fresh is None else attribute(replace(target, model=fresh), tuple(values))[0]
    without, alone = erasure(target, [*values.values(), *lots])
    found = {}
    for (name, numbers), lost, kept in zip(values.items(), without, alone):
        found[name] = {
            "comprehensiveness": lost.mean(),
            "sufficiency": kept.mean(),
            **{f"without {share}%": float(x) for share, x in zip(TOP_PERCENTS, lost)},
            **{f"only {share}%": float(x) for share, x in zip(TOP_PERCENTS, kept)},
            "above lot": lost.mean() - without[len(values) :].mean(),
        }
        if name != "occlusion":
            found[name] |= {"spearman": spearman(numbers, occluded), "kendall": kendall(numbers, occluded)}
        if name in others:
            found[name]["fresh"] = spearman(numbers, others[name])
        found[name] |= {measure: truth.agrees(numbers) for measure, truth in (gold or {}).items()}
    lost, kept = without[len(values) :].mean(0), alone[len(values) :].mean(0)
    found[RANDOM_BASELINE] = {
        "comprehensiveness": lost.mean(),
        "sufficiency": kept.mean(),
        **{f"without {share}%": float(x) for share, x in zip(TOP_PERCENTS, lost)},
        **{f"only {share}%": float(x) for share, x in zip(TOP_PERCENTS, kept)},
    }
    found[RANDOM_BASELINE] |= {measure: truth.by_lot for measure, truth in (gold or {}).items()}
    return found


def summarise(measured: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, Score]]:
    """The mean of every measure of every explanation over sentences, with its interval."""
    methods = list(dict.fromkeys(name for sentence in measured for name in sentence))
    found: dict[str, dict[str, Score]] = {}
    for method in methods:
        rows = [sentence[method] for sentence in measured if method in sentence]
        names = dict.fromkeys(name for row in rows for name in row)
        scores = {name: mean_score(name, [row.get(name, float("nan")) for row in rows]) for name in names}
        found[method] = {name: score for name, score in scores.items() if score is not None}
    return found


def mean_score(name: str, values: Sequence[float], samples: int = SAMPLES) -> Score | None:
    """The mean over those sentences in which there is something to measure."""
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
