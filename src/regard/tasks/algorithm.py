"""A solver: a translator whose target is what an algorithm makes of the source. An answer is right or wrong; BLEU, which counts
common words, says nothing of it."""

from collections.abc import Sequence
from typing import Any

from regard.batches.rows import Rows
from regard.corpus.examples import SentencePairs
from regard.scoring import Score, accuracy, compare_accuracy, grouped_accuracy
from regard.tasks.base import EvaluationResult, Run
from regard.tasks.translate import TranslateRun


class AlgorithmRun(TranslateRun):
    does = "solves"

    def validate(self, examples: SentencePairs, rows: Rows) -> dict[str, float]:
        """The loss, and the share of right answers, decoded greedily, where the recipe asks for it."""
        scores = Run.validate(self, examples, rows)
        if number := self.recipe.train.evaluate_sentences:
            said = self.answers(examples.source[:number], beam=1)
            scores["valid_accuracy"] = accuracy(exact_matches(said, examples.target[:number])).score
        return scores

    def score(self, name: str, examples: SentencePairs) -> EvaluationResult:
        said = self.answers(examples.source)
        return EvaluationResult(
            name, examples, said, {**exact_match_scores(said, examples.target), "perplexity": self.perplexity(examples)}
        )

    def paired(self, runs: dict[str, Any], examples: SentencePairs) -> list[dict[str, Any]]:
        """Is each run different from the first on these sources?"""
        return compare_accuracy(
            {name: exact_matches(run.answers(examples.source), examples.target) for name, run in runs.items()}
        )

    def answers(self, sources: Sequence[str], **settings: Any) -> list[str]:
        return [found.text for found in self.best(sources, **settings)]


def exact_match_scores(said: Sequence[str], meant: Sequence[str]) -> dict[str, Score]:
    """The percentage of answers that are right, and of characters; where one is longer, what it has more counts as wrong."""
    places = [(sum(a == b for a, b in zip(one, other)), max(len(one), len(other))) for one, other in zip(said, meant)]
    return {"exact": accuracy(exact_matches(said, meant), "exact"), "characters": grouped_accuracy(places, "characters")}


def exact_matches(said: Sequence[str], meant: Sequence[str]) -> list[bool]:
    return [one == other for one, other in zip(said, meant, strict=True)]
