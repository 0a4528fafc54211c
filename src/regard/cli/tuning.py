"""Verbs that train a recipe several times: lr-find, sweep, reproduce."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import AsJson, Device, Jobs, Set, app
from regard.cli.output import print_json, print_table
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.studies.reproduce import Reproduction


@app.command("lr-find")
def lr_find(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="Recipe file.")],
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the loss over the rate: .svg, .png, .pdf or .html.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 100,
    min_rate: Annotated[float, typer.Option("--min", help="Rate of the first step.")] = 1e-6,
    max_rate: Annotated[float, typer.Option("--max", help="Rate of the last step.")] = 1.0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Find a learning rate by a range test (Smith 2017).

    Train a few steps with a rate that grows from step to step, and suggest the rate at which the loss falls fastest. Nothing is
    written but the figure.
    """
    from regard.studies.lr_finder import lr_find as find

    result = find(recipe, overrides=set_ or [], device=device, steps=steps, min_rate=min_rate, max_rate=max_rate)
    if out is not None:
        result.figure.save(out)
    if as_json:
        print_json(suggestion=result.suggestion, lowest=result.lowest, rates=result.rates, losses=result.losses)
        return
    print(f"{result.suggestion:.1e}")
    print(
        f"the loss falls fastest at {result.suggestion:.1e} and rises from {result.lowest:.1e} on; "
        f"use it with: --set train.optimizer.learning_rate={result.suggestion:.1e}",
        file=sys.stderr,
    )


@app.command()
def sweep(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="Recipe file.")],
    grid: Annotated[
        list[str],
        typer.Option("--set", metavar="SETTING=VALUE,VALUE...", help="Values of a setting; all combinations are trained."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the runs; an interrupted sweep resumes.")] = Path("runs/sweep"),
    curve: Annotated[
        str | None,
        typer.Option(
            metavar="SETTING",
            help="Draw the accuracy over this setting, such as data.limit, and compare the first of the other settings with the "
            "rest by paired tests.",
        ),
    ] = None,
    jobs: Jobs = 1,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a recipe with every combination of some settings.

    Runs with several seeds (--set seed=1,2,3) are summarised by mean and standard deviation, and compared with the best setting
    by paired t-tests over the seeds. All GPUs of the machine are used, with --jobs runs each.
    """
    from regard.studies.sweep import run_sweep

    if curve is not None:
        print_curve(recipe, out, grid, curve, device, jobs, as_json)
        return
    result = run_sweep(recipe, out, grid, device=device, jobs=jobs)
    if as_json:
        print_json(**result.to_json())
        return
    metrics = list(result.settings[0].scores)
    rows = [
        [
            ", ".join(f"{name}={value}" for name, value in one.setting) or "as in the recipe",
            *(str(scores) for scores in one.scores.values()),
            *(("–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}") for p in list(result.p_values(one).values())[-1:]),
        ]
        for one in result.settings
    ]
    print_table(
        f"{out}: mean ± standard deviation over seeds, the best by {metrics[0]} first",
        ["setting", *metrics, f"p ({metrics[-1]})"],
        rows,
    )


def print_curve(recipe: Path, out: Path, grid: list[str], axis: str, device: str, jobs: int, as_json: bool) -> None:
    """Train the combinations of a grid, and print their learning curve."""
    from regard.studies.learning_curve import run_learning_curve

    found = run_learning_curve(recipe, out, grid, axis, device=device, jobs=jobs)
    if as_json:
        print_json(**found.to_json())
        return
    print_table(f"{out}: accuracy on {found.test}, mean ± standard deviation", [axis, *found.names], found.rows())
    if found.differences:
        header = [axis, f"{found.names[0]} less", "difference", "p (examples)", "p (seeds)"]
        print_table("paired tests", header, [one.row() for one in found.differences])
    print(found.report)


@app.command()
def reproduce(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="Recipe file.")],
    seeds: Annotated[
        str | None, typer.Option(metavar="N,N...", help="Seeds to train with [default: those of the reported score].")
    ] = None,
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs; an interrupted call resumes [default: runs/reproduce/RECIPE].")
    ] = None,
    jobs: Jobs = 1,
    measure: Annotated[
        bool, typer.Option("--measure", help="Print all scores as lines for the recipe; compare nothing.")
    ] = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a recipe again, and say whether it reaches its reported score.

    The recipe reports scores as score.SET.METRIC = { mean, spread, seeds }. The mean over the seeds must lie within two standard
    deviations of the reported mean; exit status 1 if it does not.
    """
    from regard.studies.reproduce import reproduce as train_again

    chosen = parse_seeds(seeds)
    folder = out or Path("runs", "reproduce", recipe.stem)
    found = train_again(recipe, folder, chosen, overrides=set_ or [], device=device, jobs=jobs, measure=measure)
    if as_json:
        print_json(recipe=str(recipe), scores=[one.to_json() for one in found])
    elif measure:
        print("\n".join(one.to_toml() for one in found))
    else:
        print_reproductions(recipe, found)
    if not measure and not all(one.is_within for one in found):
        raise typer.Exit(1)


def parse_seeds(text: str | None) -> list[int]:
    """Return the seeds in a list separated by commas or spaces."""
    parts = (text or "").replace(",", " ").split()
    if wrong := [part for part in parts if not part.isdecimal()]:
        raise UserError(f"--seeds {text}: {wrong[0]!r} is not a seed; give numbers, such as 1,2,3")
    return list(dict.fromkeys(map(int, parts)))


def print_reproductions(recipe: Path, found: "list[Reproduction]") -> None:
    """Print a row for each reported score: every seed, mean and standard deviation, the reported ones, and whether they agree."""
    seeds = list(found[0].measured.by_seed)
    rows = []
    for one in found:
        digits = one.measured.digits + 1
        reported = one.reported
        scores = (f"{one.measured.by_seed[seed]:.{digits}f}" for seed in seeds)
        spread = one.measured.spread
        measured = f"{one.measured.mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")
        expected = "" if reported is None else f"{reported.mean:.{digits}f} ± {reported.spread:.{digits}f}"
        rows.append([f"{one.test_set} {one.metric}", *scores, measured, expected, one.verdict])
    print_table(
        f"{recipe}: mean ± standard deviation; within: at most two reported standard deviations from the reported mean",
        ["score", *(f"seed {seed}" for seed in seeds), "measured", "reported", ""],
        rows,
    )
