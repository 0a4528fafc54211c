"""The demo: train, score, translate and visualise on the embedded bilingual world."""

import json
import shutil
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import cast

from matplotlib.figure import Figure
from rich.console import Console

from regard.corpus.examples import SentencePairs
from regard.hardware import hardware
from regard.run.card import write_card
from regard.run.evaluate import evaluate
from regard.run.train import train
from regard.show.figures.curves import score_by_length, training_curves
from regard.show.figures.html_pages import HtmlReport
from regard.show.figures.matrix import attention_matrix
from regard.show.training_view import TrainingView
from regard.studies.report import count_parameters, write_report
from regard.tasks import parse_recipe, read_recipe
from regard.tasks.shared.gold import align_gold, best_alignment_head
from regard.tasks.task import EvaluationResult
from regard.tasks.translate import TranslateRun

EXAMPLES = 5


def run_demo(out: Path, *, device: str = "auto", overrides: Sequence[str] = ()) -> Path:
    """Train the demo into `out`, print its scores and some translations, and return the path of its report."""
    console, start = Console(highlight=False), time.perf_counter()

    def show(text: str = "") -> None:
        console.print(text, markup=False, soft_wrap=True)

    text = files("regard.studies").joinpath("demo.toml").read_text(encoding="utf-8")
    recipe = parse_recipe(text, list(overrides), name="the demo's recipe")
    _remove_previous_demo(out)
    show("Training a small Transformer from scratch to translate English into German, on sentences of an embedded world.\n")
    run = cast(TranslateRun, train(recipe, out, device=device, callbacks=[TrainingView()]))
    result = evaluate(run)[0]
    show(f"\nScores on {len(result.examples):,} held-out sentences, with 95% intervals:\n")
    for metric, score in result.scores.items():
        show(f"  {metric.replace('_', ' '):<16} {score.score:7.3f}   [{score.low:.3f}, {score.high:.3f}]")
    for note in result.notes:
        show(f"  {note}")
    show("\nTranslations of held-out sentences:\n")
    for source, hypothesis, reference in _examples(result):
        mistake = "" if hypothesis == reference else f"\n  (reference: {reference})"
        show(f"  {source}\n  {hypothesis}{mistake}\n")
    write_card(run)
    report = _write_report(run, result, time.perf_counter() - start)
    show(f"Finished in {time.perf_counter() - start:.0f} seconds. Open {report} in a browser for the figures. Next, try:\n")
    for command in _commands(run, result):
        show(f"  {command}")
    show(f"\nTo explore the model in a browser: regard serve {run.folder}, then open http://127.0.0.1:8000")
    return report


def _remove_previous_demo(out: Path) -> None:
    """Remove the folder of an earlier demo, and nothing else."""
    recipe_file, report_file = out / "recipe.toml", out / "report.html"
    if recipe_file.is_file() and report_file.is_file() and read_recipe(recipe_file).data.world is not None:
        shutil.rmtree(out)


def _examples(result: EvaluationResult) -> list[tuple[str, str, str]]:
    """Return source, hypothesis and reference of held-out sentences: the first with an "it", and the first without."""
    gold = cast(SentencePairs, result.examples).gold or []
    with_pronoun = [i for i, pair in enumerate(gold) if pair.pronouns][: EXAMPLES - 2]
    without = [i for i, pair in enumerate(gold) if not pair.pronouns][: EXAMPLES - len(with_pronoun)]
    return [
        (cast(SentencePairs, result.examples).source[i], result.outputs[i], cast(SentencePairs, result.examples).target[i])
        for i in (*with_pronoun, *without)
    ]


def _commands(run: TranslateRun, result: EvaluationResult) -> list[str]:
    sentence = next(pair.source for pair in cast(SentencePairs, result.examples).gold or [] if pair.pronouns)
    return [
        f'regard translate {run.folder} "{sentence}"',
        f'regard show {run.folder} "{sentence}" --head aligner --terminal',
        f'regard show {run.folder} "{sentence}" --heads --out heads.svg',
        "regard new translate --source your.en --target your.de",
    ]


def _write_report(run: TranslateRun, result: EvaluationResult, seconds: float) -> Path:
    """Write report.html and its figures."""
    scores = [
        (result.name, metric.replace("_", " "), f"{score.score:.3f}", f"{score.low:.3f} – {score.high:.3f}", score.signature)
        for metric, score in result.scores.items()
    ]
    model, world = run.recipe.model, run.recipe.data.world
    report = HtmlReport(
        title="A Transformer and what it attends to",
        summary=f"Trained from scratch in {seconds:.0f} seconds on sentences of an embedded English–German world, "
        "then tested on held-out sentences.",
        facts=[
            ("model", f"{model.encoder_layers}+{model.decoder_layers} layers of width {model.width}"),
            ("parameters", f"{count_parameters(run.model):,}"),
            ("data", f"{world.number:,} sentence pairs of level {world.level}" if world else ""),
            ("hardware", hardware(run.device)),
            ("recipe", run.recipe.digest()),
        ],
        tables=[("Scores", ["set", "metric", "score", "95% interval", "signature"], scores)],
        notes=result.notes,
        examples=_examples(result),
        commands=_commands(run, result),
    )
    return write_report(run.folder / "report.html", report, _figures(run, result))


def _figures(run: TranslateRun, result: EvaluationResult) -> dict[str, tuple[str, Figure]]:
    """Return the figures by name: (caption, figure)."""
    gold = next(pair for pair in cast(SentencePairs, result.examples).gold or [] if pair.pronouns)
    layer, head = best_alignment_head(run)
    weights, name = next(align_gold(run, [gold])).view(layer, head)
    log = [json.loads(line) for line in (run.folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    it = gold.pronouns[0]
    caption = (
        f"Cross-attention of each German word of the reference ({name}, the best aligner on validation sentences). "
        f"“it” refers to “{gold.source.split()[it.antecedent_source].strip('.,')}”, hence “{it.form}”."
    )
    return {
        "attention": (
            caption,
            attention_matrix(
                weights, gold.source.split(), gold.target.split(), title=f"cross-attention, {name}", gold=gold.alignment
            ),
        ),
        "training": ("Training loss and validation score.", training_curves(log)),
        "length": ("BLEU by sentence length, with 95% intervals.", score_by_length({run.folder.name: result.by_length})),
    }
