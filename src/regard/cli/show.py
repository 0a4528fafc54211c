"""show: what a model attends to."""

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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
    from collections.abc import Sequence

    from regard.show.inline import InlineFigure
    from regard.show.selection import ViewSelection
    from regard.tasks.base import Run
    from regard.tasks.translate import TranslateRun


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
    from regard.show.attention import show_attention, show_positions

    look = {"title": title, "width": width, "theme": theme, "transparent": transparent, "contours": contours}
    output = FigureOutput(out, terminal, look)
    output.check(saves_record=save is not None)
    if positions:
        others = (text, view, kind, token, layer, head, save, heads or None, halting or None)
        _refuse_with_positions(out, others)
        output.print(show_positions(None if run is None else load(run, device=device)))
        return
    if run is None:
        raise UserError("nothing to show: give a run folder and a text, or a recorded attention file (FILE.attn)")
    request = ShowRequest(run, text, view, kind, token, data, number, save, layer, head, heads, scale, halting, max_tokens, task)
    request.refuse_options_of_other_views()
    request.refuse_contradictions()
    if request.is_record:
        output.print(show_attention(run, "", request.choice(), keep=save))
        return
    verb = "align" if halting or request.choice().view == "beam" else "show"
    languages = (source_language, target_language)
    opened = load_for(verb, run, device, task, languages=languages, trust_remote_code=trust_remote_code)
    output.print(_show_opened(opened, request, contours))


@dataclass(frozen=True)
class FigureOutput:
    """Where a figure goes, and how it looks."""

    out: Path | None
    terminal: bool
    look: dict[str, Any]

    def check(self, saves_record: bool) -> None:
        """Refuse a file that cannot be written, and a look without a file, before anything is computed."""
        from regard.show.attention import check_output_path
        from regard.show.figures.style import FigureLook

        check_output_path(self.out, self.terminal or saves_record)
        refuse(
            (
                self.out is None and any(self.look.values()),
                "--title, --width, --theme, --transparent and --contours go with --out",
            )
        )
        FigureLook(**self.look)

    def print(self, figure: "InlineFigure") -> None:
        """Save a figure, and print it as text or its description."""
        if figure.note:
            print(figure.note, file=sys.stderr)
        if self.out is not None:
            with warnings.catch_warnings(record=True) as caught:
                figure.save(self.out, **self.look)
            for line in dict.fromkeys(str(one.message) for one in caught):
                print(line, file=sys.stderr)
        print(figure.text() if self.terminal else figure.description)


@dataclass(frozen=True)
class ShowRequest:
    """What is to be shown, as the options of `regard show` say it."""

    run: Path
    text: str | None
    given_view: str | None
    kind: str | None
    token: str | None
    data: str | None
    number: int | None
    save: Path | None
    layer: int | None
    head: str | None
    heads: bool
    scale: str
    halting: bool
    max_tokens: int | None
    task: str | None

    @property
    def view(self) -> str:
        return self.given_view or ("token" if self.token is not None else "matrix")

    @property
    def is_record(self) -> bool:
        """Whether attention recorded earlier is shown."""
        return self.run.suffix == ".attn"

    @property
    def best_head(self) -> str | None:
        """The head to be found on the validation set, if one is asked for."""
        from regard.show.views import BEST_HEADS

        return self.head if self.head in BEST_HEADS else None

    def choice(self, head: str | None = None) -> "ViewSelection":
        """Return the selected attention; a head that is still to be found stands as the first one."""
        from regard.show.selection import EVERY_HEAD, ViewSelection

        view = EVERY_HEAD[self.view] if self.heads else self.view
        head = head or ("1.1" if self.best_head else self.head)
        return ViewSelection.of(view, self.kind, self.layer, head, self.token, every_head=self.heads, scale=self.scale)

    def is_plain(self, choice: "ViewSelection") -> bool:
        """Whether the alignment of a translation, or the regions of an image, are shown where there are some."""
        nothing_named = all(option is None for option in (self.given_view, self.token, self.save, self.kind))
        return nothing_named and choice.kind in (("cross",) if self.best_head else (None, "cross"))

    def refuse_options_of_other_views(self) -> None:
        from regard.show.selection import EVERY_HEAD

        view, head, number = self.view, self.head, self.max_tokens
        refuse(
            (self.heads and head is not None, f"--heads shows every head, --head {head} one: leave out one of them"),
            (
                self.heads and view not in EVERY_HEAD,
                f"--heads: --view {view} does not show every head; leave it out, or use --view model",
            ),
            (number is not None and view != "steps", f"--max-tokens {number}: it is for --view steps; leave it out"),
            (
                view != "search" and (self.data, self.number) != (None, None),
                "--data and --number are for --view search; leave them out",
            ),
            (
                view == "search" and self.text is not None,
                "--view search reads many sentences: give them as --data FILE, not as a text",
            ),
        )

    def refuse_contradictions(self) -> None:
        from regard.show.selection import VIEWS_THAT_RUN

        run, choice, record = self.run, self.choice(), self.is_record
        needs_run = choice.view in VIEWS_THAT_RUN
        of_heads = self.heads or not self.is_plain(choice) or self.layer is not None or self.head is not None
        refuse(
            (
                record and bool(self.text is not None or self.halting or self.task),
                f"{run} is a recorded attention file: leave out the text, --halting and --task",
            ),
            (
                record and self.best_head is not None,
                f"--head {self.head}: a recorded file has no validation set; name the head by its number",
            ),
            (record and needs_run, f"{run} holds attention weights only; --view {choice.view} needs the run and the text"),
            (not record and self.text is None and self.view != "search", "no text to show: regard show RUN TEXT"),
            (self.save is not None and needs_run, f"--save does not apply to --view {choice.view}; leave it out"),
            (
                self.halting and of_heads,
                "--halting counts the steps of tokens, not of heads: leave out --view, --kind, --layer, --head, --token, --save",
            ),
        )


def _refuse_with_positions(out: Path | None, others: "Sequence[object]") -> None:
    refuse(
        (out is None, "--positions draws a figure: add --out a.svg"),
        (any(other is not None for other in others), "--positions shows no text: leave out everything but the run and --out"),
    )


def _show_opened(run: "Run", request: ShowRequest, contours: bool) -> "InlineFigure":
    """Return the figure of a request for a run that is loaded."""
    from regard.show.forward_pass.halting import show_halting_steps
    from regard.show.image_attention import reads_image
    from regard.show.search import NUM_SENTENCES, search_texts
    from regard.show.views import best_head_name, show_run

    searches, choice = request.view == "search", request.choice()
    texts = search_texts(run, request.data or "valid", request.number or NUM_SENTENCES) if searches else [str(request.text)]
    texts = with_task_prefix(run, texts, request.task)
    if request.best_head:
        name = best_head_name(run, request.best_head)
        print(f"--head {request.best_head}: {name}", file=sys.stderr)
        choice = request.choice(name)
    plain = request.is_plain(choice)
    over_image = not searches and plain and reads_image(run, texts[0])
    refuse((contours and not over_image, "--contours: it is for attention over an image; leave it out"))
    if request.halting:
        return show_halting_steps(cast("TranslateRun", run), texts[0])
    shown = texts if searches else texts[0]
    return show_run(run, shown, choice, plain=plain, max_tokens=request.max_tokens, keep=request.save)
