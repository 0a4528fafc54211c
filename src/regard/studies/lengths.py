"""Length generalisation: a Transformer and a Universal Transformer of the same size learn an algorithm on short inputs and are
tested on longer ones (Dehghani et al. 2019, sec. 3.4).

The same size: the same width and heads, as many steps as the other has layers, and a wider feed-forward layer, so that both
have the same number of parameters. The same budget: as many updates on the same batches; the wider block takes longer for
them.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, cast

import torch
from matplotlib.figure import Figure
from rich.console import Console

from regard.corpus.examples import SentencePairs
from regard.errors import UserError
from regard.files import atomic_write
from regard.hardware import hardware
from regard.models.universal import UniversalTransformer
from regard.recipe import AlgorithmWorld, Recipe, UniversalModel
from regard.scoring import compare_accuracy
from regard.show.figures.curves import score_over_length
from regard.show.figures.halting_steps import halting_matrix
from regard.show.figures.html_pages import HtmlReport
from regard.show.forward_pass.halting import HaltingSteps, halting_steps_of_examples, mean_at_positions
from regard.studies.ladder import VariantResult, run_variant
from regard.studies.report import count_parameters, write_report
from regard.studies.variants import Variant, require_transformer
from regard.tasks.task import EvaluationResult
from regard.tasks.translate import TranslateRun, exact_matches
from regard.worlds.algorithms import CARRIES, AlgorithmPair, classify_carries

SIZE_TOLERANCE = 0.05
"""The largest difference in parameters, as a fraction."""


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


def _run_variant(base: Recipe, variant: Variant, out: Path, device: str) -> VariantResult:
    Console(stderr=True, highlight=False).print(f"\n{variant.name}", markup=False)
    return run_variant(base, variant, out, device)


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


def _write_report(base: Recipe, plain: VariantResult, universal: VariantResult, out: Path) -> Path:
    """Write ladder.json, the figure, and ladder.html."""
    world, p_values = base.data.world, _paired_p_values(plain, universal)
    assert isinstance(world, AlgorithmWorld)
    steps = _halting_steps(universal)
    rows = [_result_json(plain, {}), {**_result_json(universal, steps), "p_values": p_values}]
    atomic_write(out / "ladder.json", json.dumps(rows, indent=1) + "\n")
    figure = score_over_length({model.variant.name: _curve(model) for model in (plain, universal)}, world.longest)
    sizes = [
        [model.variant.name, f"{model.parameters:,}", f"{model.run.recipe.model.feed_forward:,}", f"{model.seconds:.0f} s"]
        for model in (plain, universal)
    ]
    header = [
        "length",
        plain.variant.name,
        "characters",
        universal.variant.name,
        "characters",
        "p",
        "steps per input, output token",
    ]
    caption = "Exact matches over length, with 95% intervals; dashed: the longest training length."
    report = HtmlReport(
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
            ("Exact matches in percent, by length", header, _rows(plain, universal, p_values, steps, world.longest)),
            *_carry_table(universal, steps),
            ("Sizes", ["", "parameters", "feed-forward", "training"], sizes),
        ],
        notes=[
            "p: McNemar's exact test of the two models on the same examples. Steps: the mean number of steps of the Universal "
            f"Transformer for an input and an output token, of at most {base.model.encoder_layers} and "
            f"{base.model.decoder_layers}."
        ],
    )
    return write_report(out / "ladder.html", report, {"lengths": (caption, figure), **_halting_figures(base, steps)})


def _halting_steps(model: VariantResult) -> dict[str, HaltingSteps]:
    """Return, by test set, the halting steps of input and output tokens, where tokens differ in them."""
    halts = model.run.recipe.model.halting == "act"
    return (
        {result.name: halting_steps_of_examples(model.run, cast(SentencePairs, result.examples)) for result in model.results}
        if halts
        else {}
    )


def _halting_figures(base: Recipe, steps: dict[str, HaltingSteps]) -> dict[str, tuple[str, Figure]]:
    """Return the figures of the steps at each position of the input and of the output, by name, with their captions."""
    if not steps:
        return {}
    sides = {
        "input": ({name: mean_at_positions(found.source) for name, found in steps.items()}, base.model.encoder_layers),
        "output": ({name: mean_at_positions(found.target) for name, found in steps.items()}, base.model.decoder_layers),
    }
    return {
        f"steps-{side}": (
            f"Mean steps of the Universal Transformer at each position of the {side} (columns), by length (rows); the last "
            "position is the end token.",
            halting_matrix(means, most, title=f"steps at each position of the {side}"),
        )
        for side, (means, most) in sides.items()
    }


def _result_json(model: VariantResult, steps: dict[str, HaltingSteps]) -> dict[str, object]:
    return {
        "name": model.variant.name,
        "parameters": model.parameters,
        "feed_forward": model.run.recipe.model.feed_forward,
        "seconds": round(model.seconds, 1),
        "steps": {name: _steps_json(model, name, found) for name, found in steps.items()},
        "scores": {result.name: {metric: score.to_json() for metric, score in result.scores.items()} for result in model.results},
    }


def _steps_json(model: VariantResult, name: str, steps: HaltingSteps) -> dict[str, object]:
    return {
        "source": _mean_steps(steps.source),
        "target": _mean_steps(steps.target),
        "source_positions": mean_at_positions(steps.source),
        "target_positions": mean_at_positions(steps.target),
        "carries": _steps_by_carry(model, name, steps),
    }


def _mean_steps(rows: list[list[float]]) -> float:
    return mean(steps for row in rows for steps in row)


def _steps_by_carry(model: VariantResult, name: str, steps: HaltingSteps) -> dict[str, float]:
    """Return the mean steps of the digits of a test set's sums into which no carry comes, a carry, or one that they pass on."""
    world = model.run.recipe.data.world
    assert isinstance(world, AlgorithmWorld)
    if world.kind != "addition":
        return {}
    pairs = cast(SentencePairs, next(result.examples for result in model.results if result.name == name))
    found: dict[str, list[float]] = {kind: [] for kind in CARRIES}
    for source, target, row in zip(pairs.source, pairs.target, steps.target):
        for kind, taken in zip(classify_carries(AlgorithmPair(source, target), world.digit_order), row):
            if kind:
                found[kind].append(taken)
    return {kind: mean(taken) for kind, taken in found.items() if taken}


