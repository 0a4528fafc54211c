"""The ladder: the history of attention, every model trained on the same data, tokens and budget; and the ablation of the
Transformer's components, one at a time."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from matplotlib.figure import Figure
from rich.console import Console

from regard.corpus.examples import SentencePairs
from regard.errors import UserError
from regard.files import atomic_write
from regard.hardware import hardware
from regard.recipe import AlgorithmWorld, Recipe
from regard.run.evaluate import evaluate
from regard.run.load import load
from regard.run.train import to_recipe, train
from regard.scoring import Score, translation_scores
from regard.show.figures.curves import score_by_length
from regard.show.figures.html_pages import HtmlReport
from regard.show.figures.matrix import attention_matrix
from regard.studies.report import count_parameters, write_report
from regard.tasks.base import EvaluationResult
from regard.tasks.translate import TranslateRun

RECURRENT: dict[str, Any] = {"kind": "recurrent", "cell": "lstm", "encoder_layers": 2, "decoder_layers": 1, "tie": "target"}
RECURRENT_WITH_ATTENTION: dict[str, Any] = {**RECURRENT, "attention": "general", "decoder": "luong", "input_feeding": True}

HEADER = ["", "BLEU", "longest third", "alignment error", "perplexity", "parameters", "training"]


@dataclass(frozen=True)
class Variant:
    """One model of a ladder: its name, the settings it changes, and the claim it tests."""

    name: str
    change: dict[str, Any]
    claim: str = ""
    pretrain: "Variant | None" = None
    """A variant trained first, whose weights this one starts from."""


@dataclass
class VariantResult:
    """A trained and evaluated variant."""

    variant: Variant
    run: TranslateRun
    results: list[EvaluationResult]
    """One for each test set."""
    seconds: float

    @property
    def parameters(self) -> int:
        return count_parameters(self.run.model)

    def row(self) -> list[str]:
        """Return its row of the report's table."""

        def cell(metric: str, digits: int) -> str:
            score = self.results[0].scores.get(metric)
            return "–" if score is None else f"{score.score:.{digits}f} [{score.low:.{digits}f}, {score.high:.{digits}f}]"

        return [
            self.variant.name,
            cell("bleu", 1),
            cell("bleu, longest third", 1),
            cell("alignment_error", 3),
            cell("perplexity", 2),
            f"{self.parameters:,}",
            f"{self.seconds:.0f} s",
        ]

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.variant.name,
            "claim": self.variant.claim,
            "parameters": self.parameters,
            "seconds": round(self.seconds, 1),
            "scores": {metric: score.to_json() for metric, score in self.results[0].scores.items()},
            "by_length": self.results[0].by_length,
        }


def ladder_variants(recipe: Recipe) -> list[Variant]:
    """Return RNN, RNN with attention, the same with a pretrained encoder (CoVe), Transformer and Universal Transformer."""
    width = 2 * recipe.model.width
    attention = {**RECURRENT_WITH_ATTENTION, "width": width}
    universal = {**recipe.model.model_dump(mode="json", exclude_none=True), "kind": "universal", "encoder_widths": None}
    reverse = Variant("reverse direction", {"model": attention, "data": {"reverse": True}})
    init_from = {"init_from": {"run": "../reverse-direction", "modules": ["encoder."], "tokenizer": False}}
    return [
        Variant("RNN", {"model": {**RECURRENT, "attention": "none", "width": width}}, "one vector holds the whole source"),
        Variant("RNN with attention", {"model": attention}, "attends to every source word"),
        Variant(
            "RNN with attention, CoVe",
            {"model": attention, "train": init_from},
            "its encoder was pretrained on translation",
            pretrain=reverse,
        ),
        Variant("Transformer", {}, "uses nothing but attention"),
        Variant("Universal Transformer", {"model": universal}, "one block, applied as often as each word needs"),
    ]


def ablation_variants(recipe: Recipe) -> list[Variant]:
    """Return the Transformer, and variants without one of its components, each with the claim about that component."""

    def model(**change: Any) -> dict[str, Any]:
        return {"model": change}

    return [
        Variant("unchanged", {}),
        Variant("one head", model(heads=1, key_width=recipe.model.width), "several heads attend to several things at once"),
        Variant("no score scaling", model(scale_scores=False), "unscaled scores saturate the softmax"),
        Variant("no positions", model(positions={"kind": "none"}), "without positions a sentence is a bag of words"),
        Variant("learned positions", model(positions={"kind": "learned"}), "learned positions do as well as sinusoids"),
        Variant("no residuals", model(residual=False), "residual connections make depth trainable"),
        Variant("batch norm", model(norm="batch"), "layer norm suits sequences better than batch norm"),
        Variant(
            "no label smoothing",
            {"train": {"regularize": {"label_smoothing": 0.0}}},
            "label smoothing improves BLEU and worsens perplexity",
        ),
        Variant("greedy", {"decode": {"beam": 1}}, "beam search beats greedy search"),
    ]


