"""The ladder: the history of attention, every model trained on the same data and tokens, for the same steps or the same time; and
the ablation of the Transformer's components, one at a time."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure

from regard.corpus.examples import SentencePairs
from regard.errors import UserError
from regard.files import atomic_write, file_name
from regard.hardware import hardware
from regard.recipe import AlgorithmWorld, Recipe
from regard.run.evaluate import evaluate
from regard.run.load import load
from regard.run.train import train
from regard.scoring import Score, score_by_length, translation_scores
from regard.show.figures.curves import score_by_length as score_by_length_figure
from regard.show.figures.html_pages import HtmlReport
from regard.show.figures.matrix import attention_matrix
from regard.studies.ladder_plan import Rung, ladder_settings, plan_ladder
from regard.studies.report import count_parameters, write_report
from regard.studies.sweep import SeedScores
from regard.studies.trials import run_trials, visible_devices
from regard.studies.variants import Variant, ablation_variants, ladder_variants, merge_settings, require_transformer
from regard.tasks.task import EvaluationResult
from regard.tasks.translate import TranslateRun

HEADER = ["", "BLEU", "longest third", "alignment error", "perplexity", "parameters", "training"]
NO_SCORE = "–"
METRICS = {"bleu": 1, "bleu, longest third": 1, "alignment_error": 3, "perplexity": 2}
"""The metrics of the table, and their decimal places."""


@dataclass
class VariantResult:
    """A trained and evaluated variant, with one seed."""

    variant: Variant
    run: TranslateRun
    results: list[EvaluationResult]
    """One for each test set."""
    seconds: float

    @property
    def parameters(self) -> int:
        return count_parameters(self.run.model)


@dataclass
class RungResult:
    """A variant with all its seeds."""

    seeds: dict[int, VariantResult]
    seconds_per_step: float | None = None
    """As timed alone on the device."""

    @property
    def first(self) -> VariantResult:
        return next(iter(self.seeds.values()))

    @property
    def variant(self) -> Variant:
        return self.first.variant

    @property
    def seconds(self) -> float:
        """Seconds of training: steps as timed alone, else the mean wall-clock time with evaluations."""
        if self.seconds_per_step is not None:
            return self.first.run.recipe.train.steps * self.seconds_per_step
        return float(np.mean([one.seconds for one in self.seeds.values()]))

    def scores(self, metric: str) -> SeedScores | None:
        """Return the scores of the first test set by seed, None where they are not measured."""
        found = {str(seed): one.results[0].scores.get(metric) for seed, one in self.seeds.items()}
        return (
            SeedScores({seed: score.score for seed, score in found.items() if score is not None}) if all(found.values()) else None
        )

    def row(self) -> list[str]:
        """Return its row of the report's table: with one seed the test set's interval, with several the spread over them."""

        def cell(metric: str, digits: int) -> str:
            scores, score = self.scores(metric), self.first.results[0].scores.get(metric)
            if scores is None or score is None:
                return NO_SCORE
            if scores.spread is not None:
                return f"{scores.mean:.{digits}f} ± {scores.spread:.{digits}f}"
            return f"{score.score:.{digits}f} [{score.low:.{digits}f}, {score.high:.{digits}f}]"

        cells = [cell(metric, digits) for metric, digits in METRICS.items()]
        steps = f"{self.first.run.recipe.train.steps:,} steps, {self.seconds:.0f} s"
        return [self.variant.name, *cells, f"{self.first.parameters:,}", steps]

    def by_length(self) -> list[dict[str, Any]]:
        """Return BLEU by length, scores and intervals as means over the seeds."""
        bins = zip(*(one.results[0].by_length for one in self.seeds.values()))
        keys = ("score", "ci_low", "ci_high")
        return [{**seeds[0], **{key: float(np.mean([one[key] for one in seeds])) for key in keys}} for seeds in bins]

    def to_json(self) -> dict[str, object]:
        by_seed = {metric: scores.to_json() for metric in self.first.results[0].scores if (scores := self.scores(metric))}
        return {
            "name": self.variant.name,
            "claim": self.variant.claim,
            "parameters": self.first.parameters,
            "steps": self.first.run.recipe.train.steps,
            "seconds": round(self.seconds, 1),
            "scores": {metric: score.to_json() for metric, score in self.first.results[0].scores.items()},
            "by_seed": by_seed,
            "by_length": self.by_length(),
        }


def run_ladder(
    recipe: Recipe | dict[str, Any] | str | Path,
    out: Path,
    *,
    ablate: bool = False,
    overrides: Sequence[str] = (),
    device: str = "auto",
    jobs: int = 1,
) -> tuple[Path, list[RungResult]]:
    """Train and evaluate every variant into `out`, `jobs` at once on each device; return the path of the report, and the results.
    Finished runs are kept."""
    base = require_transformer(recipe, overrides)
    if isinstance(base.data.world, AlgorithmWorld):
        raise UserError(f"data.world.kind = {base.data.world.kind!r} has no sentences to score with BLEU: add --lengths")
    variants = (ablation_variants if ablate else ladder_variants)(base)
    rungs = plan_ladder(base, variants, out, device)
    for state in run_trials([rung.trial for rung in rungs], visible_devices(device, jobs)):
        if state.status != "finished":
            raise UserError(f"{state.trial.folder}: {state.status}")
    results = [
        collect_rung([rung for rung in rungs if rung.variant == variant], device)
        for variant in variants
        if any(rung.variant == variant for rung in rungs)
    ]
    return _write_report(base, results, out, ablate), results


def collect_rung(rungs: Sequence[Rung], device: str) -> RungResult:
    """Return the results of a variant's finished runs."""
    found = {rung.seed: finished_variant(rung.variant, rung.trial.folder, device, stored_results) for rung in rungs}
    for one in found.values():
        one.results[0].scores["bleu, longest third"] = _longest_third(one.results[0])
    return RungResult(found, rungs[0].seconds_per_step)


