"""The ladder of lengths: a Transformer and a Universal Transformer of the same size learn an algorithm on short inputs and are
tested on longer ones (Dehghani et al. 2019, sec. 3.4).

The same size: as wide, with as many heads, as many steps as the other has layers, and a feed-forward layer so much wider that
both have the same number of parameters. The same budget: as many updates on the same batches, which take the wider block longer.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from regard.errors import UserError
from regard.hardware import hardware
from regard.models.universal import UniversalTransformer
from regard.recipe import AlgorithmWorld, Recipe, UniversalModel
from regard.run.evaluate import evaluate
from regard.scoring import compare_accuracy
from regard.show.figures.curves import score_over_length
from regard.show.figures.html_report import HtmlReport, html_report
from regard.show.figures.style import save_figure, to_svg
from regard.show.halting import mean_halting_steps
from regard.studies.ladder import Variant, require_transformer, train_or_load
from regard.tasks.base import EvaluationResult
from regard.tasks.translate import TranslateRun, exact_matches

SIZE_TOLERANCE = 0.05
"""How much the sizes may differ, as a share."""


@dataclass
class LengthResult:
    """A model trained, and what it scored on each length."""

    name: str
    run: TranslateRun
    results: list[EvaluationResult]
    seconds: float
    steps: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By test set, the mean steps of a token read and of one said, where tokens differ in them."""

    @property
    def parameters(self) -> int:
        return count_parameters(self.run.model)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "parameters": self.parameters,
            "feed_forward": self.run.recipe.model.feed_forward,
            "seconds": round(self.seconds, 1),
            "steps": self.steps,
            "scores": {
                result.name: {metric: score.to_json() for metric, score in result.scores.items()} for result in self.results
            },
        }


def run_length_study(
    recipe: Recipe | dict[str, Any] | str | Path, out: Path, *, overrides: Sequence[str] = (), device: str = "auto"
) -> Path:
    """Train both into `out`, score them on every test length, and write the report; a model already there is only scored."""
    base = require_transformer(recipe, overrides)
    if not isinstance(base.data.world, AlgorithmWorld):
        raise UserError(
            "--lengths needs an algorithm: set data.world.kind = 'copy' or 'addition' (see recipes/copy-lengths.toml)"
        )
    plain = run_length_variant(base, Variant("Transformer", {}), out, device)
    universal = run_length_variant(base, Variant("Universal Transformer", {"model": match_parameters(plain.run)}), out, device)
    if abs(universal.parameters / plain.parameters - 1) > SIZE_TOLERANCE:
        raise UserError(
            f"{universal.run.folder} has {universal.parameters:,} parameters, {plain.run.folder} {plain.parameters:,}: "
            "they are not of one recipe; choose another --out"
        )
    return write_length_report(base, plain, universal, out)


def run_length_variant(base: Recipe, rung: Variant, out: Path, device: str) -> LengthResult:
    Console(stderr=True, highlight=False).print(f"\n{rung.name}", markup=False)
    run, seconds = train_or_load(base, rung, out, device)
    results = evaluate(run)
    halts = run.recipe.model.kind == "universal" and run.recipe.model.halting == "act"
    steps = {result.name: mean_halting_steps(run, result.examples) for result in results} if halts else {}
    return LengthResult(rung.name, run, results, seconds, steps)