def run_ladder(
    recipe: Recipe | dict[str, Any] | str | Path,
    out: Path,
    *,
    ablate: bool = False,
    overrides: Sequence[str] = (),
    device: str = "auto",
) -> tuple[Path, list[VariantResult]]:
    """Train and evaluate every variant into `out`; return the path of the report, and the results. Trained variants are only
    evaluated."""
    base = require_transformer(recipe, overrides)
    if isinstance(base.data.world, AlgorithmWorld):
        raise UserError(f"data.world.kind = {base.data.world.kind!r} has no sentences to score with BLEU: add --lengths")
    console = Console(stderr=True, highlight=False)
    results: list[VariantResult] = []
    for variant in (ablation_variants if ablate else ladder_variants)(base):
        console.print(f"\n{variant.name}", markup=False)
        if variant.pretrain is not None:
            run_variant(base, variant.pretrain, out, device)
        found = run_variant(base, variant, out, device)
        found.results[0].scores["bleu, longest third"] = _longest_third(found.results[0])
        results.append(found)
    return _write_report(base, results, out, ablate), results


def require_transformer(recipe: Recipe | dict[str, Any] | str | Path, overrides: Sequence[str]) -> Recipe:
    """Return a recipe of a Transformer that translates, or raise a UserError."""
    base = to_recipe(recipe, overrides)
    if base.task != "translate":
        raise UserError(f"task = {base.task!r}: a ladder needs task = 'translate'")
    if base.model.kind != "transformer":
        raise UserError(f"model.kind = {base.model.kind!r}: a ladder starts from the recipe of a Transformer")
    return base


def run_variant(base: Recipe, variant: Variant, out: Path, device: str) -> VariantResult:
    """Evaluate a variant, trained now or earlier."""
    folder = out / variant.name.lower().replace(",", "").replace(" ", "-")
    settings = merge_settings(base.model_dump(mode="json", exclude_none=True), variant.change)
    if init_from := settings["train"].get("init_from"):
        init_from["run"] = str((folder / init_from["run"]).resolve())
    trained = (folder / "model.safetensors").exists()
    run = load(folder, device=device) if trained else train(settings, folder, device=device, resume=False)
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return VariantResult(variant, cast(TranslateRun, run), evaluate(run), log[-1]["time"] - log[0]["time"])


def _longest_third(result: EvaluationResult) -> Score:
    """Return BLEU on the longest third of the sentences, where a single vector has to hold most."""
    lengths = [len(text.split()) for text in cast(SentencePairs, result.examples).source]
    longest = sorted(range(len(lengths)), key=lambda i: -lengths[i])[: max(1, len(lengths) // 3)]
    hypotheses, references = (
        [result.outputs[i] for i in longest],
        [cast(SentencePairs, result.examples).target[i] for i in longest],
    )
    return translation_scores(hypotheses, references, metrics=("bleu",))["bleu"]


def merge_settings(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return settings with a change; a change with a `kind` replaces the whole section."""
    merged = dict(base)
    for key, value in change.items():
        if not isinstance(value, dict):
            merged[key] = value
        elif "kind" in value:
            merged[key] = {k: v for k, v in value.items() if v is not None}
        else:
            merged[key] = merge_settings(base.get(key) or {}, value)
    return merged


def _write_report(base: Recipe, results: list[VariantResult], out: Path, ablate: bool) -> Path:
    """Write ladder.json, the figures, and ladder.html."""
    rows = [result.to_json() for result in results]
    atomic_write(out / "ladder.json", json.dumps(rows, indent=1) + "\n")
    report = HtmlReport(
        title="Ablation of the Transformer" if ablate else "From the RNN to the Transformer",
        summary=f"Every model is trained on the same data and tokens for {base.train.steps:,} steps.",
        facts=[("recipe", base.digest()), ("hardware", hardware(results[0].run.device))],
        tables=[("All models", HEADER, [result.row() for result in results])],
        notes=[f"{result.variant.name}: {result.variant.claim}." for result in results if result.variant.claim],
    )
    return write_report(out / "ladder.html", report, _figures(results))


def _figures(results: list[VariantResult]) -> dict[str, tuple[str, Figure]]:
    """Return BLEU by length of all models, and the attention of each that has one, on the same sentence."""
    series = {result.variant.name: result.results[0].by_length for result in results}
    figures: dict[str, tuple[str, Figure]] = {"length": ("BLEU by sentence length, with 95% intervals.", score_by_length(series))}
    sources = cast(SentencePairs, results[0].results[0].examples).source
    sentence = max(sources[:50], key=lambda text: len(text.split()))
    for i, result in enumerate(results):
        if result.run._attends and result.run._best([sentence])[0].tokens:  # an untrained model may give an empty translation
            found = result.run.align(sentence)
            weights, name = found.view()
            figure = attention_matrix(weights, found.source, found.target)
            figures[f"alignment-{i}"] = (f"{result.variant.name}: {name}.", figure)
    return figures
