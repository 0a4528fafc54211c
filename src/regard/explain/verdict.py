"""What the figures mean, in words."""

from collections.abc import Mapping
from dataclasses import dataclass

from regard.explain.faithfulness import LOT
from regard.explain.target import Target
from regard.scoring.score import Score

ALIKE, UNLIKE = 0.5, 0.2
MOVES = 0.1
LITTLE = 0.01
SAME = 0.1
"""Maps that are no further apart are the same to the eye."""


@dataclass(frozen=True)
class Words:
    """How the pieces that are explained are called, and what an answer counts by."""

    pieces: str = "tokens"
    counts: str = "probability"

    @staticmethod
    def of(target: Target) -> "Words":
        return Words(target.pieces, target.counts)

    @property
    def each(self) -> str:
        """The texts or pictures that answers are given about."""
        return "sentences" if self.pieces == "tokens" else "pictures"


TEXTS = Words()


def verdict(method: str, scores: Mapping[str, Score], words: Words = TEXTS) -> str:
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
                if agrees.low > ALIKE
                else "not that of occlusion"
                if agrees.high < UNLIKE
                else "a little like that of occlusion"
            )
        )
    fresh = scores.get("fresh")
    if fresh is not None and fresh.score > ALIKE:
        said.append("a model with random weights gives nearly the same, so that it does not show what this one has learned")
    for measure, what in (
        ("alignment", "the token it puts first is of an aligned word"),
        ("antecedent", 'of the nouns that an "it" might mean it puts the right one first'),
        ("box", "the patch it puts first is in a box of what is named"),
    ):
        if measure in scores:
            said.append(f"{what} in {scores[measure].score:.0%} of the {words.each}")
    if "apart" in scores:
        said.append(told_apart(scores["apart"].score, fresh_of(scores), scores["selective"].low, scores["selective"].high))
    return f"{method}: {'; '.join(said)}."


def fresh_of(scores: Mapping[str, Score]) -> float | None:
    return scores["apart fresh"].score if "apart fresh" in scores else None


def told_apart(apart: float, fresh: float | None, low: float, high: float) -> str:
    """Half a sentence on two maps, for an answer and for another one; `low` to `high` is how selective they are."""
    if apart < SAME:
        return "it gives both answers nearly the same map, so that it is no reason for the one rather than the other"
    chance = "" if fresh is None or fresh < apart else " (and no more than with random weights)"
    if low > 0:
        return f"its two maps differ{chance}, and each names what speaks for its own answer"
    return f"its two maps differ{chance}, but " + (
        "each names rather what speaks for the other answer"
        if high < 0
        else "not so that each names what speaks for its own answer"
    )


def on_permuted(score: Score, words: Words = TEXTS) -> str:
    """One sentence on how much depends on the weights that are shown."""
    moves = f"Permuting the weights that are shown moves the answers by {score.score:.2f} of their {words.counts}: "
    if score.high < MOVES:
        return moves + "the model says nearly the same whatever they are, so that they explain little."
    return moves + "what the model says depends on them."


def on_one(method: str, measured: Mapping[str, Mapping[str, float]], words: Words = TEXTS) -> str:
    """One sentence on one explanation of one answer."""
    own, lot = measured[method], measured[LOT]
    more = own["comprehensiveness"] - lot["comprehensiveness"]
    compared = "more than" if more > LITTLE else "less than" if more < -LITTLE else "as much as"
    pieces, loss = words.pieces, own["comprehensiveness"]
    said = (
        f"{method}: without the {pieces} it names the answer loses {loss:z.2f} of its {words.counts}, {compared} without "
        f"{pieces} drawn by lot ({lot['comprehensiveness']:z.2f})"
    )
    if "apart" in own:
        said += "; " + told_apart(own["apart"], own.get("apart fresh"), own["selective"] - LITTLE, own["selective"] + LITTLE)
    return said + "."
