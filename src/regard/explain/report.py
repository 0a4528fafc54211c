"""Explanations of what a run says, never without what is known of their faithfulness."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.modules import attention_modules
from regard.errors import UserError
from regard.explain.discriminative import class_discrimination
from regard.explain.faithfulness import (
    MEASURES,
    RANDOM_BASELINE,
    TOP_PERCENTS,
    mean_score,
    measure_faithfulness,
    permuted,
    summarise,
)
from regard.explain.methods import METHODS, attribute
from regard.explain.selection import PREDICTED, ExplainedImage, ExplainedOutput, OutputSelection
from regard.explain.target import AttributionTarget
from regard.explain.text_outputs import load_examples, select_output, select_outputs
from regard.explain.verdict import TEXT_WORDING, Wording, permutation_verdict, set_verdict, single_verdict
from regard.scoring import Score
from regard.tasks.base import Run

RANDOMIZED_SEED = 1
MAX_PRINTED_PATCHES = 5
"""Patches that are printed."""
Curves = dict[str, dict[str, list[dict[str, float]]]]
"""By what is done with the tokens or patches, and by who says that they matter: points over the share of them."""


@dataclass(frozen=True)
class Explanation:
    """One answer, and another beside it where one was asked for: a number for each token or patch by each method, and what was
    measured of each."""

    answer: str
    pieces: list[str]
    values: dict[str, list[float]]
    refused: dict[str, str]
    measured: dict[str, dict[str, float]]
    permuted: float | None
    called: Wording
    amount: float
    """Of the answer: its probability or likeness."""
    picture: ExplainedImage | None = None
    against: "AlternativeOutput | None" = None

    def words(self) -> list[str]:
        said = [single_verdict(name, self.measured, self.called) for name in self.values]
        if self.permuted is not None:
            said.append(
                f"Permuting the weights that are shown moves the answers by {self.permuted:.2f} of their {self.called.counts}."
            )
        hidden = [] if self.picture is None else ["What takes the place of a hidden patch is the mean colour of the picture."]
        one = self.called.each.removesuffix("s")
        return [*said, *hidden, f"One {one} says little of a method: regard explain RUN --data SET measures it over many."]

    def to_json(self) -> dict[str, Any]:
        other = (
            {}
            if self.against is None
            else {
                "against": self.against.answer,
                "against_amount": self.against.amount,
                "against_values": round_values(self.against.values),
            }
        )
        grid = {} if self.picture is None else {"grid": list(self.picture.grid)}
        return {
            "answer": self.answer,
            self.called.pieces: self.pieces,
            **grid,
            "amount": round(self.amount, 6),
            "values": round_values(self.values),
            **other,
            "refused": self.refused,
            "faithfulness": round_values(self.measured),
            "permuted": self.permuted,
        }

    def about(self, name: str) -> tuple[str, str]:
        """A title, and a line under it."""
        return f"Why {self.answer}", f"explained for {name} by {len(self.values)} methods"

    def curves(self) -> Curves:
        return curve_points(self.measured, self.called.pieces)

    def tables(self) -> "list[ReportTable]":
        explained = [(f"{self.answer} ({self.called.counts} {self.amount:.3f})", self.values)]
        if self.against is not None:
            explained.append((f"{self.against.answer} ({self.called.counts} {self.against.amount:.3f})", self.against.values))
        present = [m for m in MEASURES if any(m in row for row in self.measured.values())]
        figures = [[name, *(f"{row[m]:z.3f}" if m in row else "" for m in present)] for name, row in self.measured.items()]
        made = self.all_pieces if self.picture is None else self.first_patches
        return [*(made(title, values) for title, values in explained), ReportTable("faithfulness", ["", *present], figures)]

    def all_pieces(self, title: str, values: dict[str, list[float]]) -> "ReportTable":
        return ReportTable(
            f"why {title}",
            ["token", *values],
            [[token, *(f"{numbers[i]:z.3f}" for numbers in values.values())] for i, token in enumerate(self.pieces)],
        )

    def first_patches(self, title: str, values: dict[str, list[float]]) -> "ReportTable":
        """Where the most is; a picture, or JSON, has all of them."""
        best = [sorted(zip(numbers, self.pieces), key=lambda pair: -pair[0])[:MAX_PRINTED_PATCHES] for numbers in values.values()]
        rows = [[str(rank + 1), *(f"{piece}: {number:z.3f}" for number, piece in row)] for rank, row in enumerate(zip(*best))]
        return ReportTable(f"why {title}: the first patches, as row,column: number", ["", *values], rows)


@dataclass(frozen=True)
class AlternativeOutput:
    """Another answer that might have been given."""

    answer: str
    values: dict[str, list[float]]
    amount: float


@dataclass(frozen=True)
class ReportTable:
    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class FaithfulnessReport:
    """A set of answers: what was measured of each method, with intervals."""

    name: str
    number: int
    scores: dict[str, dict[str, Score]]
    permuted: Score | None
    refused: dict[str, str]
    called: Wording = TEXT_WORDING

    def words(self) -> list[str]:
        said = [set_verdict(name, scores, self.called) for name, scores in self.scores.items() if name != RANDOM_BASELINE]
        return [*said, *([] if self.permuted is None else [permutation_verdict(self.permuted, self.called)])]

    def to_json(self) -> dict[str, Any]:
        return {
            "set": self.name,
            "number": self.number,
            "refused": self.refused,
            "scores": {
                method: {name: score.to_json() for name, score in scores.items()} for method, scores in self.scores.items()
            },
            "permuted": None if self.permuted is None else self.permuted.to_json(),
            "words": self.words(),
        }

    def about(self, name: str) -> tuple[str, str]:
        return (
            f"Are explanations of {name} faithful?",
            f"{self.number} answers of {self.name}; in brackets and as bands 95% intervals over them.",
        )

    def curves(self) -> Curves:
        return curve_points(self.scores, self.called.pieces)

    def tables(self) -> list[ReportTable]:
        present = [m for m in MEASURES if any(m in scores for scores in self.scores.values())]

        def cells(names: Sequence[str], scores: dict[str, Score]) -> list[str]:
            return [format_interval(scores[name]) if name in scores else "" for name in names]

        curves = [
            ReportTable(
                title,
                ["", *(f"{share}%" for share in TOP_PERCENTS)],
                [
                    [method, *cells([f"{key} {share}%" for share in TOP_PERCENTS], scores)]
                    for method, scores in self.scores.items()
                ],
            )
            for title, key in (
                (f"{self.called.counts} lost without the first {self.called.pieces}", "without"),
                (f"{self.called.counts} lost with the first {self.called.pieces} alone", "only"),
            )
        ]
        return [
            ReportTable(
                f"{self.name}: {self.number} answers",
                ["", *present],
                [[method, *cells(present, scores)] for method, scores in self.scores.items()],
            ),
            *curves,
        ]


def format_number(number: float) -> str:
    """Without a sign before nothing."""
    return f"{number:z.2f}"


def format_interval(score: Score) -> str:
    return f"{format_number(score.score)} [{format_number(score.low)}, {format_number(score.high)}]"


def explain_one(run: Run, given: Any, method: str = "all", question: OutputSelection = PREDICTED) -> Explanation:
    """Why a run says of a text or a picture what it says, or why it might say something else."""
    methods, other = parse_methods(method), randomized_model(run)
    asked = select_output(run, given, question)
    values, refused = attribute(asked.target, methods)
    measured = measure_faithfulness(asked.target, values, fresh=other, gold=asked.gold)
    against = None
    if asked.against is not None:
        rival = replace(asked.target, answer=asked.against[0])
        theirs = attribute(rival, methods)[0]
        merge_measures(measured, class_discrimination(asked.target, rival.answer, values, theirs, fresh=other))
        against = AlternativeOutput(asked.against[1], to_lists(theirs), output_score(rival))
    shown = permuted(asked.target) if has_attention(asked) else None
    return Explanation(
        asked.answer,
        asked.pieces,
        to_lists(values),
        refused,
        measured,
        shown,
        Wording.of(asked.target),
        output_score(asked.target),
        asked.picture,
        against,
    )


def to_lists(values: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: numbers.tolist() for name, numbers in values.items()}


def output_score(target: AttributionTarget) -> float:
    return float(target.amounts(target.whole()))


def merge_measures(measured: dict[str, dict[str, float]], more: dict[str, dict[str, float]]) -> None:
    for name, row in more.items():
        measured[name] |= row


def explain_set(
    run: Run,
    data: str,
    method: str = "all",
    *,
    number: int = 200,
    question: OutputSelection = PREDICTED,
    reference: Path | None = None,
    gold: Path | None = None,
    progress: bool = False,
) -> FaithfulnessReport:
    """How faithful explanations are over a set; of a file, which may have its translation and a gold alignment beside it."""
    methods, other = parse_methods(method), randomized_model(run)
    rows, shown = [], []
    refused: dict[str, str] = {}
    called = TEXT_WORDING
    for index, asked in enumerate(select_outputs(run, load_examples(run, data, reference, gold), number, question)):
        values, why = attribute(asked.target, methods)
        refused, called = refused | why, Wording.of(asked.target)
        rows.append(measure_faithfulness(asked.target, values, fresh=other, gold=asked.gold, seed=index))
        if asked.against is not None:
            theirs = attribute(replace(asked.target, answer=asked.against[0]), methods)[0]
            merge_measures(
                rows[-1], class_discrimination(asked.target, asked.against[0], values, theirs, fresh=other, seed=index)
            )
        if has_attention(asked):
            shown.append(permuted(asked.target, seed=index))
        if progress:
            print(f"\r{index + 1} answers", end="", file=sys.stderr, flush=True)
    if progress:
        print(file=sys.stderr)
    if not rows:
        raise UserError(f"--data {data}: there is nothing to explain in it")
    return FaithfulnessReport(Path(data).name, len(rows), summarise(rows), mean_score("permuted", shown), refused, called)


def has_attention(asked: ExplainedOutput) -> bool:
    return bool(attention_modules(asked.target.model, kinds=asked.target.kinds))


def parse_methods(method: str) -> list[str]:
    chosen = list(METHODS) if method == "all" else method.split(",")
    for name in chosen:
        if name not in METHODS:
            raise UserError(f"--method {name}: should be all, or some of {', '.join(METHODS)}, with commas between them")
    return chosen


def randomized_model(run: Run) -> nn.Module:
    """The run's model before it learned anything."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOMIZED_SEED)
        return run.build_model().to(run.device).eval()


def round_values(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: round_values(value) for name, value in found.items()}
    if isinstance(found, list):
        return [round_values(value) for value in found]
    number = float(found.item() if isinstance(found, Tensor) else found)
    return round(number, 6) if number == number else None


def curve_points(measured: Mapping[str, Mapping[str, Any]], pieces: str) -> Curves:
    """Comprehensiveness and sufficiency of every method over the shares, with their intervals where there are such."""

    def point(share: int, found: float | Score) -> dict[str, float]:
        low, score, high = (found.low, found.score, found.high) if isinstance(found, Score) else (found, found, found)
        return {"share": share, "score": score, "low": low, "high": high}

    return {
        title: {
            method: [point(share, scores[f"{key} {share}%"]) for share in TOP_PERCENTS if f"{key} {share}%" in scores]
            for method, scores in measured.items()
        }
        for title, key in (
            (f"comprehensiveness: without the first {pieces}", "without"),
            (f"sufficiency: with the first {pieces} alone", "only"),
        )
    }
