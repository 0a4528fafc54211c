"""Verbs for training and evaluation: demo, new, world, train, evaluate, compare, ladder."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import (
    AsJson,
    Device,
    Engine,
    Ensemble,
    Gold,
    Jobs,
    LabelColumn,
    Precision,
    Reference,
    RunFolder,
    Set,
    Source,
    SourceLanguage,
    TargetLanguage,
    Task,
    TextColumn,
    TextPairColumn,
    app,
    use_languages,
)
from regard.cli.output import print_json, print_results, print_table
from regard.errors import UserError


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run; an earlier demo there is replaced.")] = Path("runs/demo"),
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Train and inspect a small model, in two minutes.

    Train the 2017 Transformer on an embedded bilingual world, score it, translate, and plot its attention.
    """
    from regard.studies.demo import run_demo

    run_demo(out, device=device, overrides=set_ or [])


@app.command()
def new(
    task: Annotated[
        str,
        typer.Argument(
            help="Task: translate, text-to-text, language, masked, span-corruption, classify, regress, tag, answer, caption, "
            "contrastive, image-codes or text-to-image."
        ),
    ],
    source: Source = None,
    target: Annotated[Path | None, typer.Option(help="Translation of --source, line by line.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Source and target in one table: .tsv, .csv, .jsonl or .parquet.")] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Data of other tasks: text, labelled texts (.tsv, .csv, .jsonl, .parquet), tagged words, questions (.json, "
            ".jsonl), captioned images (.tsv, .jsonl, .tar); for text-to-text one file per task. May be repeated."
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            help="Images to classify: a folder with a subfolder for each label, or with such folders in train and valid."
        ),
    ] = None,
    text: TextColumn = None,
    text_pair: TextPairColumn = None,
    label: LabelColumn = None,
    columns: Annotated[str | None, typer.Option(metavar="SOURCE,TARGET", help="Columns of --pairs.")] = None,
    stream: Annotated[
        bool | None,
        typer.Option("--stream/--lines", help="Plain text of a language model is running text, or one example per line."),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(min=0, help="Training time on this machine; 0 does not time it, and fits the recipe to the data alone."),
    ] = 60,
    device: Device = "auto",
    init_from: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="Fine-tune this run or Hugging Face folder, with its architecture."),
    ] = None,
) -> None:
    """Print a starter recipe for your own data.

    The files are looked at: what was understood is printed to standard error. Unless --minutes is 0, a training step is timed on
    this machine, and model and steps are chosen to fit.
    """
    from regard.plan.budget import fit_to_budget
    from regard.tasks import starter_recipe
    from regard.tasks.shared.init_from import finetuning_starter
    from regard.tasks.starters.image_starters import image_classification_recipe
    from regard.tasks.starters.starter import StarterOptions

    if images is not None:
        starter = image_classification_recipe(task, images)
    else:
        options = StarterOptions(text, text_pair, label, columns, stream)
        starter = starter_recipe(task, [path for path in (source, target, pairs, *(data or [])) if path is not None], options)
    for line in starter.understood:
        print(line, file=sys.stderr)
    if init_from is not None:
        starter = finetuning_starter(starter, init_from)
    fitted = fit_to_budget(starter, minutes, device)
    for line in fitted.notes:
        print(line, file=sys.stderr)
    print(fitted.toml, end="")


