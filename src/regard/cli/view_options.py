"""The options of show and explain: what is looked at, which attention of it, and how it is drawn."""

from pathlib import Path
from typing import Annotated

import typer

VIEW_HELP = (
    "matrix; heads: lines between tokens; head-matrices: all heads of a layer; model: all heads of all layers; "
    "token: one token over the layers; entropy; neurons: q·k of one head, component by component; "
    "steps: generation token by token; "
    "beam: the search tree; lens: what each layer would predict (logit lens); "
    "flow: one text through the model, step by step; "
    "search: what each head attends to over --data, and the sentences where one does most."
)

# what

RecordOrRun = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN|FILE.attn", help="Run folder, Hugging Face folder, name on the hub, or a recorded attention file."
    ),
]
ShownText = Annotated[str | None, typer.Argument(help="Text to read or translate, or the path of an image.")]
ExplainedText = Annotated[
    str | None, typer.Argument(metavar="[TEXT|IMAGE]", help="Input to explain: a text, or the path of an image.")
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|SET",
        help="Measure over a file with one text per line, a folder of images, or a set of the recipe (valid …).",
    ),
]
SearchedData = Annotated[
    str | None,
    typer.Option(metavar="FILE|SET", help="Sentences of --view search: a file, or a set of the recipe [default: valid]."),
]
Number = Annotated[int, typer.Option("--number", "-n", min=1, help="Number of examples of --data.")]
SearchedNumber = Annotated[int | None, typer.Option("--number", "-n", min=1, help="Number of sentences of --data [default: 64].")]

# which attention

View = Annotated[str | None, typer.Option(help=VIEW_HELP)]
Kind = Annotated[str | None, typer.Option(metavar="cross|encoder|decoder", help="Which attention of an encoder–decoder to show.")]
Layer = Annotated[int | None, typer.Option(min=1, help="Layer, counted from 1.")]
TestedLayer = Annotated[
    int | None, typer.Option(min=1, help="Layer whose attention is tested, counted from 1 [default: the last].")
]
Head = Annotated[
    str | None,
    typer.Option(
        metavar="HEAD",
        help="Head, counted from 1: 3 of --layer, 2.3 (layer.head), or its name as figures and regard explain print "
        "it, 'cross-attention, layer 2, head 3'. Of the demo and other runs of an embedded world also the best on the "
        "validation set: aligner (lowest alignment error) or antecedent (most often right about 'it').",
    ),
]
TestedHead = Annotated[int | None, typer.Option(min=1, help="Head of --layer, counted from 1 [default: the mean over heads].")]
Token = Annotated[
    str | None,
    typer.Option(
        metavar="WORD|WORD:2|NUMBER",
        help="Token of --view token (the default with it), heads or neurons: a word, the second of several (it:2), or its "
        "number from 1; for --view steps, the first to show; for --view search, the word that attends.",
    ),
]
EveryHead = Annotated[bool, typer.Option("--heads", help="Every head of the layer, side by side.")]
HeadReportFlag = Annotated[
    bool, typer.Option("--heads", help="Report what each head attends to and the effect of removing it, over --data or valid.")
]
GeneratedTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", "--max-new-tokens", min=1, help="Tokens to generate in --view steps of a language model [default: 20]."
    ),
]
Positions = Annotated[
    bool, typer.Option("--positions", help="Show the positional encoding and its dot products (a run's own, if given).")
]
Halting = Annotated[bool, typer.Option("--halting", help="The number of steps of each token (Universal Transformer).")]

# which output is explained

Method = Annotated[
    str,
    typer.Option(
        help="all, or a comma-separated list of: attention, rollout, flow, gradient-attention, norms, input-gradient, "
        "integrated-gradients, occlusion."
    ),
]
Label = Annotated[str | None, typer.Option("--class", help="Label to explain [default: the predicted one].")]
ExplainedWord = Annotated[
    str | None,
    typer.Option(
        help="Word of the translation or caption to explain, as text or by its number from 1; for a language model, "
        "the next word; for a masked model, the word at the mask [default: the predicted one]."
    ),
]
Position = Annotated[
    str | None,
    typer.Option(
        help="Word of the text whose prediction by a language model or masked model is explained: by its number from 1, as "
        "text, or word:2 for the second of several; [MASK]:2 is the second mask [default: the next word; the first mask]."
    ),
]
MatchedText = Annotated[str | None, typer.Option("--text", help="Text to match with an image (CLIP).")]
Against = Annotated[
    str | None,
    typer.Option(help="Another label, word or text to explain beside it; tests whether the methods tell the two apart."),
]
DataReference = Annotated[Path | None, typer.Option(help="Reference translation of --data, line by line.")]

# how it is drawn

FigureOut = Annotated[Path | None, typer.Option(help="Figure to write: .svg, .png, .pdf or .html.")]
ExplanationOut = Annotated[
    Path | None,
    typer.Option(
        help="The highlighted text, or the maps of an image, with the faithfulness of each method; of --data, the curves "
        "(.svg, .png, .pdf). As a page (.html): all of it with tables."
    ),
]
Terminal = Annotated[bool, typer.Option("--terminal", help="Draw in the terminal.")]
SavedRecord = Annotated[Path | None, typer.Option(help="Save the recorded attention: a.attn.")]
Scale = Annotated[
    str,
    typer.Option(
        metavar="shown|absolute", help="Where the colours of weights end: at the largest that is shown, or at 1, to compare."
    ),
]
Title = Annotated[str | None, typer.Option(help="Title in place of the figure's own; '' is none.")]
Width = Annotated[
    str | None,
    typer.Option(metavar="800px|6in|84mm", help="Width of an image; type and lines grow with it [default: as needed]."),
]
Theme = Annotated[
    str | None,
    typer.Option(metavar="light|dark", help="Colours [default: light for an image, as the reader's system for a page]."),
]
Contours = Annotated[bool, typer.Option("--contours", help="Weights over an image as contour lines, not as hues.")]
Transparent = Annotated[bool, typer.Option("--transparent", help="No background.")]
