"""The ladder: the history of attention, each step trained on the same data, tokens and budget; and the Transformer's parts, one
taken away at a time."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from regard.errors import UserError
from regard.hardware import hardware
from regard.recipe import AlgorithmWorld, Recipe
from regard.run.evaluate import evaluate
from regard.run.load import load
from regard.run.train import to_recipe, train
from regard.scoring import Score, translation_scores
from regard.show.figures.curves import score_by_length
from regard.show.figures.html_report import HtmlReport, html_report
from regard.show.figures.matrix import attention_matrix
from regard.show.figures.style import save_figure, to_svg
from regard.tasks.base import EvaluationResult
from regard.tasks.translate import TranslateRun

RECURRENT: dict[str, Any] = {"kind": "recurrent", "cell": "lstm", "encoder_layers": 2, "decoder_layers": 1, "tie": "target"}
ATTENTIVE: dict[str, Any] = {**RECURRENT, "attention": "general", "decoder": "luong", "input_feeding": True}

HEADER = ["", "BLEU", "longest third", "alignment error", "perplexity", "parameters", "training"]


@dataclass(frozen=True)
class Variant:
    """One model of a ladder: what it is called, what it changes, and what a lecture says of it."""

    name: str
    change: dict[str, Any]
    claim: str = ""
    before: "Variant | None" = None
    """Trained first, for its weights."""


@dataclass
class VariantResult:
    """A rung climbed."""

    rung: Variant
    run: TranslateRun
    result: EvaluationResult
    seconds: float
    parameters: int = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = sum(p.numel() for p in self.run.model.parameters())

    def row(self) -> list[str]:
        """Its line in the report's table."""

        def cell(metric: str, digits: int) -> str:
            score = self.result.scores.get(metric)
            return "–" if score is None else f"{score.score:.{digits}f} [{score.low:.{digits}f}, {score.high:.{digits}f}]"

        return [
            self.rung.name,
            cell("bleu", 1),
            cell("bleu, longest third", 1),
            cell("alignment_error", 3),
            cell("perplexity", 2),
            f"{self.parameters:,}",
            f"{self.seconds:.0f} s",
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.rung.name,
            "claim": self.rung.claim,
            "parameters": self.parameters,
            "seconds": round(self.seconds, 1),
            "scores": {metric: score.to_json() for metric, score in self.result.scores.items()},
            "by_length": self.result.by_length,
        }


def ladder_variants(recipe: Recipe) -> list[Variant]:
    """RNN, RNN with attention, the same from the encoder of the reverse direction, Transformer, Universal Transformer."""
    width = 2 * recipe.model.width
    universal = {**recipe.model.model_dump(mode="json", exclude_none=True), "kind": "universal", "encoder_widths": None}
    reverse = Variant("reverse direction", {"model": {**ATTENTIVE, "width": width}, "data": {"reverse": True}})
    begin = {"init_from": {"run": "../reverse-direction", "modules": ["encoder."], "tokenizer": False}}
    return [
        Variant("RNN", {"model": {**RECURRENT, "attention": "none", "width": width}}, "the whole source through one vector"),
        Variant("RNN with attention", {"model": {**ATTENTIVE, "width": width}}, "looks back at every word"),
        Variant(
            "RNN with attention, CoVe",
            {"model": {**ATTENTIVE, "width": width}, "train": begin},
            "its encoder has translated before",
            reverse,
        ),
        Variant("Transformer", {}, "attention is all it has"),
        Variant("Universal Transformer", {"model": universal}, "one block, as often as a word needs"),
    ]