@app.command()
def world(
    kind: Annotated[str, typer.Argument(metavar="bilingual|shapes", help="Which embedded world to write.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    number: Annotated[int, typer.Option(help="Number of training sentences or images.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 1,
    level: Annotated[int | None, typer.Option(help="Difficulty of bilingual, 1 to 3 [default: 3].")] = None,
    size: Annotated[int | None, typer.Option(help="Width and height of shapes images in pixels [default: 32].")] = None,
) -> None:
    """Write an embedded data set to files.

    bilingual: sentences, word alignments and antecedents; shapes: images, captions, boxes and labels.
    """
    from regard.progress import show_progress

    if kind not in ("bilingual", "shapes"):
        raise UserError(f"no world {kind!r}; choose from: bilingual, shapes")
    if kind == "bilingual":
        from regard.worlds import bilingual

        if size is not None:
            raise UserError(f"--size {size}: the bilingual world has no images; leave it out")
        with show_progress("writing sentences"):
            bilingual.write(out, number, seed, 3 if level is None else level)
    else:
        from regard.worlds import shapes

        if level is not None:
            raise UserError(f"--level {level}: the world of shapes has no levels; leave it out")
        with show_progress("writing images"):
            shapes.write(out, number, seed, 32 if size is None else size)
    print(f"wrote {out}: {', '.join(sorted(path.name for path in out.iterdir()))}", file=sys.stderr)


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE|RUN", help="Recipe file, or a run folder with --resume.")],
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to create.")] = None,
    device: Device = "auto",
    precision: Annotated[
        str | None,
        typer.Option(metavar="auto|fp32|bf16", help="The same as --set train.precision=… [default: from the recipe]."),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue from the newest intact checkpoint.")] = False,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="STEP", help="With --resume: continue from this checkpoint; later ones are set aside."),
    ] = None,
    verify: Annotated[
        int,
        typer.Option(min=0, metavar="STEPS", help="With --resume: first repeat the last steps and compare them bit by bit."),
    ] = 0,
    accept_changes: Annotated[
        bool,
        typer.Option("--accept-changes", help="With --resume: continue although data or settings changed; the card states it."),
    ] = False,
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="tensorboard|wandb|mlflow", help="Also log there; may be repeated. The same as train.log."),
    ] = None,
    live: Annotated[
        bool, typer.Option(help="Write training.html into the run folder: curves, outputs and attention as the model learns.")
    ] = True,
    evaluate: Annotated[bool, typer.Option(help="Evaluate on the test sets at the end.")] = True,
) -> None:
    """Train a recipe, or resume a run."""
    from regard.run.card import write_card
    from regard.run.evaluate import evaluate as evaluate_run
    from regard.run.train import train as train_recipe
    from regard.show.training_view import TrainingView

    overrides = [*(set_ or []), *([] if precision is None else [f"train.precision={precision}"])]
    overrides += [f"train.log={json.dumps(log)}"] if log else []
    run = train_recipe(
        recipe,
        out,
        overrides=overrides,
        device=device,
        resume=resume,
        start=start,
        verify=verify,
        accept_changes=accept_changes,
        callbacks=[TrainingView()] if live else [],
    )
    results = evaluate_run(run) if evaluate else []
    write_card(run)
    print_results(results)
    print(f"done: {run.folder}", file=sys.stderr)


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Examples in the format of the recipe's data: a table, tagged words, questions, images or text."
        ),
    ] = None,
    text: TextColumn = None,
    text_pair: TextPairColumn = None,
    label: LabelColumn = None,
    source: Source = None,
    reference: Reference = None,
    gold: Gold = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Score translations by one more metric: chrf++, comet, or comet:MODEL with a name on the hub or a checkpoint "
            "file; may be repeated.",
        ),
    ] = None,
    task: Task = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    ensemble: Ensemble = None,
    device: Device = "auto",
    precision: Precision = None,
    engine: Engine = "regard",
    as_json: AsJson = False,
) -> None:
    """Score a run on test sets.

    The test sets are those of its recipe, or the given files; scores have confidence intervals and signatures. Those of an
    ensemble are printed, and not written into the run folder.
    """
    from regard.run.card import write_card
    from regard.run.evaluate import evaluate as evaluate_run
    from regard.run.load import load_native
    from regard.tasks.starters.starter import StarterOptions

    if as_json and engine != "regard":
        raise UserError(f"--engine {engine}: --json prints the scores of our own engine only; leave one of them out")
    opened = load_native(run, ensemble=ensemble or (), device=device)
    use_languages(opened, source_language, target_language)
    if precision is not None or engine != "regard":
        from regard.run.engines import use_engine

        use_engine(opened, engine, precision)
    results = evaluate_run(
        opened,
        data=data,
        source=source,
        reference=reference,
        task=task,
        gold=gold,
        columns=StarterOptions(text, text_pair, label) if text or text_pair or label else None,
        metrics=metrics or [],
        save=opened._huggingface is None and not ensemble,
    )
    if not ensemble:
        write_card(opened)
    if as_json:
        for result in results:
            for metric, value in result.scores.items():
                print_json(set=result.name, metric=metric, **value.to_json())
    else:
        print_results(results)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Run folders, the baseline first.")],
    source: Source = None,
    reference: Reference = None,
    task: Task = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare runs by paired significance tests."""
    from regard.run.evaluate import compare_runs
    from regard.run.load import load_native

    if len(runs) < 2:
        raise UserError("compare needs at least two run folders, the baseline first")
    opened = [load_native(run, device=device) for run in runs]
    for name, rows in compare_runs(opened, source=source, reference=reference, task=task).items():
        if as_json:
            for row in rows:
                print_json(set=name, **row)
            continue
        cells = [
            [
                str(row["system"]),
                str(row["metric"]),
                f"{row['score']:.1f}",
                f"{row['ci']:.1f}",
                "baseline" if row["p_value"] is None else f"{row['p_value']:.3f}",
            ]
            for row in rows
        ]
        print_table(name, ["system", "metric", "score", "±", "p"], cells)


@app.command()
def ladder(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="Recipe of a Transformer.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/ladder"),
    set_: Set = None,
    ablate: Annotated[bool, typer.Option("--ablate", help="Instead, remove the Transformer's components one at a time.")] = False,
    lengths: Annotated[
        bool,
        typer.Option(
            "--lengths",
            help="Instead, compare a Transformer and a Universal Transformer of the same size on an algorithm, tested on "
            "longer inputs than in training.",
        ),
    ] = False,
    jobs: Jobs = 1,
    device: Device = "auto",
) -> None:
    """Train RNN to Universal Transformer on one recipe.

    Train the history of attention on the data of one recipe, from the RNN to the Universal Transformer, and compare the models.
    """
    from regard.studies.ladder import results_table, run_ladder
    from regard.studies.lengths import run_length_study

    if lengths and ablate:
        raise UserError("--lengths and --ablate are two different studies: give one of them")
    if lengths:
        print(run_length_study(recipe, out, overrides=set_ or [], device=device))
        return
    report, results = run_ladder(recipe, out, ablate=ablate, overrides=set_ or [], device=device, jobs=jobs)
    print_table(results[0].first.results[0].name, *results_table(results))
    print(report)
