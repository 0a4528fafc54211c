"""show: what a model attends to."""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli import view_options as options
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
    run: options.RecordOrRun = None,
    text: options.ShownText = None,
    out: options.FigureOut = None,
    terminal: options.Terminal = False,
    view: options.View = None,
    kind: options.Kind = None,
    token: options.Token = None,
    data: options.SearchedData = None,
    number: options.SearchedNumber = None,
    save: options.SavedRecord = None,
    positions: options.Positions = False,
    layer: options.Layer = None,
    head: options.Head = None,
    heads: options.EveryHead = False,
    scale: options.Scale = "shown",
    title: options.Title = None,
    width: options.Width = None,
    theme: options.Theme = None,
    transparent: options.Transparent = False,
    contours: options.Contours = False,
    halting: options.Halting = False,
    max_tokens: options.GeneratedTokens = None,
    trust_remote_code: TrustRemoteCode = False,
    task: Task = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    device: Device = "auto",
) -> None:
    """Show what a model attends to.

    Show the alignment of a translation, the attended regions of an image, any attention (--view) or a recorded file; the tree
    of a beam search; the halting steps of each token; or every head over a set of sentences (--view search).
    """
    from regard.run.load import load
    from regard.show.attention import check_output_path, show_attention, show_positions
    from regard.show.figures.style import FigureLook
    from regard.show.forward_pass.halting import show_halting_steps
    from regard.show.image_attention import reads_image
    from regard.show.search import NUM_SENTENCES, search_texts
    from regard.show.selection import EVERY_HEAD, VIEWS_THAT_RUN, ViewSelection
    from regard.show.views import BEST_HEADS, best_head_name, show_run

    is_record = run is not None and run.suffix == ".attn"
    check_output_path(out, terminal or save is not None)
    look: dict[str, Any] = {"title": title, "width": width, "theme": theme, "transparent": transparent, "contours": contours}
    refuse(
        (
            out is None and any(value for value in look.values()),
            "--title, --width, --theme, --transparent and --contours go with --out",
        )
    )
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
        (view != "search" and (data, number) != (None, None), "--data and --number are for --view search; leave them out"),
        (view == "search" and text is not None, "--view search reads many sentences: give them as --data FILE, not as a text"),
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
        (not is_record and text is None and view != "search", "no text to show: regard show RUN TEXT"),
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
    texts = search_texts(opened, data or "valid", number or NUM_SENTENCES) if view == "search" else [str(text)]
    texts = with_task_prefix(opened, texts, task)
    if best:
        name = best_head_name(opened, best)
        print(f"--head {best}: {name}", file=sys.stderr)
        choice = select_view(name)
        plain = plain and choice.kind == "cross"
    over_image = view != "search" and plain and reads_image(opened, texts[0])
    refuse((contours and not over_image, "--contours: it is for attention over an image; leave it out"))
    if halting:
        _print(show_halting_steps(opened, texts[0]), out, terminal, look)
        return
    _print(
        show_run(opened, texts if view == "search" else texts[0], choice, plain=plain, max_tokens=max_tokens, keep=save),
        out,
        terminal,
        look,
    )


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
