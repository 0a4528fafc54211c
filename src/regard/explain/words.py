"""What the figures mean, in words."""

from collections.abc import Mapping

from regard.explain.faithful import LOT
from regard.scoring.score import Score

ALIKE, UNLIKE = 0.5, 0.2
MOVES = 0.1


def verdict(method: str, scores: Mapping[str, Score]) -> str:
    """One sentence on one explanation, measured over some sentences."""
    above = scores.get("above lot")
    said = []
    if above is not None:
        if above.low > 0:
            said.append("the tokens it names matter to the answer more than tokens drawn by lot")
        elif above.high < 0:
            said.append("the tokens it names matter to the answer less than tokens drawn by lot")
        else:
            said.append("the tokens it names cannot be told from tokens drawn by lot")
    agrees = scores.get("spearman")
    if agrees is not None:
        said.append("its order is " + ("nearly that of occlusion" if agrees.low > ALIKE else "not that of occlusion"
                                       if agrees.high < UNLIKE else "a little like that of occlusion"))
    fresh = scores.get("fresh")
    if fresh is not None and fresh.score > ALIKE:
        said.append("a model with random weights gives nearly the same, so that it does not show what this one has learned")
    for measure, what in (("alignment", "the token it puts first is of an aligned word"),
                          ("antecedent", "of the nouns that an \"it\" might mean it puts the right one first")):
        if measure in scores:
            said.append(f"{what} in {scores[measure].score:.0%} of the sentences")
    return f"{method}: {'; '.join(said)}."


def on_permuted(score: Score) -> str:
    """One sentence on how much depends on the weights that are shown."""
    if score.high < MOVES:
        return (f"Permuting the weights that are shown moves the answers by {score.score:.2f} of their probability: the model "
                "says nearly the same whatever they are, so that they explain little.")
    return (f"Permuting the weights that are shown moves the answers by {score.score:.2f} of their probability: what the model "
            "says depends on them.")


def on_one(method: str, measured: Mapping[str, Mapping[str, float]]) -> str:
    """One sentence on one explanation of one sentence."""
    own, lot = measured[method], measured[LOT]
    more = own["comprehensiveness"] - lot["comprehensiveness"]
    compared = "more than" if more > 0.01 else "less than" if more < -0.01 else "as much as"
    return (f"{method}: without the tokens it names the answer loses {own['comprehensiveness']:.2f} of its probability, "
            f"{compared} without tokens drawn by lot ({lot['comprehensiveness']:.2f}).")
