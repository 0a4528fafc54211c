"""Make a recipe, train it, score it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import AsJson, Device, Engine, Gold, Precision, Reference, RunFolder, Set, Source, Task, app
from regard.cli.output import print_json, print_results, print_table
from regard.errors import UserError


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run; made anew.")] = Path("runs/demo"),
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Train the 2017 Transformer on the embedded world, score it, translate, and draw what it attends to."""
    from regard.studies.demo import run_demo

    run_demo(out, device=device, overrides=set_ or [])


@app.command()
def new(
    task: Annotated[
        str,
        typer.Argument(
            help="What to train for: translate, text-to-text, language, masked, classify, tag, "
            "answer, caption, contrastive, image-codes or text-to-image."
        ),
    ],
    source: Source = None,
    target: Annotated[Path | None, typer.Option(help="Its translation, line by line.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Or both in one .tsv or .jsonl file.")] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="For other tasks: text, labelled texts (.tsv, .jsonl), "
            "tagged words, questions (.json, .jsonl), pictures with captions (.tsv, "
            ".jsonl, .tar); for text-to-text a file a task."
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            help="To classify pictures: a folder with a folder for each label, or with such folders in train and valid."
        ),
    ] = None,
) -> None:
    """Write a starter recipe for one's own data to standard output."""
    from regard.tasks.starters.starter import starter_recipe
    from regard.tasks.starters.starter_pictures import image_classification_recipe

    if pictures is not None:
        print(image_classification_recipe(task, pictures), end="")
        return
    print(starter_recipe(task, [path for path in (source, target, pairs, *(data or [])) if path is not None]), end="")


@app.command()
def world(
    kind: Annotated[str, typer.Argument(help="Which world: bilingual or shapes.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    number: Annotated[int, typer.Option(help="Training sentences or pictures.")] = 10_000,
    seed: int = 1,
    level: Annotated[int | None, typer.Option(help="Difficulty of bilingual, 1 to 3; 3 when not given.")] = None,
    size: Annotated[int | None, typer.Option(help="Pixels across a picture of shapes; 32 when not given.")] = None,
) -> None:
    """Write an embedded world as plain files: text, gold word alignments, antecedents; or pictures, captions, boxes, labels."""
    if kind not in ("bilingual", "shapes"):
        raise UserError(f"no world {kind!r}; there are: bilingual, shapes")
    if kind == "bilingual":
        from regard.worlds import bilingual

        if size is not None:
            raise UserError(f"--size {size}: the bilingual world has no pictures; leave it out")
        bilingual.write(out, number, seed, 3 if level is None else level)
    else:
        from regard.worlds import shapes

        if level is not None:
            raise UserError(f"--level {level}: the world of shapes has no levels; leave it out")
        shapes.write(out, number, seed, 32 if size is None else size)
    print(f"wrote {out}: {', '.join(sorted(path.name for path in out.iterdir()))}", file=sys.stderr)


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE|RUN", help="A recipe, or with --resume a run folder.")],
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to make.")] = None,
    device: Device = "auto",
    precision: Annotated[
        str | None, typer.Option(metavar="auto|fp32|bf16", help="As --set train.precision=…; the recipe's when not given.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on from the newest good checkpoint.")] = False,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="STEP", help="With --resume: go on from this checkpoint; those after it are set aside."),
    ] = None,
    verify: Annotated[
        int, typer.Option(min=0, metavar="STEPS", help="With --resume: run the last steps again first, and compare every bit.")
    ] = 0,
    board: Annotated[bool, typer.Option(help="Write TensorBoard files too.")] = False,
    evaluate: Annotated[bool, typer.Option(help="Score the test sets at the end.")] = True,
) -> None:
    """Train a recipe into a run folder."""
    from regard.run.card import write_card
    from regard.run.evaluate import evaluate as score
    from regard.run.train import train as fit

    chosen = [] if precision is None else [f"train.precision={precision}"]
    run = fit(
        recipe, out, overrides=[*(set_ or []), *chosen], device=device, resume=resume, board=board, start=start, verify=verify
    )
    results = score(run) if evaluate else []
    write_card(run)
    print_results(results)
    print(f"done: {run.folder}", file=sys.stderr)


@app.command()
def evaluate(
    run: RunFolder,
    source: Source = None,
    reference: Reference = None,
    gold: Gold = None,
    task: Task = None,
    device: Device = "auto",
    precision: Precision = None,
    engine: Engine = "regard",
    as_json: AsJson = False,
) -> None:
    """Score a run on its recipe's test sets, or on given files; with intervals and signatures."""
    from regard.run.card import write_card
    from regard.run.evaluate import evaluate as score
    from regard.run.load import load

    if as_json and engine != "regard":
        raise UserError(f"--engine {engine}: scores as --json are always our own engine's; leave one of them out")
    opened = load(run, device=device)
    if precision is not None or engine != "regard":
        from regard.run.engines import use_engine

        use_engine(opened, engine, precision)
    results = score(opened, source=source, reference=reference, task=task, gold=gold, save=opened._huggingface is None)
    write_card(opened)
    if as_json:
        for result in results:
            for metric, value in result.scores.items():
                print_json(set=result.name, metric=metric, **value.to_json())
    else:
        print_results(results)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="The baseline first.")],
    source: Source = None,
    reference: Reference = None,
    task: Task = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Is one run better than another? Paired significance tests."""
    from regard.run.evaluate import compare_runs
    from regard.run.load import load

    if len(runs) < 2:
        raise UserError("compare needs at least two run folders, the baseline first")
    opened = [load(run, device=device) for run in runs]
    for name, rows in compare_runs(opened, source=source, reference=reference, task=task).items():
        if as_json:
            for row in rows:
                print_json(set=name, **row)
        else:
            print_table(
                name,
                ["system", "metric", "score", "±", "p"],
                [
                    [
                        row["system"],
                        row["metric"],
                        f"{row['score']:.1f}",
                        f"{row['ci']:.1f}",
                        "baseline" if row["p_value"] is None else f"{row['p_value']:.3f}",
                    ]
                    for row in rows
                ],
            )


@app.command()
def ladder(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe of a Transformer.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs and their report.")] = Path("runs/ladder"),
    set_: Set = None,
    ablate: Annotated[bool, typer.Option("--ablate", help="Take the Transformer's parts away, one at a time.")] = False,
    lengths: Annotated[
        bool,
        typer.Option(
            "--lengths",
            help="Transformer and Universal Transformer of the same size on an "
            "algorithm, tested on longer inputs than they were trained on.",
        ),
    ] = False,
    device: Device = "auto",
) -> None:
    """Train the history of attention on one recipe's data, from the RNN to the Universal Transformer; report every step."""
    from regard.studies.ladder import run_ladder
    from regard.studies.lengths import run_length_study

    if lengths and ablate:
        raise UserError("--lengths and --ablate are two ladders: give one of them")
    if lengths:
        print(run_length_study(recipe, out, overrides=set_ or [], device=device))
        return
    print(run_ladder(recipe, out, ablate=ablate, overrides=set_ or [], device=device))