def run_variant(base: Recipe, variant: Variant, out: Path, device: str) -> VariantResult:
    """Evaluate a variant, trained now or earlier."""
    folder = out / variant.folder
    if not (folder / "model.safetensors").exists():
        settings = merge_settings(base.model_dump(mode="json", exclude_none=True), variant.change)
        train(settings, folder, device=device, resume=False)
    return finished_variant(variant, folder, device, evaluate)


def finished_variant(
    variant: Variant, folder: Path, device: str, results: Callable[[TranslateRun], list[EvaluationResult]]
) -> VariantResult:
    """Return a finished run with its results and the time that its log spans."""
    run = cast(TranslateRun, load(folder, device=device))
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return VariantResult(variant, run, results(run), log[-1]["time"] - log[0]["time"])


def stored_results(run: TranslateRun) -> list[EvaluationResult]:
    """Return the results of the test sets as they were scored after training, without translating again."""
    found = []
    for name, examples in run.data.tests.items():
        outputs = (run.folder / "outputs" / f"{file_name(name)}.txt").read_text(encoding="utf-8").split("\n")[:-1]
        scores = {metric: Score(metric, **entry) for metric, entry in run._read_json("scores.json")[name].items()}
        by_length = score_by_length(examples.source, outputs, examples.target)
        found.append(EvaluationResult(name, examples, outputs, scores, by_length))
    return found


def _longest_third(result: EvaluationResult) -> Score:
    """Return BLEU on the longest third of the sentences, where a single vector has to hold most."""
    lengths = [len(text.split()) for text in cast(SentencePairs, result.examples).source]
    longest = sorted(range(len(lengths)), key=lambda i: -lengths[i])[: max(1, len(lengths) // 3)]
    hypotheses, references = (
        [result.outputs[i] for i in longest],
        [cast(SentencePairs, result.examples).target[i] for i in longest],
    )
    return translation_scores(hypotheses, references, metrics=("bleu",))["bleu"]


def results_table(results: Sequence[RungResult]) -> tuple[list[str], list[list[str]]]:
    """Return the header and a row for each model, without the columns in which no model has a score."""
    rows = [result.row() for result in results]
    kept = [i for i in range(len(HEADER)) if any(row[i] != NO_SCORE for row in rows)]
    return [HEADER[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _write_report(base: Recipe, results: list[RungResult], out: Path, ablate: bool) -> Path:
    """Write ladder.json, the figures, and ladder.html."""
    rows = [result.to_json() for result in results]
    atomic_write(out / "ladder.json", json.dumps(rows, indent=1) + "\n")
    settings = ladder_settings(base)
    budget = f"{settings.minutes:g} min of training" if settings.minutes else f"{base.train.steps:,} steps"
    seeds = len(results[0].seeds)
    notes = [f"{result.variant.name}: {result.variant.claim}." for result in results if result.variant.claim]
    if seeds > 1:
        notes.append(f"± is the standard deviation over {seeds} seeds. Curves are means over the seeds.")
    if settings.minutes:
        notes.append("Training: steps × the seconds of a step, timed alone on the device; evaluations are not counted.")
    report = HtmlReport(
        title="Ablation of the Transformer" if ablate else "From the RNN to the Transformer",
        summary=f"Every model is trained on the same data and tokens for {budget}"
        + (f", with about {settings.parameters:,} parameters." if settings.parameters else "."),
        facts=[("recipe", base.digest()), ("hardware", hardware(results[0].first.run.device))],
        tables=[("All models", *results_table(results))],
        notes=notes,
    )
    return write_report(out / "ladder.html", report, _figures(results))


def _figures(results: list[RungResult]) -> dict[str, tuple[str, Figure]]:
    """Return BLEU by length of all models, and the attention of each that has one, on the same sentence."""
    series = {result.variant.name: result.by_length() for result in results}
    figures: dict[str, tuple[str, Figure]] = {
        "length": ("BLEU by sentence length, with 95% intervals.", score_by_length_figure(series))
    }
    sources = cast(SentencePairs, results[0].first.results[0].examples).source
    sentence = max(sources[:50], key=lambda text: len(text.split()))
    for i, result in enumerate(results):
        if (
            result.first.run._attends and result.first.run._best([sentence])[0].tokens
        ):  # an untrained model may give an empty translation
            found = result.first.run.align(sentence)
            weights, name = found.view()
            figure = attention_matrix(weights, found.source, found.target)
            figures[f"alignment-{i}"] = (f"{result.variant.name}: {name}.", figure)
    return figures
