"""show: what a model attends to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    Device,
    SourceLanguage,
    TargetLanguage,
    Task,
    TrustRemoteCode,
    app,
    load_for,
    refuse,
    with_task_prefix,
)
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.show.inline import InlineFigure


@app.command()
def show(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN|FILE.attn", help="Run folder, Hugging Face folder, name on the hub, or a recorded attention file."
        ),
    ] = None,
    text: Annotated[str | None, typer.Argument(help="Text to read or translate, or the path of an image.")] = None,
    out: Annotated[Path | None, typer.Option(help="Figure to write: .svg, .png, .pdf or .html.")] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw in the terminal.")] = False,
    view: Annotated[
        str | None,
        typer.Option(
            help="matrix; heads: lines between tokens; head-matrices: all heads of a layer; model: all heads of all layers; "
            "token: one token over the layers; entropy; neurons: q·k of one head, component by component; "
            "steps: generation token by token; "
            "beam: the search tree; lens: what each layer would predict (logit lens); "
            "flow: one text through the model, step by step."
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="cross|encoder|decoder", help="Which attention of an encoder–decoder to show.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="Token of --view token, heads or neurons, as text or index; for --view steps, the first to show."),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Save the recorded attention: a.attn.")] = None,
    positions: Annotated[
        bool, typer.Option("--positions", help="Show the positional encoding and its dot products (a run's own, if given).")
    ] = False,
    layer: Annotated[int | None, typer.Option(min=1, help="Layer, counted from 1.")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="Head of --layer, counted from 1.")] = None,
    heads: Annotated[bool, typer.Option("--heads", help="All heads of the layer side by side.")] = False,
    halting: Annotated[
        bool, typer.Option("--halting", help="The number of steps of each token (Universal Transformer).")
    ] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "--max-new-tokens",
            min=1,
            help="Tokens to generate in --view steps of a language model [default: 20].",
        ),
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    task: Task = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    device: Device = "auto",
) -> None:
    """Show what a model attends to.

    Show the alignment of a translation, the attended regions of an image, any attention (--view) or a recorded file; the tree
    of a beam search; or the halting steps of each token.
    """
    from regard.run.load import load
    from regard.show.attention import check_output_path, show_attention, show_positions
    from regard.show.halting import show_halting_steps
    from regard.show.selection import VIEWS_THAT_RUN, ViewSelection
    from regard.show.views import show_run

    plain = view is None and kind is None and token is None and save is None  # the alignment of a translation, where there is one
    is_record = run is not None and run.suffix == ".attn"
    check_output_path(out, terminal or save is not None)
    if positions:
        if out is None:
            raise UserError("--positions draws a figure: add --out a.svg")
        _print(show_positions(None if run is None else load(run, device=device)), out, terminal)
        return
    if run is None:
        raise UserError("nothing to show: give a run folder and a text, or a recorded attention file (FILE.attn)")
    choice = ViewSelection(view or ("heads" if heads else "matrix"), kind, layer, head, token)
    needs_run = choice.view in VIEWS_THAT_RUN
    refuse(
        (
            is_record and bool(text is not None or halting or task),
            f"{run} is a recorded attention file: leave out the text, --halting and --task",
        ),
        (is_record and needs_run, f"{run} holds attention weights only; --view {choice.view} needs the run and the text"),
        (not is_record and text is None, "no text to show: regard show RUN TEXT"),
        (save is not None and needs_run, f"--save does not apply to --view {choice.view}; leave it out"),
        (
            halting and bool(heads or layer or head),
            "--halting counts the steps of tokens, not of heads: leave out --layer, --head and --heads",
        ),
    )
    if is_record:
        _print(show_attention(run, "", choice, keep=save), out, terminal)
        return
    verb = "align" if halting or choice.view == "beam" else "show"
    languages = (source_language, target_language)
    opened = load_for(verb, run, device, task, languages=languages, trust_remote_code=trust_remote_code)
    (text,) = with_task_prefix(opened, [str(text)], task)
    if halting:
        _print(show_halting_steps(opened, text), out, terminal)
        return
    _print(show_run(opened, text, choice, plain=plain, max_tokens=max_tokens, keep=save), out, terminal)


def _print(figure: "InlineFigure", out: Path | None, terminal: bool) -> None:
    """Save a figure, and print it as text or its description."""
    if out is not None:
        figure.save(out)
    print(figure.text() if terminal else figure.description)
