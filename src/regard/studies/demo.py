"""The main job on the embedded world: train, score, translate, picture."""

import json
import shutil
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import cast

from rich.console import Console

from regard.hardware import hardware
from regard.recipe import Recipe
from regard.run.card import write_card
from regard.run.evaluate import evaluate
from regard.run.train import train
from regard.show.figures.curves import score_by_length, training_curves
from regard.show.figures.html_report import HtmlReport, html_report
from regard.show.figures.matrix import attention_matrix
from regard.show.figures.style import save_figure, to_svg
from regard.tasks import parse_recipe, read_recipe
from regard.tasks.base import EvaluationResult
from regard.tasks.shared.gold import align_gold, best_alignment_head
from regard.tasks.translate import TranslateRun

EXAMPLES = 5


def run_demo(out: Path, *, device: str = "auto", overrides: Sequence[str] = ()) -> Path:
    """Make the demonstration's run folder anew; returns its report."""
    console, begun = Console(highlight=False), time.perf_counter()
    text = files("regard.studies").joinpath("demo.toml").read_text(encoding="utf-8")
    recipe = parse_recipe(text, list(overrides), name="the demo's recipe")
    remove_previous_demo(out, recipe)
    console.print(
        "A Transformer learns to translate English into German, from nothing, on sentences of an embedded world.\n", markup=False
    )
    run = cast(TranslateRun, train(recipe, out, device=device))
    result = evaluate(run)[0]
    print_result(console, result)
    write_card(run)
    report = write_report(run, result, time.perf_counter() - begun)
    console.print(f"\n{time.perf_counter() - begun:.0f} seconds in all. Look at {report} in a browser, then try:", markup=False)
    for command in commands(run, result):
        console.print(f"  {command}", markup=False, soft_wrap=True)
    console.print(
        f"Or point at all of it in a browser: regard serve {run.folder}, then open http://127.0.0.1:8000",
        markup=False,
        soft_wrap=True,
    )
    return report


def remove_previous_demo(out: Path, recipe: Recipe) -> None:
    """Remove an earlier demonstration, and nothing else."""
    recipe_file, report_file = out / "recipe.toml", out / "report.html"
    if recipe_file.is_file() and report_file.is_file() and read_recipe(recipe_file).data.world is not None:
        shutil.rmtree(out)


def print_result(console: Console, result: EvaluationResult) -> None:
    console.print()
    for metric, score in result.scores.items():
        console.print(f"{metric.replace('_', ' '):<16} {score.score:7.3f}   [{score.low:.3f}, {score.high:.3f}]", markup=False)
    for note in result.notes:
        console.print(note, markup=False)
    console.print()
    for source, hypothesis, reference in examples(result):
        wanted = "" if hypothesis == reference else f"\n  (reference: {reference})"
        console.print(f"  {source}\n  {hypothesis}{wanted}\n", markup=False, soft_wrap=True)


def examples(result: EvaluationResult) -> list[tuple[str, str, str]]:
    """Held-out sentences: the first with an "it", and the first without."""
    gold = result.examples.gold or []
    riddles = [i for i, pair in enumerate(gold) if pair.pronouns][: EXAMPLES - 2]
    plain = [i for i, pair in enumerate(gold) if not pair.pronouns][: EXAMPLES - len(riddles)]
    return [(result.examples.source[i], result.outputs[i], result.examples.target[i]) for i in (*riddles, *plain)]


def commands(run: TranslateRun, result: EvaluationResult) -> list[str]:
    sentence = next(pair.source for pair in result.examples.gold or [] if pair.pronouns)
    return [
        f'regard translate {run.folder} "{sentence}"',
        f'regard show {run.folder} "{sentence}" --terminal',
        f'regard show {run.folder} "{sentence}" --heads --out heads.svg',
        "regard new translate --source your.en --target your.de",
    ]


def write_report(run: TranslateRun, result: EvaluationResult, seconds: float) -> Path:
    """report.html and the pictures it shows."""
    figures = draw_figures(run, result)
    for name, (_, figure) in figures.items():
        save_figure(figure, run.folder / "pictures" / f"{name}.svg")
    report = HtmlReport(
        title="A Transformer, seen through",
        summary=f"Trained from nothing in {seconds:.0f} seconds on sentences of an embedded English–German world, "
        "then tested on sentences it has never seen.",
        facts=facts(run),
        scores=[
            (result.name, metric.replace("_", " "), f"{score.score:.3f}", f"{score.low:.3f} – {score.high:.3f}", score.signature)
            for metric, score in result.scores.items()
        ],
        notes=result.notes,
        examples=examples(result),
        figures=[(caption, to_svg(figure, name)) for name, (caption, figure) in figures.items()],
        commands=commands(run, result),
    )
    path = run.folder / "report.html"
    path.write_text(html_report(report), encoding="utf-8")
    return path


def facts(run: TranslateRun) -> list[tuple[str, str]]:
    model, world = run.recipe.model, run.recipe.data.world
    parameters = sum(p.numel() for p in run.model.parameters())
    layers = f"{model.encoder_layers}+{model.decoder_layers} layers"
    return [
        ("model", f"{layers} of {model.width}, {parameters:,} parameters"),
        ("data", f"{world.number:,} pairs of level {world.level}" if world else ""),
        ("hardware", hardware(run.device)),
        ("recipe", run.recipe.digest()),
    ]


def draw_figures(run: TranslateRun, result: EvaluationResult):
    """The pictures by name: (caption, figure)."""
    gold = next(pair for pair in result.examples.gold or [] if pair.pronouns)
    layer, head = best_alignment_head(run)
    weights, name = next(align_gold(run, [gold])).view(layer, head)
    records = [json.loads(line) for line in (run.folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    it = gold.pronouns[0]
    caption = (
        "What each German word looked at while the reference was read "
        f"({name}, the best aligner on validation sentences). "
        f"“it” means “{gold.source.split()[it.antecedent_source].strip('.,')}”, hence “{it.form}”."
    )
    return {
        "attention": (caption, attention_matrix(weights, gold.source.split(), gold.target.split(), gold=gold.alignment)),
        "training": ("The loss and the validation score while training.", training_curves(records)),
        "length": ("BLEU by sentence length, with 95% intervals.", score_by_length({run.folder.name: result.by_length})),
    }
