"""The options that several verbs share, and the runs and texts that they are given."""

import os
import shlex
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Annotated, Any, cast

import typer

from regard.corpus.lines import MAX_LINE_BYTES
from regard.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train, use and inspect attention models.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

READ_BYTES = 2**16
"""What one read of standard input takes at most, the capacity of a pipe."""
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, Hugging Face folder, or name on the hub.")]
Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TEXT]...", help="Texts to process [default: standard input, one per line]."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Jobs = Annotated[int, typer.Option(min=1, metavar="N", help="Runs at once on each device; on a GPU, start NVIDIA's MPS first.")]
Device = Annotated[str, typer.Option(help="Device to run on: auto, cpu, cuda or cuda:N.")]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="fp32|bf16|int8",
        help="Numerical precision [default: fp32]. int8 runs on the CPU only; its outputs may depend on the texts beside.",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="auto|regard|ctranslate2",
        help="Inference engine for translation on the CPU. auto uses CTranslate2 if it is installed, supports the model, "
        "loses no BLEU on the validation set and is faster; this is measured once, for 20,000 characters of text or more.",
    ),
]
Ensemble = Annotated[
    list[Path] | None,
    typer.Option(
        "--ensemble",
        metavar="RUN",
        help="Another run with the same tokenizer; each token has the mean of the probabilities of all runs. May be repeated.",
    ),
]
Beam = Annotated[int | None, typer.Option("--beam", "--num-beams", min=1, help="Beam size [default: from the recipe].")]
Greedy = Annotated[bool, typer.Option("--greedy", help="Decode greedily; the same as --beam 1.")]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", "--max-new-tokens", min=1, help="Maximal number of tokens to generate."),
]
TopK = Annotated[int, typer.Option(help="Sample from the k most likely tokens only; 0 disables it.")]
TopP = Annotated[
    float, typer.Option(help="Sample from the most likely tokens with total probability p (nucleus sampling); 1 disables it.")
]
Seed = Annotated[int, typer.Option(help="Random seed for sampling.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.SETTING=VALUE", help="Override a setting of the recipe; may be repeated."),
]
Task = Annotated[str | None, typer.Option(metavar="NAME", help="Task to use, for a run trained on several tasks.")]
SourceLanguage = Annotated[
    str | None, typer.Option(metavar="CODE", help="Language code of the texts, for a multilingual model (NLLB: eng_Latn).")
]
TargetLanguage = Annotated[
    str | None, typer.Option(metavar="CODE", help="Language code to translate into, for a multilingual model (NLLB: deu_Latn).")
]
TextColumn = Annotated[
    str | None, typer.Option("--text", metavar="COLUMN", help="Column of the text: its name, or number from 0.")
]
TextPairColumn = Annotated[str | None, typer.Option("--text-pair", metavar="COLUMN", help="Column of a second text.")]
LabelColumn = Annotated[str | None, typer.Option("--label", metavar="COLUMN", help="Column of the label or number.")]
Source = Annotated[Path | None, typer.Option(help="Source text, one sentence per line.")]
Reference = Annotated[Path | None, typer.Option(help="Reference translation, line by line.")]
Gold = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.align",
        help="Gold word alignments, line by line: 0-0 1-2 for sure links, 2?3 or 2p3 for possible ones.",
    ),
]


TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run the Python code in a Hugging Face folder that only transformers can open."),
]


def _print_version(requested: bool) -> None:
    if requested:
        from regard import __version__

        print(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a bug; may also follow the verb.")] = False,
) -> None:
    """Train, use and inspect attention models."""


def refuse(*problems: tuple[bool, str]) -> None:
    """Refuse a combination of options: raise the message of the first problem that holds."""
    for holds, message in problems:
        if holds:
            raise UserError(message)


