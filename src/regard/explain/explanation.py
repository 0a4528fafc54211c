"""An explained output, and the faithfulness of the methods over a set: numbers, tables and sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from regard.explain.faithfulness import MEASURES, RANDOM_BASELINE, step_names
from regard.explain.selection import ExplainedImage
from regard.explain.target import TEXT_WORDING, Wording
from regard.explain.verdict import (
    Verdict,
    format_interval,
    format_probability,
    permutation_verdict,
    set_headline,
    set_verdict,
    single_verdict,
)
from regard.scoring import Score

MAX_PRINTED_PATCHES = 5
Curves = dict[str, dict[str, list[dict[str, Any]]]]
"""By measure and by method: points over the number or percentage of the top features."""


class ReportTable(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class AlternativeOutput:
    """Another output that the explained one is compared with (--against)."""

    output: str
    attributions: dict[str, list[float]]
    score: float


@dataclass(frozen=True)
class Explanation:
    """One output, and optionally another one beside it: attributions of each feature by each method, and their measures.

    `verdict` says which method to believe."""

    output: str
    features: list[str]
    attributions: dict[str, list[float]]
    unavailable: dict[str, str]
    """Why methods do not apply."""
    faithfulness: dict[str, dict[str, float]]
    permutation_effect: float | None
    wording: Wording
    score: float
    """The probability or similarity of the output."""
    image: ExplainedImage | None = None
    against: AlternativeOutput | None = None
    shown: str = ""
    """Which attention weights `attention` has and the permutation permutes: layer and head."""

    def __repr__(self) -> str:
        return f"{self.output}, {self.named_score}: {', '.join(self.attributions)}"

    @property
    def named_score(self) -> str:
        """The score of the output with its name."""
        shown = f"{self.score:z.3f}" if self.wording.score == "similarity" else format_probability(self.score)
        return f"{self.wording.score} {shown}"

    @cached_property
    def verdict(self) -> Verdict:
        """Which method to believe for this output, and how each one does."""
        return single_verdict(self.features, self.attributions, self.faithfulness, self.wording)

    def _repr_html_(self) -> str:
        """Return what a notebook displays."""
        from regard.show.explanation import explanation_html

        return explanation_html(self)

    def summary(self) -> list[str]:
        lines = [self.verdict.headline, *self.verdict.methods.values()]
        if self.permutation_effect is not None:
            changed = f"{self.permutation_effect:.2f} of their {self.wording.score}"
            lines.append(f"Permuting the attention weights of {self.shown} changes the outputs by {changed}.")
        if self.image is not None:
            lines.append("A masked patch is replaced by the mean colour of the image.")
        one = self.wording.examples.removesuffix("s")
        return [*lines, f"One {one} says little about a method: regard explain RUN --data SET measures it over many."]

    def to_json(self) -> dict[str, Any]:
        other = self.against
        return {
            "target": self.output,
            self.wording.features: self.features,
            **({} if self.image is None else {"grid": list(self.image.grid)}),
            "score": round(self.score, 6),
            "attributions": round_values(self.attributions),
            **(
                {}
                if other is None
                else {
                    "alternative": other.output,
                    "alternative_score": other.score,
                    "alternative_attributions": round_values(other.attributions),
                }
            ),
            "unavailable": self.unavailable,
            "faithfulness": round_values(self.faithfulness),
            "permutation_effect": self.permutation_effect,
            "attention": self.shown,
            "best": self.verdict.best,
            "summary": self.summary(),
        }

    def heading(self, name: str) -> tuple[str, str]:
        """Return a title and a subtitle; `name` is that of the run."""
        return f"Why {self.output}?", f"{self.named_score}; explained for {name} by {len(self.attributions)} methods"

    def curves(self) -> Curves:
        return curve_points(self.faithfulness, step_names(self.faithfulness[RANDOM_BASELINE]), self.wording.features)

    def tables(self) -> list[ReportTable]:
        explained = [(f"{self.output} ({self.named_score})", self.attributions)]
        if self.against is not None:
            other = self.against
            explained.append((f"{other.output} ({self.wording.score} {other.score:.3f})", other.attributions))
        present = [m for m in MEASURES if any(m in row for row in self.faithfulness.values())]
        rows = [[name, *(f"{row[m]:z.3f}" if m in row else "" for m in present)] for name, row in self.faithfulness.items()]
        make = self._token_table if self.image is None else self._patch_table
        title = f"faithfulness, losses in {self.wording.unit}"
        return [*(make(title, values) for title, values in explained), ReportTable(title, ["", *present], rows)]

    def _token_table(self, title: str, values: dict[str, list[float]]) -> ReportTable:
        rows = [[token, *(f"{numbers[i]:z.3f}" for numbers in values.values())] for i, token in enumerate(self.features)]
        return ReportTable(f"why {title}", ["token", *values], rows)

    def _patch_table(self, title: str, values: dict[str, list[float]]) -> ReportTable:
        """Return the top patches; a figure or JSON has all of them."""
        best = [
            sorted(zip(numbers, self.features), key=lambda pair: -pair[0])[:MAX_PRINTED_PATCHES] for numbers in values.values()
        ]
        rows = [[str(rank + 1), *(f"{patch}: {number:z.3f}" for number, patch in row)] for rank, row in enumerate(zip(*best))]
        return ReportTable(f"why {title}: the top patches, as row,column: attribution", ["", *values], rows)


@dataclass(frozen=True)
class FaithfulnessReport:
    """The measures of each method over a set of outputs, with intervals."""

    name: str
    number: int
    scores: dict[str, dict[str, Score]]
    permutation_effect: Score | None
    unavailable: dict[str, str]
    wording: Wording = TEXT_WORDING
    steps: tuple[str, ...] = ()
    """The numbers or percentages of the top features that are masked: those that most of the outputs have."""
    short: int = 0
    """How many outputs have so few features that these are counted: others have percentages."""

    def summary(self) -> list[str]:
        lines = [set_verdict(name, scores, self.wording) for name, scores in self.scores.items() if name != RANDOM_BASELINE]
        effect = self.permutation_effect
        headline = set_headline(self.scores, self.wording)
        return [headline, *lines, *([] if effect is None else [permutation_verdict(effect, self.wording)])]

    def to_json(self) -> dict[str, Any]:
        return {
            "set": self.name,
            "number": self.number,
            "unavailable": self.unavailable,
            "scores": {
                method: {name: score.to_json() for name, score in scores.items()} for method, scores in self.scores.items()
            },
            "permutation_effect": None if self.permutation_effect is None else self.permutation_effect.to_json(),
            "summary": self.summary(),
        }

    def heading(self, name: str) -> tuple[str, str]:
        """Return a title and a subtitle; `name` is that of the run."""
        return (
            f"Are explanations of {name} faithful?",
            f"{self.number} outputs of {self.name}; brackets and bands are 95% intervals over them.",
        )

    def curves(self) -> Curves:
        return curve_points(self.scores, self.steps, self.wording.features)

    def tables(self) -> list[ReportTable]:
        present = [m for m in MEASURES if any(m in scores for scores in self.scores.values())]

        def table(title: str, header: Sequence[str], names: Sequence[str]) -> ReportTable:
            rows = [
                [method, *(format_interval(scores[name]) if name in scores else "" for name in names)]
                for method, scores in self.scores.items()
            ]
            return ReportTable(title, ["", *header], rows)

        unit, features = self.wording.unit, self.wording.features
        number = self.number - self.short if self.steps[0].endswith("%") else self.short
        of = "" if number == self.number else f", {number} of the {self.number} outputs"
        return [
            table(f"{self.name}: {self.number} outputs, losses in {unit}", present, present),
            *(
                table(f"{unit} lost {how}{of}", self.steps, [f"{measure} {step}" for step in self.steps])
                for measure, how in (
                    ("comprehensiveness", f"without the top {features}"),
                    ("sufficiency", f"with the top {features} alone"),
                )
            ),
        ]


def round_values(found: Any) -> Any:
    """Round numbers in nested dicts and lists to 6 digits; NaN becomes None."""
    if isinstance(found, dict):
        return {name: round_values(value) for name, value in found.items()}
    if isinstance(found, list):
        return [round_values(value) for value in found]
    number = float(found.item() if isinstance(found, Tensor) else found)
    return round(number, 6) if number == number else None


def curve_points(measured: Mapping[str, Mapping[str, Any]], steps: Sequence[str], features: str) -> Curves:
    """Return comprehensiveness and sufficiency of every method over the steps, with intervals where there are any."""

    def point(step: str, found: float | Score) -> dict[str, Any]:
        low, score, high = (found.low, found.score, found.high) if isinstance(found, Score) else (found, found, found)
        return {"top": step, "score": score, "low": low, "high": high}

    return {
        title: {
            method: [point(step, scores[f"{key} {step}"]) for step in steps if f"{key} {step}" in scores]
            for method, scores in measured.items()
        }
        for title, key in (
            (f"comprehensiveness: without the top {features}", "comprehensiveness"),
            (f"sufficiency: with the top {features} alone", "sufficiency"),
        )
    }
