"""Explanations of what a run says, never without what is known of their faithfulness."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.watch import places
from regard.errors import Mistake
from regard.explain.faithful import LOT, MEASURES, SHARES, mean, measure, permuted, summarise
from regard.explain.methods import METHODS, explain
from regard.explain.words import on_one, on_permuted, verdict
from regard.run.ask import Asked, ask, ask_set, read_set
from regard.run.base import Run
from regard.scoring import Score

FRESH_SEED = 1
Curves = dict[str, dict[str, list[dict[str, float]]]]
"""By what is done with the tokens, and by who says that they matter: points over the share of them."""


@dataclass(frozen=True)
class Explained:
    """One answer: a number for each token by each method, and what was measured of each."""

    answer: str
    tokens: list[str]
    values: dict[str, list[float]]
    refused: dict[str, str]
    measured: dict[str, dict[str, float]]
    permuted: float | None

    def words(self) -> list[str]:
        said = [on_one(name, self.measured) for name in self.values]
        if self.permuted is not None:
            said.append(f"Permuting the weights that are shown moves the answers by {self.permuted:.2f} of their probability.")
        return [*said, "One sentence says little of a method: regard explain RUN --data FILE measures it over many."]

    def to_json(self) -> dict[str, Any]:
        return {"answer": self.answer, "tokens": self.tokens, "values": rounded(self.values), "refused": self.refused,
                "faithfulness": rounded(self.measured), "permuted": self.permuted}

    def about(self, name: str) -> tuple[str, str]:
        """A title, and a line under it."""
        return f"Why {self.answer}", f"explained for {name} by {len(self.values)} methods"

    def curves(self) -> Curves:
        return curves(self.measured)

    def tables(self) -> "list[Table]":
        methods = list(self.values)
        rows = [[token, *(f"{self.values[name][i]:.3f}" for name in methods)] for i, token in enumerate(self.tokens)]
        present = [m for m in MEASURES if any(m in row for row in self.measured.values())]
        figures = [[name, *(f"{row[m]:.3f}" if m in row else "" for m in present)] for name, row in self.measured.items()]
        return [Table(f"why {self.answer}", ["token", *methods], rows), Table("faithfulness", ["", *present], figures)]


@dataclass(frozen=True)
class Table:
    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Measured:
    """A set of answers: what was measured of each method, with intervals."""

    name: str
    number: int
    scores: dict[str, dict[str, Score]]
    permuted: Score | None
    refused: dict[str, str]

    def words(self) -> list[str]:
        said = [verdict(name, scores) for name, scores in self.scores.items() if name != LOT]
        return [*said, *([] if self.permuted is None else [on_permuted(self.permuted)])]

    def to_json(self) -> dict[str, Any]:
        return {"set": self.name, "number": self.number, "refused": self.refused,
                "scores": {method: {name: score.to_json() for name, score in scores.items()}
                           for method, scores in self.scores.items()},
                "permuted": None if self.permuted is None else self.permuted.to_json(), "words": self.words()}

    def about(self, name: str) -> tuple[str, str]:
        return (f"Are explanations of {name} faithful?",
                f"{self.number} answers of {self.name}; in brackets and as bands 95% intervals over them.")

    def curves(self) -> Curves:
        return curves(self.scores)

    def tables(self) -> list[Table]:
        present = [m for m in MEASURES if any(m in scores for scores in self.scores.values())]

        def cells(names: Sequence[str], scores: dict[str, Score]) -> list[str]:
            return [interval(scores[name]) if name in scores else "" for name in names]

        curves = [Table(title, ["", *(f"{share}%" for share in SHARES)],
                        [[method, *cells([f"{key} {share}%" for share in SHARES], scores)]
                         for method, scores in self.scores.items()])
                  for title, key in (("probability lost without the first tokens", "without"),
                                     ("probability lost with the first tokens alone", "only"))]
        return [Table(f"{self.name}: {self.number} answers", ["", *present],
                      [[method, *cells(present, scores)] for method, scores in self.scores.items()]), *curves]


def interval(score: Score) -> str:
    return f"{score.score:.2f} [{score.low:.2f}, {score.high:.2f}]"


def explain_text(run: Run, text: str, method: str = "all", *, label: str | None = None, word: str | None = None) -> Explained:
    """Why a run says of a text what it says, or why it might say something else."""
    methods = methods_of(method)
    asked = ask(run, text, label=label, word=word)
    values, refused = explain(asked.target, methods)
    measured = measure(asked.target, values, fresh=fresh(run), gold=asked.gold)
    shown = permuted(asked.target) if attends(asked) else None
    return Explained(asked.answer, asked.tokens, {name: numbers.tolist() for name, numbers in values.items()}, refused, measured,
                     shown)


def explain_set(run: Run, data: str, method: str = "all", *, number: int = 200, progress: bool = False) -> Measured:
    """How faithful explanations are over a set."""
    methods, other = methods_of(method), fresh(run)
    rows, shown = [], []
    refused: dict[str, str] = {}
    for index, asked in enumerate(ask_set(run, read_set(run, data), number)):
        values, why = explain(asked.target, methods)
        refused |= why
        rows.append(measure(asked.target, values, fresh=other, gold=asked.gold, seed=index))
        if attends(asked):
            shown.append(permuted(asked.target, seed=index))
        if progress:
            print(f"\r{index + 1} answers", end="", file=sys.stderr, flush=True)
    if progress:
        print(file=sys.stderr)
    if not rows:
        raise Mistake(f"--data {data}: there is nothing to explain in it")
    return Measured(Path(data).name, len(rows), summarise(rows), mean("permuted", shown), refused)


def attends(asked: Asked) -> bool:
    return bool(places(asked.target.model))


def methods_of(method: str) -> list[str]:
    chosen = list(METHODS) if method == "all" else method.split(",")
    for name in chosen:
        if name not in METHODS:
            raise Mistake(f"--method {name}: should be all, or some of {', '.join(METHODS)}, with commas between them")
    return chosen


def fresh(run: Run) -> nn.Module:
    """The run's model before it learned anything."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(FRESH_SEED)
        return run.build_model().to(run.device).eval()