def match_parameters(run: TranslateRun) -> dict[str, Any]:
    """The settings of a Universal Transformer with as many parameters as this run's Transformer."""
    settings = {**run.recipe.model.model_dump(mode="json", exclude_none=True), "kind": "universal"}
    settings.pop("encoder_widths", None)
    source, target = (tokenizer.size for tokenizer in run.tokenizers)

    def count(feed_forward: int) -> int:
        model = UniversalModel.model_validate({**settings, "feed_forward": feed_forward})
        with torch.device("meta"):  # counted, not computed
            return count_parameters(UniversalTransformer(model, source, target))

    one, two = count(1), count(2)  # every unit of the feed-forward layer adds as many
    return {**settings, "feed_forward": max(1, 1 + round((count_parameters(run.model) - one) / (two - one)))}


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def write_length_report(base: Recipe, plain: LengthResult, universal: LengthResult, out: Path) -> Path:
    """ladder.json, the picture, and ladder.html."""
    world, p_values = base.data.world, paired_p_values(plain, universal)
    assert isinstance(world, AlgorithmWorld)
    rows = [plain.to_json(), {**universal.to_json(), "p_values": p_values}]
    (out / "ladder.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    figure = score_over_length({tried.name: curve(tried) for tried in (plain, universal)}, world.longest)
    save_figure(figure, out / "pictures" / "lengths.svg")
    sizes = [
        [tried.name, f"{tried.parameters:,}", f"{tried.run.recipe.model.feed_forward:,}", f"{tried.seconds:.0f} s"]
        for tried in (plain, universal)
    ]
    report = HtmlReport(
        title=f"Longer than it was trained on: {world.kind}",
        summary=f"A Transformer and a Universal Transformer of the same size, trained for {base.train.steps:,} steps on lengths "
        f"{world.shortest} to {world.longest}, tested on {world.held_out:,} examples of each length.",
        facts=[
            ("recipe", base.digest()),
            ("hardware", hardware(plain.run.device)),
            ("positions", f"{base.model.positions.kind}, begun at up to {base.model.positions.random_offset} while training"),
        ],
        tables=[
            (
                "Right answers in percent, by length",
                table_header(plain, universal),
                table(plain, universal, p_values, world.longest),
            ),
            ("Their sizes", ["", "parameters", "feed-forward", "training"], sizes),
        ],
        notes=[
            "p: McNemar's exact test of the two on the same examples. Steps: how many the Universal Transformer took for a "
            f"token that it read and one that it said, on average, of {base.model.encoder_layers} and "
            f"{base.model.decoder_layers}."
        ],
        figures=[
            ("Right answers over length, with 95% intervals; dashed, the longest length trained on.", to_svg(figure, "lengths"))
        ],
    )
    path = out / "ladder.html"
    path.write_text(html_report(report), encoding="utf-8")
    return path


def paired_p_values(plain: LengthResult, universal: LengthResult) -> dict[str, float]:
    """How likely so different answers are if both are as often right, by test set."""
    found = {}
    for one, other in zip(plain.results, universal.results):
        right = {
            tried.name: exact_matches(result.outputs, result.examples.target)
            for tried, result in ((plain, one), (universal, other))
        }
        found[one.name] = compare_accuracy(right)[1]["p_value"]
    return found


def input_length(result: EvaluationResult) -> int:
    return int(result.name.removeprefix("length "))


def curve(tried: LengthResult) -> list[dict[str, float]]:
    scores = [(input_length(result), result.scores["exact"]) for result in tried.results]
    return [{"length": length, "score": score.score, "low": score.low, "high": score.high} for length, score in scores]


def table_header(plain: LengthResult, universal: LengthResult) -> list[str]:
    return ["length", plain.name, "characters", universal.name, "characters", "p", "steps read, said"]


def table(plain: LengthResult, universal: LengthResult, p_values: dict[str, float], longest: int) -> list[list[str]]:
    rows = []
    for one, other in zip(plain.results, universal.results):
        beyond = " (longer than trained)" if input_length(one) > longest else ""
        scores = [result.scores[metric] for result in (one, other) for metric in ("exact", "characters")]
        cells = [f"{score.score:.1f} [{score.low:.1f}, {score.high:.1f}]" for score in scores]
        taken = ", ".join(f"{mean:.2f}" for mean in universal.steps[other.name])
        rows.append([f"{input_length(one)}{beyond}", *cells, f"{p_values[one.name]:.3f}", taken])
    return rows
