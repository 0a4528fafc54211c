"""Attributions of a run's outputs, always together with measures of their faithfulness."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.explain.faithfulness import (
    MEASURES,
    RANDOM_BASELINE,
    TOP_PERCENTS,
    class_discrimination,
    mean_score,
    measure_faithfulness,
    permutation_effect,
    summarise,
)
from regard.explain.methods import METHODS, attribute
from regard.explain.selection import PREDICTED, ExplainedImage, ExplainedOutput, OutputSelection
from regard.explain.target import TEXT_WORDING, AttributionTarget, Wording
from regard.explain.text_outputs import is_foreign, load_examples, select_output, select_outputs
from regard.explain.transformers_targets import explained_model
from regard.explain.verdict import permutation_verdict, set_verdict, single_verdict
from regard.scoring import Score
from regard.scoring.score import SEED
from regard.tasks.base import Run
from regard.tasks.shared.images import ImageInput
from regard.tasks.transformers_models import TransformersRun

RANDOMIZED_SEED = 1
MAX_RANDOMIZED_PARAMETERS = 2_000_000_000
"""A larger model of transformers is not built a second time with random weights: the two may not fit."""
MAX_PRINTED_PATCHES = 5
Curves = dict[str, dict[str, list[dict[str, float]]]]
"""By measure and by method: points over the percentage of features."""


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
    """One output, and optionally another one beside it: attributions of each feature by each method, and their measures."""

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

    def __repr__(self) -> str:
        return f"{self.output}, {self.wording.score} {self.score:.2f}: {', '.join(self.attributions)}"

    def _repr_html_(self) -> str:
        """Return what a notebook displays."""
        from regard.show.explanation import explanation_html

        return explanation_html(self)

    def summary(self) -> list[str]:
        lines = [single_verdict(name, self.faithfulness, self.wording) for name in self.attributions]
        if self.permutation_effect is not None:
            changed = f"{self.permutation_effect:.2f} of their {self.wording.score}"
            lines.append(f"Permuting the shown attention weights changes the outputs by {changed}.")
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
        }

    def heading(self, name: str) -> tuple[str, str]:
        """Return a title and a subtitle; `name` is that of the run."""
        return f"Why {self.output}", f"explained for {name} by {len(self.attributions)} methods"

    def curves(self) -> Curves:
        return curve_points(self.faithfulness, self.wording.features)

    def tables(self) -> list[ReportTable]:
        explained = [(f"{self.output} ({self.wording.score} {self.score:.3f})", self.attributions)]
        if self.against is not None:
            other = self.against
            explained.append((f"{other.output} ({self.wording.score} {other.score:.3f})", other.attributions))
        present = [m for m in MEASURES if any(m in row for row in self.faithfulness.values())]
        rows = [[name, *(f"{row[m]:z.3f}" if m in row else "" for m in present)] for name, row in self.faithfulness.items()]
        make = self._token_table if self.image is None else self._patch_table
        return [*(make(title, values) for title, values in explained), ReportTable("faithfulness", ["", *present], rows)]

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

    def summary(self) -> list[str]:
        lines = [set_verdict(name, scores, self.wording) for name, scores in self.scores.items() if name != RANDOM_BASELINE]
        effect = self.permutation_effect
        return [*lines, *([] if effect is None else [permutation_verdict(effect, self.wording)])]

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
        return curve_points(self.scores, self.wording.features)

    def tables(self) -> list[ReportTable]:
        present = [m for m in MEASURES if any(m in scores for scores in self.scores.values())]

        def table(title: str, header: Sequence[str], names: Sequence[str]) -> ReportTable:
            rows = [
                [method, *(format_interval(scores[name]) if name in scores else "" for name in names)]
                for method, scores in self.scores.items()
            ]
            return ReportTable(title, ["", *header], rows)

        percents = [f"{percent}%" for percent in TOP_PERCENTS]
        score, features = self.wording.score, self.wording.features
        return [
            table(f"{self.name}: {self.number} outputs", present, present),
            table(f"{score} lost without the top {features}", percents, [f"comprehensiveness {percent}" for percent in percents]),
            table(f"{score} lost with the top {features} alone", percents, [f"sufficiency {percent}" for percent in percents]),
        ]


def format_number(number: float) -> str:
    return f"{number:z.2f}"  # z: no minus before 0.00


def format_interval(score: Score) -> str:
    return f"{format_number(score.score)} [{format_number(score.low)}, {format_number(score.high)}]"


def explain_one(run: Run, given: ImageInput, method: str = "all", selection: OutputSelection = PREDICTED) -> Explanation:
    """Explain the run's output for a text or an image, or another output that is selected."""
    methods, randomized = parse_methods(method), randomized_model(run)
    selected = select_output(run, given, selection)
    values, other_values, unavailable, measured, effect = measure_output(selected, methods, randomized)
    against = None
    if selected.against is not None:
        output, description = selected.against
        against = AlternativeOutput(description, to_lists(other_values), output_score(replace(selected.target, output=output)))
    return Explanation(
        selected.description,
        selected.features,
        to_lists(values),
        unavailable,
        measured,
        effect,
        selected.target.wording,
        output_score(selected.target),
        selected.image,
        against,
    )