def ablation_variants(recipe: Recipe) -> list[Variant]:
    """What the lectures say each part of the Transformer is for, by taking it away."""

    def without(**change: Any) -> dict[str, Any]:
        return {"model": change}

    return [
        Variant("as it is", {}),
        Variant("one head", without(heads=1, key_width=recipe.model.width), "several heads look at several things at once"),
        Variant("no score scaling", without(scale_scores=False), "unscaled scores saturate the softmax"),
        Variant("no positions", without(positions={"kind": "none"}), "without positions a sentence is a bag of words"),
        Variant("learned positions", without(positions={"kind": "learned"}), "learned positions do as well as sinusoids"),
        Variant("no residuals", without(residual=False), "residual connections make depth trainable"),
        Variant("batch norm", without(norm="batch"), "layer norm suits sequences better than batch norm"),
        Variant(
            "no label smoothing",
            {"train": {"regularize": {"label_smoothing": 0.0}}},
            "label smoothing helps BLEU and hurts perplexity",
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
) -> Path:
    """Train and score every rung into `out`, and write its report; rungs already there are only scored."""
    base = require_transformer(recipe, overrides)
    if isinstance(base.data.world, AlgorithmWorld):
        raise UserError(f"data.world.kind = {base.data.world.kind!r} has no sentences to score with BLEU: add --lengths")
    console = Console(stderr=True, highlight=False)
    steps = []
    for rung in (ablation_variants if ablate else ladder_variants)(base):
        console.print(f"\n{rung.name}", markup=False)
        if rung.before is not None:
            run_variant(base, rung.before, out, device)
        steps.append(run_variant(base, rung, out, device))
    return write_ladder_report(base, steps, out, ablate)


def require_transformer(recipe: Recipe | dict[str, Any] | str | Path, overrides: Sequence[str]) -> Recipe:
    base = to_recipe(recipe, overrides)
    if base.task != "translate":
        raise UserError(f"a ladder is for task = 'translate', not {base.task!r}")
    if base.model.kind != "transformer":
        raise UserError(f"a ladder starts from a Transformer's recipe, not from model.kind = {base.model.kind!r}")
    return base


def run_variant(base: Recipe, rung: Variant, out: Path, device: str) -> VariantResult:
    run, seconds = train_or_load(base, rung, out, device)
    result = evaluate(run)[0]
    result.scores["bleu, longest third"] = longest_third(result)
    return VariantResult(rung, run, result, seconds)


def train_or_load(base: Recipe, rung: Variant, out: Path, device: str) -> tuple[Any, float]:
    """A rung's run, trained now or found, and the seconds that its training took."""
    folder = out / rung.name.lower().replace(",", "").replace(" ", "-")
    settings = merge_settings(base.model_dump(mode="json", exclude_none=True), rung.change)
    if begin := settings["train"].get("init_from"):
        begin["run"] = str((folder / begin["run"]).resolve())
    if (folder / "model.safetensors").exists():
        run = load(folder, device=device)
    else:
        run = train(settings, folder, device=device, resume=False)
    return run, training_seconds(folder)


def longest_third(result: EvaluationResult) -> Score:
    """BLEU of the third of the sentences that have the most words, where one vector for all of them is too little."""
    lengths = [len(text.split()) for text in result.examples.source]
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])[: max(1, len(lengths) // 3)]
    said, meant = [result.outputs[i] for i in order], [result.examples.target[i] for i in order]
    return translation_scores(said, meant, metrics=("bleu",))["bleu"]


def merge_settings(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Settings with a change; a model of another kind replaces the whole part."""
    merged = dict(base)
    for key, value in change.items():
        replaces = not isinstance(value, dict) or "kind" in value
        merged[key] = (
            {k: v for k, v in value.items() if v is not None}
            if isinstance(value, dict) and replaces
            else value
            if replaces
            else merge_settings(base.get(key) or {}, value)
        )
    return merged


def training_seconds(folder: Path) -> float:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return records[-1]["time"] - records[0]["time"]


def write_ladder_report(base: Recipe, steps: list[VariantResult], out: Path, ablate: bool) -> Path:
    """ladder.json, the pictures, and ladder.html."""
    rows = [step.to_json() for step in steps]
    (out / "ladder.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    figures = draw_ladder_figures(steps)
    for name, (_, figure) in figures.items():
        save_figure(figure, out / "pictures" / f"{name}.svg")
    title = "What each part of the Transformer is for" if ablate else "From the RNN to the Transformer"
    report = HtmlReport(
        title=title,
        summary=f"Every model on the same data, tokens and budget of {base.train.steps:,} steps.",
        facts=[("recipe", base.digest()), ("hardware", hardware(steps[0].run.device))],
        tables=[("Every step", HEADER, [step.row() for step in steps])],
        notes=[f"{step.rung.name}: {step.rung.claim}." for step in steps if step.rung.claim],
        figures=[(caption, to_svg(figure, name)) for name, (caption, figure) in figures.items()],
    )
    path = out / "ladder.html"
    path.write_text(html_report(report), encoding="utf-8")
    return path


def draw_ladder_figures(steps: list[VariantResult]) -> dict[str, tuple[str, Any]]:
    """BLEU by length of all, and what each that attends looked at in the same sentence."""
    series = {step.rung.name: step.result.by_length for step in steps}
    figures: dict[str, tuple[str, Any]] = {"length": ("BLEU by sentence length, with 95% intervals.", score_by_length(series))}
    sources = steps[0].result.examples.source
    sentence = max(sources[:50], key=lambda text: len(text.split()))
    for number, step in enumerate(steps):
        if step.run._attends and step.run._best([sentence])[0].tokens:  # one that has learned nothing may say nothing
            found = next(step.run.align([sentence]))
            weights, name = found.view()
            figures[f"alignment-{number}"] = (f"{step.rung.name}: {name}.", attention_matrix(weights, found.source, found.target))
    return figures
