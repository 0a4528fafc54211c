"""What the figures mean, in words."""

from collections.abc import Mapping
from dataclasses import dataclass

from regard.explain.faithfulness import RANDOM_BASELINE
from regard.explain.target import AttributionTarget
from regard.scoring.score import Score

SIMILAR_ABOVE, DIFFERENT_BELOW = 0.5, 0.2
MIN_PERMUTATION_EFFECT = 0.1
MIN_DIFFERENCE = 0.01
SAME_MAP_BELOW = 0.1
"""Maps that are no further apart are the same to the eye."""


@dataclass(frozen=True)
class Wording:
    """How the pieces that are explained are called, and what an answer counts by."""

    pieces: str = "tokens"
    counts: str = "probability"

    @staticmethod
    def of(target: AttributionTarget) -> "Wording":
        return Wording(target.pieces, target.counts)

    @property
    def each(self) -> str:
        """The texts or pictures that answers are given about."""
        return "sentences" if self.pieces == "tokens" else "pictures"


TEXT_WORDING = Wording()


def set_verdict(method: str, scores: Mapping[str, Score], words: Wording = TEXT_WORDING) -> str:
    """One sentence on one explanation, measured over some sentences or pictures."""
    above, pieces = scores.get("above lot"), words.pieces
    said = []
    if above is not None:
        if above.low > 0:
            said.append(f"the {pieces} it names matter to the answer more than {pieces} drawn by lot")
        elif above.high < 0:
            said.append(f"the {pieces} it names matter to the answer less than {pieces} drawn by lot")
        else:
            said.append(f"the {pieces} it names cannot be told from {pieces} drawn by lot")
    agrees = scores.get("spearman")
    if agrees is not None:
        said.append(
            "its order is "
            + (
                "nearly that of occlusion"
                if agrees.low > SIMILAR_ABOVE
                else "not that of occlusion"
                if agrees.high < DIFFERENT_BELOW
                else "a little like that of occlusion"
            )
        )
    fresh = scores.get("fresh")
    if fresh is not None and fresh.score > SIMILAR_ABOVE:
        said.append("a model with random weights gives nearly the same, so that it does not show what this one has learned")
    for measure, what in (
        ("alignment", "the token it puts first is of an aligned word"),
        ("antecedent", 'of the nouns that an "it" might mean it puts the right one first'),
        ("box", "the patch it puts first is in a box of what is named"),
    ):
        if measure in scores:
            said.append(f"{what} in {scores[measure].score:.0%} of the {words.each}")
    if "apart" in scores:
        said.append(
            discrimination_verdict(
                scores["apart"].score, randomized_distance(scores), scores["selective"].low, scores["selective"].high
            )
        )
    return f"{method}: {'; '.join(said)}."


def randomized_distance(scores: Mapping[str, Score]) -> float | None:
    return scores["apart fresh"].score if "apart fresh" in scores else None


def discrimination_verdict(apart: float, fresh: float | None, low: float, high: float) -> str:
    """Half a sentence on two maps, for an answer and for another one; `low` to `high` is how selective they are."""
    if apart < SAME_MAP_BELOW:
        return "it gives both answers nearly the same map, so that it is no reason for the one rather than the other"
    chance = "" if fresh is None or fresh < apart else " (and no more than with random weights)"
    if low > 0:
        return f"its two maps differ{chance}, and each names what speaks for its own answer"
    return f"its two maps differ{chance}, but " + (
        "each names rather what speaks for the other answer"
        if high < 0
        else "not so that each names what speaks for its own answer"
    )


def permutation_verdict(score: Score, words: Wording = TEXT_WORDING) -> str:
    """One sentence on how much depends on the weights that are shown."""
    moves = f"Permuting the weights that are shown moves the answers by {score.score:.2f} of their {words.counts}: "
    if score.high < MIN_PERMUTATION_EFFECT:
        return moves + "the model says nearly the same whatever they are, so that they explain little."
    return moves + "what the model says depends on them."


def single_verdict(method: str, measured: Mapping[str, Mapping[str, float]], words: Wording = TEXT_WORDING) -> str:
    """One sentence on one explanation of one answer."""
    own, lot = measured[method], measured[RANDOM_BASELINE]
    more = own["comprehensiveness"] - lot["comprehensiveness"]
    compared = "more than" if more > MIN_DIFFERENCE else "less than" if more < -MIN_DIFFERENCE else "as much as"
    pieces, loss = words.pieces, own["comprehensiveness"]
    said = (
        f"{method}: without the {pieces} it names the answer loses {loss:z.2f} of its {words.counts}, {compared} without "
        f"{pieces} drawn by lot ({lot['comprehensiveness']:z.2f})"
    )
    if "apart" in own:
        said += "; " + discrimination_verdict(
            own["apart"], own.get("apart fresh"), own["selective"] - MIN_DIFFERENCE, own["selective"] + MIN_DIFFERENCE
        )
    return said + "."
