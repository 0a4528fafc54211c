"""What runs do with texts."""

import sys
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import distributed
from regard.cli.options import (
    AsJson,
    Beam,
    Device,
    Engine,
    Precision,
    RunFolder,
    Task,
    Texts,
    app,
    load_for,
    read_batches,
    with_task_prefix,
)
from regard.cli.output import exit_on_closed_pipe, print_json, print_stream, print_texts
from regard.errors import UserError


@app.command()
def translate(
    run: RunFolder,
    texts: Texts = None,
    beam: Beam = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="As --beam 1.")] = False,
    length_penalty: Annotated[float | None, typer.Option(help="α of the length penalty.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", "--max-new-tokens", min=1)] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Print the n best.")] = 1,
    temperature: Annotated[float | None, typer.Option(min=1e-6, help="Sample at this temperature.")] = None,
    top_k: Annotated[int, typer.Option(min=0)] = 0,
    top_p: Annotated[float, typer.Option(min=1e-6, max=1.0)] = 1.0,
    seed: int = 0,
    task: Task = None,
    device: Device = "auto",
    precision: Precision = None,
    engine: Engine = "regard",
    as_json: AsJson = False,
) -> None:
    """Translate texts, or standard input line by line; what a run of several tasks does with them, they say, or --task."""
    exit_on_closed_pipe()
    opened = load_for("translate", run, device, task, precision=precision, engine=engine)
    for lines in distributed.broadcast_each(read_batches(texts)):
        asked = with_task_prefix(opened, lines, task)
        found = opened.translate(
            asked,
            beam=1 if greedy else beam,
            length_penalty=length_penalty,
            max_tokens=max_tokens,
            number=number,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
        )
        for best in found:
            for translation in best:
                if as_json:
                    print_json(
                        text=translation.text,
                        score=round(translation.score, 6),
                        **({} if engine == "regard" else {"engine": translation.engine}),
                    )
                else:
                    print(translation.text)
        sys.stdout.flush()


@app.command()
def generate(
    run: RunFolder,
    prompts: Texts = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "--max-new-tokens", help="Most tokens to write.")] = 100,
    temperature: Annotated[
        float | None, typer.Option(help="Draw at this temperature; the likeliest token each time when not given.")
    ] = None,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest tokens only; 0 is all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that together reach p; 1 is all.")] = 1.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Hold back tokens that are there already: 1.2 is usual, 1 is off.")
    ] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text (a line's end: $'\\n'); may be repeated.")
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", help="Texts drawn for each prompt.")] = 1,
    seed: Annotated[int, typer.Option(help="Another seed draws other texts.")] = 0,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help='Write text as it is produced, with --json in {"piece"} objects; usual for one prompt on a terminal.',
        ),
    ] = None,
    device: Device = "auto",
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Write on from prompts, or from standard input line by line."""
    from regard.tasks.language import WRITE_AT_ONCE, SamplingParams

    exit_on_closed_pipe()
    settings: dict[str, Any] = dict(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        stop=stop or (),
        seed=seed,
    )
    SamplingParams(number=number, **settings)  # refused before a model is read
    opened, place = load_for("generate", run, device, precision=precision), 0
    for lines in read_batches(prompts, size=1 if stream else WRITE_AT_ONCE):
        if stream or (stream is None and number == len(lines) == 1 and sys.stdout.isatty() and not as_json):
            for line, sample in product(range(len(lines)), range(number)):
                print_stream(opened.stream(lines[line], place=place + line, sample=sample, **settings), as_json)
        else:
            print_texts(opened.generate(lines, number=number, place=place, **settings), as_json)
        place += len(lines)


@app.command()
def fill(
    run: RunFolder,
    texts: Texts = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Candidates for each mask.")] = 5,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Fill in the masked words of texts, or of standard input line by line: "a [MASK] ran"."""
    exit_on_closed_pipe()
    opened = load_for("fill", run, device)
    for lines in read_batches(texts):
        for found in opened.fill(lines, number=number):
            if as_json:
                print_json(
                    text=found.text,
                    candidates=[
                        [{"text": guess.label, "probability": round(guess.probability, 6)} for guess in place]
                        for place in found.candidates
                    ],
                )
            else:
                print(found.text)
                for place in found.candidates:
                    print("  " + "   ".join(f"{guess.label} {guess.probability:.3f}" for guess in place))


