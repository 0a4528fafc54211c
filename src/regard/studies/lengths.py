"""Length generalisation: a Transformer and a Universal Transformer of the same size learn an algorithm on short inputs and are
tested on longer ones (Dehghani et al. 2019, sec. 3.4).

The same size: the same width and heads, as many steps as the other has layers, and a wider feed-forward layer, so that both
have the same number of parameters. The same budget: as many updates on the same batches; the wider block takes longer for
them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console

from regard.corpus.examples import SentencePairs
from regard.errors import UserError
from regard.hardware import hardware
from regard.models.universal import UniversalTransformer
from regard.recipe import AlgorithmWorld, Recipe, UniversalModel
from regard.run.evaluate import evaluate
from regard.scoring import compare_accuracy
from regard.show.figures.curves import score_over_length
from regard.show.halting import mean_halting_steps
from regard.studies.ladder import Variant, require_transformer, train_or_load
from regard.studies.report import count_parameters, write_report
from regard.tasks.base import EvaluationResult
from regard.tasks.translate import TranslateRun, exact_matches

SIZE_TOLERANCE = 0.05
"""The largest difference in parameters, as a fraction."""


@dataclass
class LengthResult:
    """A trained model and its scores on each length."""

    name: str
    run: TranslateRun
    results: list[EvaluationResult]
    seconds: float
    steps: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By test set, the mean halting steps of an input and of an output token, where tokens differ in them."""

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
    """Train both models into `out`, score them on every length, and return the path of the report; trained models are only
    scored."""
    base = require_transformer(recipe, overrides)
    if not isinstance(base.data.world, AlgorithmWorld):
        raise UserError(
            "--lengths needs an algorithm: set data.world.kind = 'copy' or 'addition' (see recipes/copy-lengths.toml)"
        )
    plain = _run_variant(base, Variant("Transformer", {}), out, device)
    universal = _run_variant(base, Variant("Universal Transformer", {"model": match_parameters(plain.run)}), out, device)
    if abs(universal.parameters / plain.parameters - 1) > SIZE_TOLERANCE:
        raise UserError(
            f"{universal.run.folder} has {universal.parameters:,} parameters and {plain.run.folder} {plain.parameters:,}: "
            "they come from different recipes; choose another --out"
        )
    return _write_report(base, plain, universal, out)


def _run_variant(base: Recipe, variant: Variant, out: Path, device: str) -> LengthResult:
    Console(stderr=True, highlight=False).print(f"\n{variant.name}", markup=False)
    run, seconds = train_or_load(base, variant, out, device)
    results = evaluate(run)
    halts = run.recipe.model.kind == "universal" and run.recipe.model.halting == "act"
    steps = {result.name: mean_halting_steps(run, cast(SentencePairs, result.examples)) for result in results} if halts else {}
    return LengthResult(variant.name, run, results, seconds, steps)


def match_parameters(run: TranslateRun) -> dict[str, Any]:
    """Return the settings of a Universal Transformer with as many parameters as this run's Transformer."""
    settings = {**run.recipe.model.model_dump(mode="json", exclude_none=True), "kind": "universal"}
    settings.pop("encoder_widths", None)
    source, target = (tokenizer.size for tokenizer in run.tokenizers)

    def count(feed_forward: int) -> int:
        model = UniversalModel.model_validate({**settings, "feed_forward": feed_forward})
        with torch.device("meta"):  # shapes only
            return count_parameters(UniversalTransformer(model, source, target))

    one, two = count(1), count(2)  # every feed-forward unit adds the same number of parameters
    return {**settings, "feed_forward": max(1, 1 + round((count_parameters(run.model) - one) / (two - one)))}


def _write_report(base: Recipe, plain: LengthResult, universal: LengthResult, out: Path) -> Path:
    """Write ladder.json, the figure, and ladder.html."""
    world, p_values = base.data.world, _paired_p_values(plain, universal)
    assert isinstance(world, AlgorithmWorld)
    rows = [plain.to_json(), {**universal.to_json(), "p_values": p_values}]
    (out / "ladder.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    figure = score_over_length({model.name: _curve(model) for model in (plain, universal)}, world.longest)
    sizes = [
        [model.name, f"{model.parameters:,}", f"{model.run.recipe.model.feed_forward:,}", f"{model.seconds:.0f} s"]
        for model in (plain, universal)
    ]
    header = ["length", plain.name, "characters", universal.name, "characters", "p", "steps per input, output token"]
    caption = "Exact matches over length, with 95% intervals; dashed: the longest training length."
    return write_report(
        out / "ladder.html",
        {"lengths": (caption, figure)},
        title=f"Length generalisation: {world.kind}",
        summary=f"A Transformer and a Universal Transformer of the same size, trained for {base.train.steps:,} steps on lengths "
        f"{world.shortest} to {world.longest}, tested on {world.held_out:,} examples of each length.",
        facts=[
            ("recipe", base.digest()),
            ("hardware", hardware(plain.run.device)),
            (
                "positions",
                f"{base.model.positions.kind}, with a random offset of up to {base.model.positions.random_offset} in training",
            ),
        ],
        tables=[
            ("Exact matches in percent, by length", header, _rows(plain, universal, p_values, world.longest)),
            ("Sizes", ["", "parameters", "feed-forward", "training"], sizes),
        ],
        notes=[
            "p: McNemar's exact test of the two models on the same examples. Steps: the mean number of steps of the Universal "
            f"Transformer for an input and an output token, of at most {base.model.encoder_layers} and "
            f"{base.model.decoder_layers}."
        ],
    )


def _paired_p_values(plain: LengthResult, universal: LengthResult) -> dict[str, float]:
    """Return, by test set, the p-value of the null hypothesis that both models are equally often right."""
    found = {}
    for one, other in zip(plain.results, universal.results):
        correct = {
            model.name: exact_matches(result.outputs, cast(SentencePairs, result.examples).target)
            for model, result in ((plain, one), (universal, other))
        }
        found[one.name] = compare_accuracy(correct)[1]["p_value"]
    return found


def _input_length(result: EvaluationResult) -> int:
    return int(result.name.removeprefix("length "))


def _curve(model: LengthResult) -> list[dict[str, float]]:
    scores = [(_input_length(result), result.scores["exact"]) for result in model.results]
    return [{"length": length, "score": score.score, "low": score.low, "high": score.high} for length, score in scores]


def _rows(plain: LengthResult, universal: LengthResult, p_values: dict[str, float], longest: int) -> list[list[str]]:
    rows = []
    for one, other in zip(plain.results, universal.results):
        beyond = " (longer than trained)" if _input_length(one) > longest else ""
        scores = [result.scores[metric] for result in (one, other) for metric in ("exact", "characters")]
        cells = [f"{score.score:.1f} [{score.low:.1f}, {score.high:.1f}]" for score in scores]
        steps = ", ".join(f"{mean:.2f}" for mean in universal.steps.get(other.name, ()))
        rows.append([f"{_input_length(one)}{beyond}", *cells, f"{p_values[one.name]:.3f}", steps])
    return rows