def rounded(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: rounded(value) for name, value in found.items()}
    if isinstance(found, list):
        return [rounded(value) for value in found]
    number = float(found.item() if isinstance(found, Tensor) else found)
    return round(number, 6) if number == number else None


def curves(measured: Mapping[str, Mapping[str, Any]]) -> Curves:
    """Comprehensiveness and sufficiency of every method over the shares, with their intervals where there are such."""
    def point(share: int, found: float | Score) -> dict[str, float]:
        low, score, high = (found.low, found.score, found.high) if isinstance(found, Score) else (found, found, found)
        return {"share": share, "score": score, "low": low, "high": high}

    return {title: {method: [point(share, scores[f"{key} {share}%"]) for share in SHARES if f"{key} {share}%" in scores]
                    for method, scores in measured.items()}
            for title, key in (("comprehensiveness: without the first tokens", "without"),
                               ("sufficiency: with the first tokens alone", "only"))}


def write_out(run: Run, found: Explained | Measured, path: Path) -> None:
    """The curves as a picture; or with the tables, and what they mean, as one HTML page."""
    from regard.pictures.curves import lost_over_share
    from regard.pictures.report import Report, page
    from regard.pictures.style import format_of, save, svg_text, write

    title, summary = found.about(run.folder.name)
    if format_of(path, pages=True) != "html":
        save(lost_over_share(found.curves(), aside=LOT, title=title), path)
        return
    refused = [f"{name} does not apply: {why}." for name, why in found.refused.items()]
    caption = f"What the answer loses of its probability without a share of the tokens, and with them alone; dashed, {LOT}."
    report = Report(title, summary, tables=[(table.title, table.header, table.rows) for table in found.tables()],
                    notes=[*found.words(), *refused], figures=[(caption, svg_text(lost_over_share(found.curves(), aside=LOT)))])
    write(path, page(report).encode())
