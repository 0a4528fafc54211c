"""Verbs for texts: translate, generate, fill, classify, tag, answer, embed."""

import sys
from dataclasses import asdict
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
    Ensemble,
    Greedy,
    MaxTokens,
    Precision,
    RunFolder,
    Seed,
    SourceLanguage,
    TargetLanguage,
    Task,
    Texts,
    TopK,
    TopP,
    app,
    load_for,
    read_batches,
    refuse,
    with_task_prefix,
)
from regard.cli.output import print_item, print_stream, print_texts
from regard.errors import UserError


@app.command()
def translate(
    run: RunFolder,
    texts: Texts = None,
    beam: Beam = None,
    greedy: Greedy = False,
    length_penalty: Annotated[
        float | None, typer.Option(help="Exponent α of the length penalty [default: from the recipe].")
    ] = None,
    max_tokens: MaxTokens = None,
    number: Annotated[
        int, typer.Option("--number", "-n", min=1, help="Print the n best translations of each text, or samples.")
    ] = 1,
    temperature: Annotated[float | None, typer.Option(min=1e-6, help="Sample at this temperature instead of searching.")] = None,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    too_long: Annotated[
        str | None,
        typer.Option(
            metavar="error|truncate|split",
            help="Texts longer than the model takes; split: translate them part by part [default: from the recipe].",
        ),
    ] = None,
    task: Task = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    ensemble: Ensemble = None,
    device: Device = "auto",
    precision: Precision = None,
    engine: Engine = "auto",
    as_json: AsJson = False,
) -> None:
    """Translate texts.

    A text-to-text run performs the task of --task, or of the prefix of the text.
    """
    from regard.run.engines import require_names, use_engine

    require_names(engine, precision)
    opened, place = load_for("translate", run, device, task, ensemble=ensemble, languages=(source_language, target_language)), 0
    for lines in distributed.broadcast_each(read_batches(texts, doing="translating")):
        if not place:
            use_engine(opened, "regard" if temperature else engine, precision, characters=sum(map(len, lines)))
        translations = opened.translate(
            with_task_prefix(opened, lines, task),
            beam=1 if greedy else beam,
            length_penalty=length_penalty,
            max_tokens=max_tokens,
            number=number,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            too_long=too_long,
            place=place,
        )
        place += len(lines)
        for found in (one for best in translations for one in best):
            used = {} if opened._engine is None else {"engine": found.engine}
            print_item(as_json, found.text, text=found.text, score=round(found.score, 6), **used)


@app.command()
def generate(
    run: RunFolder,
    prompts: Texts = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "--max-new-tokens", help="Maximal number of tokens to generate.")
    ] = 100,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the most likely token at each step (the default).")] = False,
    temperature: Annotated[float | None, typer.Option(help="Sample at this temperature instead of decoding greedily.")] = None,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Penalise tokens that already occur; 1.2 is common, 1 disables it.")
    ] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Stop before this text (for a newline: $'\\n'); may be repeated.")
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", help="Texts to sample for each prompt.")] = 1,
    seed: Seed = 0,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help='Print text while it is generated, with --json as {"piece"} objects [default: on for one prompt on a terminal].',
        ),
    ] = None,
    ensemble: Ensemble = None,
    device: Device = "auto",
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Continue prompts with a language model."""
    from regard.decoding.sampling import SamplingParams
    from regard.tasks.language import GENERATE_BATCH

    if greedy and temperature is not None:
        raise UserError(f"--greedy and --temperature {temperature} exclude each other: leave one out")
    settings: dict[str, Any] = dict(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        stop=stop or (),
        seed=seed,
    )
    SamplingParams(number=number, **settings)  # validated before a model is loaded
    opened, first = load_for("generate", run, device, ensemble=ensemble, precision=precision), 0
    for lines in read_batches(prompts, size=1 if stream else GENERATE_BATCH):
        if stream or (stream is None and number == len(lines) == 1 and sys.stdout.isatty() and not as_json):
            for i, sample in product(range(len(lines)), range(number)):
                print_stream(opened.stream(lines[i], place=first + i, sample=sample, **settings), as_json)
        else:
            for found in opened.generate(lines, number=number, place=first, **settings):
                print_texts(found, as_json)
        first += len(lines)


@app.command()
def fill(
    run: RunFolder,
    texts: Texts = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Candidates for each mask.")] = 5,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Fill in masked words: "a [MASK] ran"."""
    opened = load_for("fill", run, device)
    for lines in read_batches(texts):
        for found in opened.fill(lines, number=number):
            candidates = [
                [{"text": guess.label, "probability": round(guess.probability, 6)} for guess in mask] for mask in found.candidates
            ]
            shown = ["  " + "   ".join(f"{guess.label} {guess.probability:.3f}" for guess in mask) for mask in found.candidates]
            print_item(as_json, "\n".join([found.text, *shown]), text=found.text, candidates=candidates)


