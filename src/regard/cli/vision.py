"""What runs do with pictures."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import AsJson, Beam, Device, RunFolder, app, load_for, read_batches
from regard.cli.output import exit_on_closed_pipe, print_json, print_texts
from regard.errors import UserError


@app.command()
def draw(
    run: RunFolder,
    text: Annotated[str | None, typer.Argument(help="What the picture should show.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The picture to write, a .png; of several a sheet with all of them, "
            "and each beside it: a-1.png, a-2.png … What is there is overwritten."
        ),
    ] = None,
    gallery: Annotated[
        Path | None, typer.Option(help="Instead, draw captions of its test set beside the true pictures: .svg, .png or .pdf.")
    ] = None,
    truth: Annotated[bool, typer.Option(help="With --gallery, show the true pictures too.")] = True,
    number: Annotated[
        int | None,
        typer.Option(
            "--number", "-n", help="Pictures to draw; of each caption with --gallery. 1, and 4 with --gallery, when not given."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Lower is likelier and more alike.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest codes only; 0 is all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest codes that together reach p; 1 is all.")] = 1.0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest code each time.")] = False,
    seed: Annotated[int, typer.Option(help="Another seed draws other pictures.")] = 0,
    reranker: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Keep the pictures that this run (CLIP) finds to fit the text best, best first."),
    ] = None,
    candidates: Annotated[int | None, typer.Option(help="Draw so many to choose from; 32 when not given.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Draw pictures from a text."""
    from regard.run.load import load
    from regard.show.contact_sheet import check_png_path, write_images
    from regard.show.samples import sample_gallery as draw_gallery

    if gallery is not None and (text or out):
        raise UserError("--gallery takes its texts from the run's test set: leave out the text and --out")
    if gallery is None and (text is None or out is None):
        raise UserError("give a text and --out a.png; or --gallery a.png, which takes its texts from the run's test set")
    if out is not None:
        check_png_path(out)
    opened = load_for("draw", run, device)
    manner: dict[str, Any] = dict(
        temperature=None if greedy else temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        candidates=candidates,
        reranker=None if reranker is None else load(reranker, device=device),
    )
    if gallery is not None:
        print(draw_gallery(opened, gallery, samples=4 if number is None else number, truth=truth, **manner))
        return
    assert out is not None
    (found,) = opened.draw([text], number=1 if number is None else number, **manner)
    for path, one in zip(write_images([one.picture for one in found], out), found):
        print_json(file=str(path), score=round(one.score, 6)) if as_json else print(f"{path}\t{one.score:.4f}")


@app.command()
def caption(
    run: RunFolder,
    pictures: Annotated[
        list[str] | None,
        typer.Argument(metavar="[IMAGE]...", help="Pictures; their paths on standard input, one a line, when none is given."),
    ] = None,
    beam: Beam = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="As --beam 1.")] = False,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", "--max-new-tokens", min=1)] = None,
    number: Annotated[
        int | None, typer.Option("--number", "-n", min=1, help="Print the n best; with --gallery, show so many.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Draw where it looked for each word: .svg, .png or .pdf.")] = None,
    gallery: Annotated[
        Path | None,
        typer.Option(help="Instead, show what it gets wrong in its test set, with where it looked: .html, .svg, .png or .pdf."),
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Say in words what pictures show, and where each word looked."""
    from regard.show.caption_errors import caption_error_gallery as draw_gallery
    from regard.show.caption_errors import draw_caption_attention, figure_format

    exit_on_closed_pipe()
    if gallery is not None and (pictures or out):
        raise UserError("--gallery takes its pictures from the run's test set: leave out pictures and --out")
    if out is not None:
        figure_format(out)  # refused before a model is read
    opened = load_for("caption", run, device)
    if gallery is not None:
        print(draw_gallery(opened, gallery, number or 12, beam=1 if greedy else beam))
        return
    seen: list[str] = []
    told: list[Any] = []
    for paths in read_batches(pictures, size=256):
        found = opened.caption(paths, beam=1 if greedy else beam, max_tokens=max_tokens, number=number or 1)
        for best in found:
            print_texts(best, as_json)
        seen, told = seen + paths, told + [best[0] for best in found]
    if out is not None:
        draw_caption_attention(opened, seen, told, out)


@app.command()
def match(
    run: RunFolder,
    images: Annotated[
        list[str] | None,
        typer.Argument(metavar="[IMAGE]...", help="Pictures by their paths; standard input, one a line, when not given."),
    ] = None,
    labels: Annotated[str, typer.Option(help="Texts to choose from, with commas between them; or a file with one a line.")] = "",
    template: Annotated[
        list[str] | None, typer.Option(help="What a label is put into: 'a photo of a {}'; of several, the mean counts.")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Which of some labels fits pictures best: every label with its probability, the best first."""
    exit_on_closed_pipe()
    opened = load_for("match", run, device)
    from regard.tasks.contrastive import parse_labels

    chosen = parse_labels(labels)
    for lines in read_batches(images):
        for path, found in zip(lines, opened.match(lines, chosen, template or ["{}"])):
            if as_json:
                print(
                    json.dumps(
                        [{"label": one.label, "probability": round(one.probability, 6)} for one in found], ensure_ascii=False
                    )
                )
            else:
                for one in found:
                    print(*([path] if images is None or len(images) > 1 else []), one.label, f"{one.probability:.4f}", sep="\t")