def _carry_table(model: VariantResult, steps: dict[str, HaltingSteps]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return the table of the steps of digits with and without a carry; none for an algorithm without carries."""
    rows = {name: _steps_by_carry(model, name, found) for name, found in steps.items()}
    if not any(rows.values()):
        return []
    cells = [[name, *(f"{means[kind]:.2f}" if kind in means else "–" for kind in CARRIES)] for name, means in rows.items()]
    return [("Steps of the digits of a sum, by what comes into them", ["", *CARRIES], cells)]


def _paired_p_values(plain: VariantResult, universal: VariantResult) -> dict[str, float]:
    """Return, by test set, the p-value of the null hypothesis that both models are equally often right."""
    found = {}
    for one, other in zip(plain.results, universal.results):
        correct = {
            model.variant.name: exact_matches(result.outputs, cast(SentencePairs, result.examples).target)
            for model, result in ((plain, one), (universal, other))
        }
        found[one.name] = compare_accuracy(correct)[1]["p_value"]
    return found


def _input_length(result: EvaluationResult) -> int:
    return int(result.name.removeprefix("length "))


def _curve(model: VariantResult) -> list[dict[str, float]]:
    scores = [(_input_length(result), result.scores["exact"]) for result in model.results]
    return [{"length": length, "score": score.score, "low": score.low, "high": score.high} for length, score in scores]


def _rows(
    plain: VariantResult,
    universal: VariantResult,
    p_values: dict[str, float],
    halting_steps: dict[str, HaltingSteps],
    longest: int,
) -> list[list[str]]:
    rows = []
    for one, other in zip(plain.results, universal.results):
        beyond = " (longer than trained)" if _input_length(one) > longest else ""
        scores = [result.scores[metric] for result in (one, other) for metric in ("exact", "characters")]
        cells = [f"{score.score:.1f} [{score.low:.1f}, {score.high:.1f}]" for score in scores]
        steps = ", ".join(f"{_mean_steps(side):.2f}" for side in halting_steps.get(other.name, ()))
        rows.append([f"{_input_length(one)}{beyond}", *cells, f"{p_values[one.name]:.3f}", steps])
    return rows