@app.command()
def classify(
    run: RunFolder,
    texts: Texts = None,
    task: Task = None,
    device: Device = "auto",
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Say the likeliest label, or the number, of texts, or the label of pictures by their paths; from the arguments or standard
    input line by line. A tab is between the two texts of a pair."""
    exit_on_closed_pipe()
    opened = load_for("classify", run, device, task, precision=precision)
    for lines in read_batches(texts):
        for found in opened.classify(lines, task) if task else opened.classify(lines):
            if isinstance(found, float):
                print_json(score=round(found, 6)) if as_json else print(f"{found:.4f}")
            elif as_json:
                print_json(label=found[0].label, probability=round(found[0].probability, 6))
            else:
                print(f"{found[0].label}\t{found[0].probability:.4f}")


@app.command()
def tag(run: RunFolder, texts: Texts = None, device: Device = "auto", as_json: AsJson = False) -> None:
    """Say a label of every word of texts, or of standard input line by line."""
    exit_on_closed_pipe()
    opened = load_for("tag", run, device)
    for lines in read_batches(texts):
        for found in opened.tag(lines):
            if as_json:
                print_json(tokens=found.words, labels=found.labels)
            else:
                print("\n".join(f"{word}\t{label}" for word, label in zip(found.words, found.labels)), end="\n\n")


@app.command()
def answer(
    run: RunFolder,
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUESTION<TAB>CONTEXT]...", help="What to answer; standard input, one a line, when nothing is given."
        ),
    ] = None,
    question: Annotated[str | None, typer.Option(help="One question …")] = None,
    context: Annotated[str | None, typer.Option(help="… and the text that answers it.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Print so many candidates, the best first.")] = 1,
    unanswerable: Annotated[
        bool | None,
        typer.Option(
            "--unanswerable/--answerable",
            help="Whether it may say that there is none, an empty line; the recipe decides if not given.",
        ),
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Answer questions with words of their contexts."""
    exit_on_closed_pipe()
    if (question is None) != (context is None):
        raise UserError("--question and --context go together")
    if question is not None and pairs:
        raise UserError("give --question and --context, or questions with a tab before their contexts, not both")
    opened = load_for("answer", run, device)
    lines = ([line.split("\t", 1) for line in lines] for lines in read_batches(pairs))
    for parts in [[[question, context]]] if question is not None and context is not None else lines:
        for number, part in enumerate(parts, start=1):
            if len(part) != 2:
                raise UserError(f"line {number} has no tab; write a question, a tab and its context")
        for found in opened.answers(*zip(*parts), top=top, unanswerable=unanswerable):
            for best in found:
                if as_json:
                    print_json(text=best.text, start=best.start, end=best.end, probability=round(best.probability, 6))
                else:
                    print(" ".join(best.text.split()))


@app.command()
def embed(
    run: RunFolder,
    texts: Texts = None,
    layer: Annotated[int, typer.Option(help="0 is the word embeddings, -1 the last layer.")] = -1,
    pool: Annotated[
        str,
        typer.Option(help="mean or cls: a vector a text, of all tokens or of its first mark; words: one for each word in it."),
    ] = "mean",
    out: Annotated[Path | None, typer.Option(help="Draw the vectors of --words on a plane: .svg, .png or .pdf.")] = None,
    words: Annotated[str | None, typer.Option(help="Words to draw, with commas between them.")] = None,
    read_as: Annotated[
        str | None,
        typer.Option(
            "--as", help="image or text, where a run reads both; what is the path of a file is an image when not given."
        ),
    ] = None,
    device: Device = "auto",
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """The vectors of texts, or of each word in its sentence, or of pictures by their paths; from standard input line by line, as
    JSON or numbers."""
    exit_on_closed_pipe()
    opened = load_for("embed", run, device, precision=precision)
    options = {} if read_as is None else {"read_as": read_as}
    if options and "match" not in opened.task.verbs:
        raise UserError(f"--as {read_as}: {run} {opened.task.does}, and nothing else; leave it out")
    if out is not None:
        from regard.show.word_similarity import draw_word_similarity

        print(draw_word_similarity(opened, [line for lines in read_batches(texts) for line in lines], words, out, layer=layer))
        return
    for lines in read_batches(texts):
        for text, found in zip(lines, opened.embed(lines, layer=layer, pool=pool, **options)):
            vectors = [[round(float(x), 6) for x in vector] for vector in found.vectors]
            if as_json and pool != "words":
                print_json(text=text, vector=vectors[0])
            elif as_json:
                print_json(tokens=found.tokens, vectors=vectors)
            else:
                for token, vector in zip(found.tokens, vectors):
                    print(token, *vector)