@app.command()
def classify(
    run: RunFolder,
    texts: Texts = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Print the n most probable labels.")] = 1,
    every: Annotated[bool, typer.Option("--all", help="Print every label, the most probable first.")] = False,
    task: Task = None,
    device: Device = "auto",
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Predict labels of texts or images.

    Labels and probabilities are separated by tabs, one line per text. A regression run predicts scores. Images are given by
    path; a tab separates the two texts of a pair.
    """
    refuse((every and number > 1, f"--all and -n {number} exclude each other: leave one out"))
    opened = load_for("classify", run, device, task, precision=precision)
    for lines in read_batches(texts, paths="image" in opened.task.reads):
        for found in opened.classify(lines, task) if task else opened.classify(lines):
            if isinstance(found, float):
                refuse((every or number > 1, f"--all, -n: {run} {opened.task.does}, which has no labels; leave them out"))
                print_item(as_json, f"{found:.4f}", score=round(found, 6))
                continue
            best = found if every else found[:number]
            rows = [{"label": one.label, "probability": round(one.probability, 6)} for one in best]
            shown = "\t".join(f"{one.label}\t{one.probability:.4f}" for one in best)
            print_item(as_json, shown, **rows[0], **({"labels": rows} if every or number > 1 else {}))


@app.command()
def tag(run: RunFolder, texts: Texts = None, device: Device = "auto", as_json: AsJson = False) -> None:
    """Predict the label of every word."""
    opened = load_for("tag", run, device)
    for lines in read_batches(texts):
        for found in opened.tag(lines):
            shown = "\n".join(f"{word}\t{label}" for word, label in zip(found.words, found.labels))
            print_item(as_json, f"{shown}\n", tokens=found.words, labels=found.labels)


@app.command()
def answer(
    run: RunFolder,
    pairs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUESTION<TAB>CONTEXT]...", help="Questions to answer [default: standard input, one per line]."),
    ] = None,
    question: Annotated[str | None, typer.Option(help="A single question; needs --context.")] = None,
    context: Annotated[str | None, typer.Option(help="The text that contains its answer.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Print the k best candidates.")] = 1,
    unanswerable: Annotated[
        bool | None,
        typer.Option(
            "--unanswerable/--answerable",
            help="Whether a question may have no answer, printed as an empty line [default: from the recipe].",
        ),
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Answer questions with spans of their contexts."""
    refuse(
        ((question is None) != (context is None), "--question and --context go together"),
        (
            question is not None and bool(pairs),
            "give --question and --context, or tab-separated questions and contexts, not both",
        ),
    )
    opened = load_for("answer", run, device)
    lines = ([line.split("\t", 1) for line in lines] for lines in read_batches(pairs))
    for batch in [[[question, context]]] if question is not None and context is not None else lines:
        for number, pair in enumerate(batch, start=1):
            if len(pair) != 2:
                raise UserError(f"line {number} has no tab; write a question, a tab and its context")
        for candidates in opened.answer(*zip(*batch), number=top, unanswerable=unanswerable):
            for best in candidates:
                values = {**asdict(best), "probability": round(best.probability, 6)}
                print_item(as_json, " ".join(best.text.split()), **values)


@app.command()
def embed(
    run: RunFolder,
    texts: Texts = None,
    layer: Annotated[int, typer.Option(help="Layer to read: 0 is the word embeddings, -1 the last layer.")] = -1,
    pool: Annotated[
        str,
        typer.Option(
            metavar="mean|cls|words",
            help="mean: the average over tokens; cls: the first special token; words: one vector per word.",
        ),
    ] = "mean",
    out: Annotated[Path | None, typer.Option(help="Plot the vectors of --words: .svg, .png or .pdf.")] = None,
    words: Annotated[str | None, typer.Option(help="Comma-separated words to plot.")] = None,
    read_as: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="image|text",
            help="How to read the input, for a run of images and texts [default: image if it is the path of a file].",
        ),
    ] = None,
    device: Device = "auto",
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Print vectors of texts, words or images."""
    opened = load_for("embed", run, device, precision=precision)
    options = {} if read_as is None else {"read_as": read_as}
    if options and "match" not in opened.task.verbs:
        raise UserError(f"--as {read_as}: {run} {opened.task.does}, and nothing else; leave it out")
    batches = read_batches(texts, paths="image" in opened.task.reads)
    if out is not None:
        from regard.show.word_similarity import draw_word_similarity

        print(draw_word_similarity(opened, [line for lines in batches for line in lines], words, out, layer=layer))
        return
    for lines in batches:
        for text, found in zip(lines, opened.embed(lines, layer=layer, pool=pool, **options)):
            vectors = [[round(float(x), 6) for x in vector] for vector in found.vectors]
            shown = "\n".join(" ".join(map(str, (token, *vector))) for token, vector in zip(found.tokens, vectors))
            values = {"tokens": found.tokens, "vectors": vectors} if pool == "words" else {"text": text, "vector": vectors[0]}
            print_item(as_json, shown, **values)
