"""explain: attributions with their faithfulness, and what heads do."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import view_options as options
from regard.cli.options import (
    AsJson,
    Device,
    Gold,
    RunFolder,
    SourceLanguage,
    TargetLanguage,
    Task,
    TrustRemoteCode,
    app,
    load_for,
    refuse,
    with_task_prefix,
)
from regard.cli.output import print_json, print_table

if TYPE_CHECKING:
    from regard.explain.explanation import Explanation, FaithfulnessReport
    from regard.explain.head_report import HeadReport


@app.command()
def explain(
    run: RunFolder,
    text: options.ExplainedText = None,
    data: options.Data = None,
    reference: options.DataReference = None,
    gold: Gold = None,
    method: options.Method = "all",
    label: options.Label = None,
    word: options.ExplainedWord = None,
    position: options.Position = None,
    fits: options.MatchedText = None,
    against: options.Against = None,
    number: options.Number = 200,
    heads: options.HeadReportFlag = False,
    layer: options.TestedLayer = None,
    head: options.TestedHead = None,
    out: options.ExplanationOut = None,
    terminal: options.Terminal = False,
    task: Task = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    trust_remote_code: TrustRemoteCode = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Explain an output, and test the explanation.

    Attribute an output to tokens or patches with several methods, and measure how faithful each of them is.
    """
    from regard.explain.selection import OutputSelection
    from regard.show.attention import check_output_path
    from regard.show.explanation import write_explanation

    is_one = any(option is not None for option in (label, word, fits, position, layer, head)) or terminal
    check_options(text, data, heads, is_one, figure=out is not None, contrast=against is not None, gold=(reference, gold))
    check_output_path(out, True)
    languages = (source_language, target_language)
    opened = load_for("explain", run, device, task, languages=languages, trust_remote_code=trust_remote_code)
    selection = OutputSelection(label, word, fits, against, position, layer, head)
    if heads:
        from regard.explain.head_report import explain_heads

        print_found(explain_heads(opened, data or "valid", number=number, reference=reference, gold=gold), as_json)
        return
    from regard.explain.report import explain_one, explain_set

    found: Explanation | FaithfulnessReport
    if data is not None:
        found = explain_set(
            opened, data, method, number=number, selection=selection, reference=reference, gold=gold, progress=sys.stderr.isatty()
        )
    else:
        found = explain_one(opened, with_task_prefix(opened, [str(text)], task)[0], method, selection)
    if out is not None:
        write_explanation(opened, found, out)
    print_found(found, as_json, terminal)


def check_options(
    text: str | None,
    data: str | None,
    heads: bool,
    is_one: bool,
    *,
    figure: bool,
    contrast: bool,
    gold: tuple[Path | None, Path | None],
) -> None:
    """Refuse contradictory options. `is_one`: some are for one text or image; `gold` are --reference and --gold."""
    refuse(
        (
            heads and (text is not None or figure or contrast),
            "--heads measures over many examples: leave out the text, --against and --out, and give --data or nothing",
        ),
        (
            not heads and (text is None) == (data is None),
            "give a text or an image to explain, or --data to measure explanations over many",
        ),
        (data is None and gold != (None, None), "--reference and --gold go with --data FILE"),
        (
            data is not None and is_one,
            "--class, --word, --position, --text, --layer, --head and --terminal are for one text or image; over --data the "
            "run's own outputs are explained",
        ),
    )


def print_found(found: "Explanation | FaithfulnessReport | HeadReport", as_json: bool, terminal: bool = False) -> None:
    """Print tables and sentences; for a text in a terminal, the highlighted text in place of the tables."""
    from regard.explain.explanation import Explanation
    from regard.show.explanation import explanation_text

    if as_json:
        print_json(**found.to_json())
        return
    if terminal and isinstance(found, Explanation) and found.image is None:
        print(explanation_text(found))
    else:
        for table in found.tables():
            print_table(table.title, table.header, table.rows)
    print()
    for line in [*found.summary(), *(f"{name} does not apply: {why}" for name, why in found.unavailable.items())]:
        print(line)


@app.command()
def cue(
    out: Annotated[Path, typer.Option(help="Folder for the data, the runs and the report.")] = Path("runs/cue"),
    seeds: Annotated[int, typer.Option(min=1, help="Models of each kind.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each model.")] = 200,
    examples: Annotated[int, typer.Option(min=32, help="Training examples; a quarter as many in each test set.")] = 800,
    explained: Annotated[int, typer.Option(min=1, help="Explained examples of each model.")] = 10,
    device: Device = "auto",
) -> None:
    """Plant a spurious cue, and test which explanations find it.

    Train small models on images with a watermark and on texts with a name that go with one label, and measure how far the models
    rely on it, which methods rank it first, and whether the measures of faithfulness tell which method to trust.
    """
    from regard.studies.spurious_cue import run_cue_study

    print(run_cue_study(out, seeds=seeds, steps=steps, examples=examples, explained=explained, device=device))