def explain_set(
    run: Run,
    data: str,
    method: str = "all",
    *,
    number: int = 200,
    selection: OutputSelection = PREDICTED,
    reference: Path | None = None,
    gold: Path | None = None,
    progress: bool = False,
) -> FaithfulnessReport:
    """Measure the methods over a set of the recipe or a file, which may have references and a gold alignment."""
    methods, randomized = parse_methods(method), randomized_model(run)
    rows, effects = [], []
    unavailable: dict[str, str] = {}
    wording = TEXT_WORDING
    examples = load_examples(run, data, reference, gold)
    for index, selected in enumerate(select_outputs(run, examples, number, selection)):
        _, _, reasons, measured, effect = measure_output(selected, methods, randomized, seed=index)
        unavailable, wording = unavailable | reasons, selected.target.wording
        rows.append(measured)
        effects.append(float("nan") if effect is None else effect)
        if progress:
            print(f"\r{index + 1} outputs", end="", file=sys.stderr, flush=True)
    if progress:
        print(file=sys.stderr)
    if not rows:
        raise UserError(f"--data {data}: it has nothing to explain")
    mean_effect = mean_score("permutation effect", effects)
    return FaithfulnessReport(Path(data).name, len(rows), summarise(rows), mean_effect, unavailable, wording)


def measure_output(
    selected: ExplainedOutput, methods: Sequence[str], randomized: nn.Module | None, seed: int = SEED
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, str], dict[str, dict[str, float]], float | None]:
    """Return the attributions of the output and of the one it is compared with, why methods do not apply, all measures, and the
    permutation effect of a model with attention."""
    target, others = selected.target, dict[str, Tensor]()
    values, unavailable = attribute(target, methods)
    if randomized is None:
        unavailable["randomized"] = "the model is too large to be built a second time, with random weights"
    measured = measure_faithfulness(target, values, randomized=randomized, truth=selected.truth, seed=seed)
    if selected.against is not None:
        other = selected.against[0]
        others = attribute(replace(target, output=other), methods)[0]
        for name, row in class_discrimination(target, other, values, others, randomized=randomized, seed=seed).items():
            measured[name] |= row
    try:
        effect: float | None = permutation_effect(target, seed)
    except UserError:  # no attention to permute
        effect = None
    return values, others, unavailable, measured, effect


def to_lists(values: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: numbers.tolist() for name, numbers in values.items()}


def output_score(target: AttributionTarget) -> float:
    return float(target.to_probability(target.full_score()))


def parse_methods(method: str) -> list[str]:
    chosen = list(METHODS) if method == "all" else method.split(",")
    for name in chosen:
        if name not in METHODS:
            raise UserError(f"--method {name}: no such method; use all, or some of {', '.join(METHODS)}, separated by commas")
    return chosen


def randomized_model(run: Run) -> nn.Module | None:
    """Return the run's model with random weights, as before training; None where it is too large."""
    if is_foreign(run) and sum(p.numel() for p in run.model.parameters()) > MAX_RANDOMIZED_PARAMETERS:
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOMIZED_SEED)
        if is_foreign(run):
            return explained_model(cast(TransformersRun, run), randomized=True)
        return run._build_model().to(run.device).eval()


def round_values(found: Any) -> Any:
    """Round numbers in nested dicts and lists to 6 digits; NaN becomes None."""
    if isinstance(found, dict):
        return {name: round_values(value) for name, value in found.items()}
    if isinstance(found, list):
        return [round_values(value) for value in found]
    number = float(found.item() if isinstance(found, Tensor) else found)
    return round(number, 6) if number == number else None


def curve_points(measured: Mapping[str, Mapping[str, Any]], features: str) -> Curves:
    """Return comprehensiveness and sufficiency of every method over the percentages, with intervals where there are any."""

    def point(percent: int, found: float | Score) -> dict[str, float]:
        low, score, high = (found.low, found.score, found.high) if isinstance(found, Score) else (found, found, found)
        return {"percent": percent, "score": score, "low": low, "high": high}

    return {
        title: {
            method: [point(p, scores[f"{key} {p}%"]) for p in TOP_PERCENTS if f"{key} {p}%" in scores]
            for method, scores in measured.items()
        }
        for title, key in (
            (f"comprehensiveness: without the top {features}", "comprehensiveness"),
            (f"sufficiency: with the top {features} alone", "sufficiency"),
        )
    }