def load_for(
    verb: str,
    run: Path,
    device: str,
    task: str | None = None,
    *,
    ensemble: Sequence[Path] | None = None,
    precision: str | None = None,
    languages: tuple[str | None, str | None] = (None, None),
    trust_remote_code: bool = False,
) -> Any:
    """Return a run that supports the verb, and the task if one is given, with a precision."""
    from regard.run.load import load

    if hasattr(signal, "SIGPIPE"):  # let `regard translate … | head` end quietly, as other filters do
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    opened = load(run, ensemble=ensemble or (), device=device, trust_remote_code=trust_remote_code)
    if verb not in (*opened.task.verbs, "show", "explain"):  # these two are for every task, and refuse by themselves
        commands = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
        use = next((name for name in (*opened.task.verbs, "show") if name in commands), "show")  # some verbs are Python's alone
        raise UserError(f"{run} {opened.task.does} (task = {opened.recipe.task!r}); it cannot {verb}; use: regard {use}")
    if task is not None and opened.task.name != "text-to-text":
        raise UserError(f"--task {task}: {run} {opened.task.does}, and has no other task; leave it out")
    use_languages(opened, *languages)
    if precision is not None:
        from regard.run.engines import use_engine

        use_engine(opened, precision=precision)
    return opened


def use_languages(opened: Any, source: str | None, target: str | None) -> None:
    """Set the languages of a multilingual model, if they are given."""
    if source is None and target is None:
        return
    if "translate" not in opened.task.verbs:
        raise UserError(f"--source-language, --target-language: {opened.folder} {opened.task.does}; leave them out")
    opened.use_languages(source=source, target=target)


def with_task_prefix(opened: Any, texts: list[str], task: str | None) -> list[str]:
    """Return the texts with the prefix of a task, if one is given."""
    return texts if task is None else opened._prefixed(texts, task)


def read_batches(
    texts: list[str] | None, size: int = 2000, *, paths: bool = False, doing: str = "reading"
) -> Iterator[list[str]]:
    """Yield the given texts at once, or standard input in batches, so that a long file streams through. Progress through a file
    is shown if the results go to another one; `doing` is its name.

    From a pipe or a terminal, a batch is the lines that have arrived: a program that writes one and waits is answered. What is
    printed so far is flushed before more is read. The name of a file is refused as a text, unless the verb reads `paths`.
    """
    if texts:
        for number, text in enumerate(texts, start=1):
            if text.encode("utf-8", "ignore").decode("utf-8") != text:  # Python keeps undecodable bytes as surrogates
                raise UserError(f"text {number} of the command line is not UTF-8; convert it first")
            if not paths and os.path.isfile(text):  # noqa: PTH113 Path.is_file raises for a name that is too long
                raise UserError(f"{text} is a file, not a text; give its lines on standard input: < {shlex.quote(text)}")
        yield texts
        return
    if sys.stdin is None:
        raise UserError("standard input is closed; give the texts as arguments")
    from regard.progress import show_progress

    batch: list[str] = []
    total = _count_lines(cast(BufferedIOBase, sys.stdin.buffer)) if _is_regular_file(sys.stdin) else None
    with show_progress(doing, total, enabled=total is not None and not sys.stdout.isatty()):
        for lines in _arriving_lines():
            batch += lines
            while len(batch) >= size or (batch and _is_regular_file(sys.stdin) is False):
                yield batch[:size]
                batch = batch[size:]
                sys.stdout.flush()
        if batch:
            yield batch


def _count_lines(file: BufferedIOBase) -> int:
    """Return the lines of a file that are left to read, without reading on."""
    here, number = file.tell(), 0
    while chunk := file.read(READ_BYTES):
        number += chunk.count(b"\n")
    file.seek(here)
    return max(1, number)


def _is_regular_file(file: IO[str]) -> bool | None:
    """Whether a file is on a disk, and all of it there to be read; None for what is no file of the system."""
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError):
        return None


def _arriving_lines() -> Iterator[list[str]]:
    """Yield the lines of standard input that each read completes; a read waits only as long as there is nothing at all."""
    number, pending = 0, b""
    while True:
        chunk = cast(BufferedIOBase, sys.stdin.buffer).read1(READ_BYTES)
        *complete, pending = (pending + chunk).split(b"\n")
        if not chunk and pending:
            complete = [pending]
        if len(longest := max([*complete, pending], key=len)) > MAX_LINE_BYTES:
            line = number + [*complete, pending].index(longest) + 1
            raise UserError(f"standard input, line {line} is longer than {MAX_LINE_BYTES:,} bytes; break it into lines")
        yield [_decode_line(raw, number + i) for i, raw in enumerate(complete, start=1)]
        number += len(complete)
        if not chunk:
            return


def _decode_line(raw: bytes, number: int) -> str:
    """Return a line of standard input; a byte-order mark at the beginning of the first is dropped."""
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r")
    except UnicodeDecodeError:
        raise UserError(f"standard input, line {number} is not UTF-8; convert it first") from None
