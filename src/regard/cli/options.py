"""The verbs' common arguments, and the runs and texts they are given."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train, use and see through attention models.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, a Hugging Face folder, or a name on the hub.")]
Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TEXT]...", help="What to work on; standard input, one item a line, when not given."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="fp32|bf16|int8", help="Of the numbers a model computes with; fp32 when not given. int8 is for the CPU."
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="auto|regard|ctranslate2",
        help="Whose program translates; auto takes CTranslate2 "
        "where it is installed, fits the model, costs no BLEU and is faster.",
    ),
]
Beam = Annotated[
    int | None, typer.Option("--beam", "--num-beams", min=1, help="Hypotheses kept a sentence; the recipe's when not given.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PART.SETTING=VALUE", help="Override a setting of the recipe; may be repeated."),
]
Task = Annotated[str | None, typer.Option(metavar="NAME", help="Of a run of several tasks, the one that is wanted.")]
Source = Annotated[Path | None, typer.Option(help="Text to translate, one sentence a line.")]
Reference = Annotated[Path | None, typer.Option(help="Its translation, line by line.")]
Gold = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.align", help="Which words translate which, line by line: 0-0 1-2, and 2?3 or 2p3 for what is only possible."
    ),
]


def load_for(
    verb: str, run: Path, device: str, task: str | None = None, *, precision: str | None = None, engine: str = "regard"
) -> Any:
    """A run that has the verb, and the task; in a precision, by an engine."""
    from regard.run.load import load

    opened = load(run, device=device)
    if verb not in opened.task.verbs:
        raise UserError(f"{run} {opened.task.does} (task = {opened.recipe.task!r}); it cannot {verb}")
    if task is not None and opened.task.name != "text-to-text":
        raise UserError(f"--task {task}: {run} {opened.task.does}, and has no other task; leave it out")
    if precision is not None or engine != "regard":
        from regard.run.engines import use_engine

        use_engine(opened, engine, precision)
    return opened


def with_task_prefix(opened: Any, texts: list[str], task: str | None) -> list[str]:
    """Texts as a task wants them."""
    return texts if task is None else opened._prefixed(texts, task)


def read_batches(texts: list[str] | None, size: int = 2000) -> Iterator[list[str]]:
    """The given texts, or standard input in portions, so that a long file streams through."""
    if texts:
        for number, text in enumerate(texts, start=1):
            if text.encode("utf-8", "ignore").decode("utf-8") != text:  # a byte that is none, as Python keeps it
                raise UserError(f"text {number} of the command line is not UTF-8; convert it first")
        yield texts
        return
    portion: list[str] = []
    for number, raw in enumerate(sys.stdin.buffer, start=1):
        try:
            portion.append(raw.decode("utf-8").rstrip("\r\n"))
        except UnicodeDecodeError:
            raise UserError(f"standard input, line {number} is not UTF-8; convert it first") from None
        if len(portion) == size:
            yield portion
            portion = []
    if portion:
        yield portion
