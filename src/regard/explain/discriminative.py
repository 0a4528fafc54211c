"""Does an explanation tell two answers apart? Rudin (2019, fig. 2) shows the saliency maps of one picture for "Siberian husky"
and for "transverse flute": they look alike, and so explain neither. The figures are ours.

    apart           1 − Spearman's correlation of the two maps: 0 the same map for both, 1 unrelated, 2 each the other's opposite
    apart fresh     the same of a model with random weights; maps that differ as much there differ for no reason that was learned
    lead own        how much of the lead that the one answer has over the other (the difference of their log-probabilities, or of
                    likenesses) is lost without the first k% of the one's own map; the mean over k
    lead other      the same without the first k% of the other's map
    selective       the first less the second: above 0, each map names what speaks for its own answer rather than for the other;
                    0 where the maps are the same
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.explain.faithfulness import RANDOM_BASELINE, TOP_PERCENTS, random_rankings, spearman, top_features
from regard.explain.methods import attribute
from regard.explain.target import AttributionTarget
from regard.scoring.score import SEED


def margin_lost(target: AttributionTarget, other: AttributionTarget, values: list[Tensor]) -> list[float]:
    """How much of the one answer's lead over the other is lost without the first of each ranking, the mean over k%."""
    hidden = torch.stack([top_features(ranking, share) for ranking in values for share in TOP_PERCENTS])  # (M · K, N)
    hidden = torch.cat([torch.zeros_like(hidden[:1]), hidden])
    lead = target.without(hidden) - other.without(hidden)
    return (lead[0] - lead[1:]).view(len(values), len(TOP_PERCENTS)).mean(1).tolist()


def class_discrimination(
    target: AttributionTarget,
    answer: int,
    values: Mapping[str, Tensor],
    others: Mapping[str, Tensor],
    *,
    fresh: nn.Module | None = None,
    seed: int = SEED,
) -> dict[str, dict[str, float]]:
    """Every figure of every method that explains both an answer (`values`) and another one (`others`)."""
    other = replace(target, answer=answer)
    names = [name for name in values if name in others]
    lots = random_rankings(len(target.places), seed)
    lost = margin_lost(target, other, [*(values[name] for name in names), *(others[name] for name in names), *lots])
    untaught = [] if fresh is None else [attribute(replace(one, model=fresh), names)[0] for one in (target, other)]
    found = {}
    for number, name in enumerate(names):
        own, less = lost[number], lost[len(names) + number]
        found[name] = {
            "apart": 1 - spearman(values[name], others[name]),
            "lead own": own,
            "lead other": less,
            "selective": own - less,
        }
        if untaught and name in untaught[0] and name in untaught[1]:
            found[name]["apart fresh"] = 1 - spearman(untaught[0][name], untaught[1][name])
    return {**found, RANDOM_BASELINE: {"lead own": sum(lost[2 * len(names) :]) / len(lots)}}
