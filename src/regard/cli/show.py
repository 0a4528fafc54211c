"""What a run attended to, why it said so, and whether to believe it."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import AsJson, Device, Gold, RunFolder, Task, app, load_for, with_task_prefix
from regard.cli.output import print_json, print_table
from regard.errors import UserError


@app.command()
def show(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN|FILE.attn", help="A run folder, a Hugging Face folder, a name on the hub, or a record of attention."
        ),
    ] = None,
    text: Annotated[str | None, typer.Argument(help="A sentence to read or translate; a picture's path.")] = None,
    out: Annotated[Path | None, typer.Option(help="Picture to write: .svg, .png or .pdf; with --view also .html.")] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw in the terminal.")] = False,
    view: Annotated[
        str | None,
        typer.Option(
            help="matrix; heads: lines between tokens; model: all heads of all layers; "
            "token: one over the layers; entropy; neurons: q·k of one head, component by "
            "component; steps: token by token as it is written; beam: the tree of a "
            "search."
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Of a translator, which attention: cross, encoder or decoder.")] = None,
    token: Annotated[
        str | None,
        typer.Option(help="The word of --view token, heads or neurons, or its number; of --view steps, the one to begin at."),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Keep the record: a.attn.")] = None,
    positions: Annotated[
        bool, typer.Option("--positions", help="The positional encoding and its dot products; a run's own, where one is given.")
    ] = False,
    layer: Annotated[int | None, typer.Option(min=1, help="Layer, counted from 1.")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="Head of that layer, counted from 1.")] = None,
    heads: Annotated[bool, typer.Option("--heads", help="All heads of the layer, side by side.")] = False,
    steps: Annotated[bool, typer.Option("--steps", help="How many steps each token took (universal models).")] = False,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens that a language model writes in --view steps; 20 when not given.")
    ] = None,
    task: Task = None,
    device: Device = "auto",
) -> None:
    """Draw what a model attended to: a translation word by word, where in a picture it looked, with --view any run, or a record;
    how a beam searched; how long each token was thought about."""
    from regard.show.attention import (
        VIEWS_THAT_RUN,
        ViewSelection,
        check_output_path,
        read_record,
        reads_image,
        show_alignment,
        show_image_attention,
        show_positions,
    )
    from regard.show.attention import show_attention as draw
    from regard.show.beam import show_beam_tree
    from regard.show.generation import show_generation
    from regard.show.halting import show_halting_steps
    from regard.show.neurons import show_neurons

    plain = view is None and kind is None and token is None and save is None  # word by word, where that is possible
    recorded = run is not None and run.suffix == ".attn"
    check_output_path(out, terminal or save is not None, pages=not plain or positions or recorded)
    if positions:
        if out is None:
            raise UserError("--positions is a picture: add --out a.svg")
        from regard.run.load import load

        print(show_positions(None if run is None else load(run, device=device), out))
        return
    if run is None:
        raise UserError("say what to show: a run folder and a text, or a record (FILE.attn)")
    choice = ViewSelection(view or ("heads" if heads else "matrix"), kind, layer, head, token)
    if recorded:
        if text is not None or steps or task:
            raise UserError(f"{run} is a record of what was read already: leave out the text, --steps and --task")
        if choice.view in VIEWS_THAT_RUN:
            raise UserError(f"{run} is a record of weights; --view {choice.view} takes more: give the run and the text")
        print(draw(read_record(run), None, choice, out=out, terminal=terminal, keep=save))
        return
    if text is None:
        raise UserError("say what to read: regard show RUN TEXT")
    if save is not None and choice.view in VIEWS_THAT_RUN:
        raise UserError(f"--save keeps the weights of other views; leave it out with --view {choice.view}")
    opened = load_for("align" if steps or choice.view == "beam" else "reading", run, device, task)
    (text,) = with_task_prefix(opened, [text], task)
    if steps:
        if heads or layer or head:
            raise UserError("--steps counts the steps of tokens, not of heads: leave out --layer, --head and --heads")
        print(show_halting_steps(opened, text, out=out, terminal=terminal))
    elif choice.view == "neurons":
        print(show_neurons(opened, text, choice, out=out, terminal=terminal))
    elif choice.view == "steps":
        print(show_generation(opened, text, choice, max_tokens=max_tokens, out=out, terminal=terminal))
    elif choice.view == "beam":
        print(show_beam_tree(opened, text, out=out, terminal=terminal))
    elif plain and opened.task.explains == "translation":
        print(show_alignment(opened, text, out=out, terminal=terminal, layer=layer, head=head, all_heads=heads))
    elif plain and not terminal and out is not None and reads_image(opened, text):
        print(show_image_attention(opened, text, choice, out))
    else:
        print(draw(opened, text, choice, out=out, terminal=terminal, keep=save))


@app.command()
def explain(
    run: RunFolder,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT|IMAGE]", help="What the run reads: a text, or a picture by its path.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SET",
            help="Measure over a file, one text a line, over a folder of pictures, or over a set of the recipe (valid …).",
        ),
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="The translation of --data, line by line.")] = None,
    gold: Gold = None,
    method: Annotated[
        str,
        typer.Option(
            help="all, or some with commas between them: attention, rollout, flow, "
            "gradient-attention, norms, input-gradient, integrated-gradients, "
            "occlusion."
        ),
    ] = "all",
    label: Annotated[str | None, typer.Option("--class", help="The label to explain; else the likeliest.")] = None,
    word: Annotated[
        str | None,
        typer.Option(
            help="The word of the translation or caption to explain, by its number from "
            "1 or as it stands there; or the word that should come next."
        ),
    ] = None,
    fits: Annotated[str | None, typer.Option("--text", help="The text that a picture might fit (CLIP).")] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Another label, word or text: explained beside it, and whether the methods tell the two apart."),
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Examples of --data.")] = 200,
    heads: Annotated[
        bool,
        typer.Option("--heads", help="What each head does, and what is lost without it; over --data, or the validation set."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The curves of faithfulness, or of one picture its maps (.svg, .png, .pdf); with the tables as a page (.html)."
        ),
    ] = None,
    task: Task = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Say what each token or patch had to do with an answer, by several methods, and whether they can be believed."""
    from regard.explain.head_report import explain_heads
    from regard.explain.report import explain_one, explain_set
    from regard.explain.selection import OutputSelection
    from regard.show.attention import check_output_path
    from regard.show.explanation import write_explanation

    if heads and (text is not None or out is not None or against is not None):
        raise UserError("--heads looks at many sentences: leave out the text, --against and --out, and give --data or nothing")
    if not heads and (text is None) == (data is None):
        raise UserError("give a text or a picture to explain, or --data to measure explanations over many")
    if data is None and (reference is not None or gold is not None):
        raise UserError("--reference and --gold go with --data FILE")
    if data is not None and (label is not None or word is not None or fits is not None):
        raise UserError("--class, --word and --text are for one text or picture; over --data the run's own answers are explained")
    check_output_path(out, True, pages=True)
    opened = load_for("explain", run, device, task)
    question = OutputSelection(label, word, fits, against)
    found: Any
    if heads:
        found = explain_heads(opened, data or "valid", number=number, reference=reference, gold=gold)
    elif data is not None:
        found = explain_set(
            opened, data, method, number=number, question=question, reference=reference, gold=gold, progress=sys.stderr.isatty()
        )
    else:
        found = explain_one(opened, with_task_prefix(opened, [str(text)], task)[0], method, question)
    if out is not None:
        write_explanation(opened, found, out)
    if as_json:
        print_json(**found.to_json())
        return
    for table in found.tables():
        print_table(table.title, table.header, table.rows)
    print()
    for line in [*found.words(), *(f"{name} does not apply: {why}" for name, why in found.refused.items())]:
        print(line)
