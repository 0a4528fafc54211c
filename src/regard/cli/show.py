"""show: what a model attends to."""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from collections.abc import Mapping

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
        typer.Option(
            metavar="WORD|WORD:2|NUMBER",
            help="Token of --view token (the default with it), heads or neurons: a word, the second of several (it:2), or its "
            "number from 1; for --view steps, the first to show.",
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Save the recorded attention: a.attn.")] = None,
    positions: Annotated[
        bool, typer.Option("--positions", help="Show the positional encoding and its dot products (a run's own, if given).")
    ] = False,
    layer: Annotated[int | None, typer.Option(min=1, help="Layer, counted from 1.")] = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="HEAD",
            help="Head, counted from 1: 3 of --layer, 2.3 (layer.head), or its name as figures and regard explain print "
            "it, 'cross-attention, layer 2, head 3'. Of the demo and other runs of an embedded world also the best on the "
            "validation set: aligner (lowest alignment error) or antecedent (most often right about 'it').",
        ),
    ] = None,
    heads: Annotated[bool, typer.Option("--heads", help="Every head of the layer, side by side.")] = False,
    scale: Annotated[
        str,
        typer.Option(
            metavar="shown|absolute", help="Where the colours of weights end: at the largest that is shown, or at 1, to compare."
        ),
    ] = "shown",
    title: Annotated[str | None, typer.Option(help="Title in place of the figure's own; '' is none.")] = None,
    width: Annotated[
        str | None,
        typer.Option(metavar="800px|6in|84mm", help="Width of an image; type and lines grow with it [default: as needed]."),
    ] = None,
    theme: Annotated[
        str | None,
        typer.Option(metavar="light|dark", help="Colours [default: light for an image, as the reader's system for a page]."),
    ] = None,
    transparent: Annotated[bool, typer.Option("--transparent", help="No background.")] = False,
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
    from regard.show.figures.style import FigureLook
    from regard.show.halting import show_halting_steps
    from regard.show.selection import EVERY_HEAD, VIEWS_THAT_RUN, ViewSelection
    from regard.show.views import BEST_HEADS, best_head_name, show_run

    is_record = run is not None and run.suffix == ".attn"
    check_output_path(out, terminal or save is not None)
    look: dict[str, Any] = {"title": title, "width": width, "theme": theme, "transparent": transparent}
    refuse((out is None and any(value for value in look.values()), "--title, --width, --theme and --transparent go with --out"))
    FigureLook(**look)
    if positions:
        others = (text, view, kind, token, layer, head, save, heads or None, halting or None)
        refuse(
            (out is None, "--positions draws a figure: add --out a.svg"),
            (any(other is not None for other in others), "--positions shows no text: leave out everything but the run and --out"),
        )
        _print(show_positions(None if run is None else load(run, device=device)), out, terminal, look)
        return
    if run is None:
        raise UserError("nothing to show: give a run folder and a text, or a recorded attention file (FILE.attn)")
    plain = view is None and token is None and save is None  # the alignment of a translation, where there is one
    view = view or ("token" if token is not None else "matrix")
    refuse(
        (heads and head is not None, f"--heads shows every head, --head {head} one: leave out one of them"),
        (heads and view not in EVERY_HEAD, f"--heads: --view {view} does not show every head; leave it out, or use --view model"),
        (max_tokens is not None and view != "steps", f"--max-tokens {max_tokens}: it is for --view steps; leave it out"),
    )
    best = head if head in BEST_HEADS else None

    def select_view(head: str | None) -> ViewSelection:
        return ViewSelection.of(EVERY_HEAD[view] if heads else view, kind, layer, head, token, every_head=heads, scale=scale)

    choice = select_view("1.1" if best else head)
    plain = plain and kind is None and choice.kind in (None, "cross")
    needs_run = choice.view in VIEWS_THAT_RUN
    refuse(
        (
            is_record and bool(text is not None or halting or task),
            f"{run} is a recorded attention file: leave out the text, --halting and --task",
        ),
        (is_record and best is not None, f"--head {head}: a recorded file has no validation set; name the head by its number"),
        (is_record and needs_run, f"{run} holds attention weights only; --view {choice.view} needs the run and the text"),
        (not is_record and text is None, "no text to show: regard show RUN TEXT"),
        (save is not None and needs_run, f"--save does not apply to --view {choice.view}; leave it out"),
        (
            halting and (heads or not plain or any(option is not None for option in (layer, head, kind))),
            "--halting counts the steps of tokens, not of heads: leave out --view, --kind, --layer, --head, --token, --save",
        ),
    )
    if is_record:
        _print(show_attention(run, "", choice, keep=save), out, terminal, look)
        return
    verb = "align" if halting or choice.view == "beam" else "show"
    languages = (source_language, target_language)
    opened = load_for(verb, run, device, task, languages=languages, trust_remote_code=trust_remote_code)
    (text,) = with_task_prefix(opened, [str(text)], task)
    if best:
        name = best_head_name(opened, best)
        print(f"--head {best}: {name}", file=sys.stderr)
        choice = select_view(name)
        plain = plain and choice.kind == "cross"
    if halting:
        _print(show_halting_steps(opened, text), out, terminal, look)
        return
    _print(show_run(opened, text, choice, plain=plain, max_tokens=max_tokens, keep=save), out, terminal, look)


def _print(figure: "InlineFigure", out: Path | None, terminal: bool, options: "Mapping[str, Any]") -> None:
    """Save a figure with the options of its look, and print it as text or its description."""
    if figure.note:
        print(figure.note, file=sys.stderr)
    if out is not None:
        with warnings.catch_warnings(record=True) as caught:
            figure.save(out, **options)
        for line in dict.fromkeys(str(one.message) for one in caught):
            print(line, file=sys.stderr)
    print(figure.text() if terminal else figure.description)
