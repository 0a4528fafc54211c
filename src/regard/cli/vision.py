"""Verbs for images: draw, caption, match."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import (
    AsJson,
    Beam,
    Device,
    Ensemble,
    Greedy,
    MaxTokens,
    RunFolder,
    Seed,
    TopK,
    TopP,
    app,
    load_for,
    read_batches,
    refuse,
)
from regard.cli.output import print_item, print_texts

Images = Annotated[
    list[str] | None,
    typer.Argument(metavar="[IMAGE]...", help="Paths of images [default: standard input, one per line]."),
]


@app.command()
def draw(
    run: RunFolder,
    text: Annotated[str | None, typer.Argument(help="Description of the image.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Image to write (.png). Several images are written as a-1.png, a-2.png … and a contact sheet a.png; "
            "existing files are overwritten."
        ),
    ] = None,
    gallery: Annotated[
        Path | None,
        typer.Option(help="Instead, draw captions of the test set beside the reference images: .svg, .png or .pdf."),
    ] = None,
    references: Annotated[bool, typer.Option(help="With --gallery, show the reference images.")] = True,
    number: Annotated[
        int | None,
        typer.Option("--number", "-n", help="Images to draw for each text [default: 1, or 4 with --gallery]."),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; lower is more likely and less diverse.")] = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the most likely code at each step.")] = False,
    seed: Seed = 0,
    rerank: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Keep the candidates that best match the text according to this CLIP run, best first."),
    ] = None,
    candidates: Annotated[int | None, typer.Option(help="With --rerank, how many to draw and choose from [default: 32].")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Draw images from a text (DALL·E)."""
    from regard.run.load import load_native
    from regard.show.galleries import check_png_path, sample_gallery, write_images

    refuse(
        (
            gallery is not None and bool(text or out),
            "--gallery takes its texts from the run's test set: leave out the text and --out",
        ),
        (
            gallery is None and (text is None or out is None),
            "give a text and --out a.png; or --gallery a.png, which takes its texts from the run's test set",
        ),
    )
    if out is not None:
        check_png_path(out)
    opened = load_for("draw", run, device)
    settings: dict[str, Any] = dict(
        temperature=None if greedy else temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        candidates=candidates,
        reranker=None if rerank is None else load_native(rerank, device=device),
    )
    if gallery is not None:
        print(sample_gallery(opened, gallery, samples=4 if number is None else number, truth=references, **settings))
        return
    assert out is not None
    (found,) = opened.draw([text], number=1 if number is None else number, **settings)
    for path, image in zip(write_images([image.image for image in found], out), found):
        print_item(as_json, f"{path}\t{image.score:.4f}", file=str(path), score=round(image.score, 6))


@app.command()
def caption(
    run: RunFolder,
    images: Images = None,
    beam: Beam = None,
    greedy: Greedy = False,
    max_tokens: MaxTokens = None,
    number: Annotated[
        int | None, typer.Option("--number", "-n", min=1, help="Print the n best captions; with --gallery, show n images.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Figure of the attention for each word: .svg, .png or .pdf.")] = None,
    gallery: Annotated[
        Path | None,
        typer.Option(help="Instead, show the worst captions of the test set with their attention: .html, .svg, .png or .pdf."),
    ] = None,
    ensemble: Ensemble = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Caption images, and show where each word attends."""
    from regard.show.figures.figure_files import figure_format
    from regard.show.galleries import caption_error_gallery
    from regard.show.image_attention import draw_caption_attention

    refuse(
        (
            gallery is not None and bool(images or out),
            "--gallery takes its images from the run's test set: leave out images and --out",
        )
    )
    if out is not None:
        figure_format(out)  # checked before a model is loaded
    opened = load_for("caption", run, device, ensemble=ensemble)
    if gallery is not None:
        print(caption_error_gallery(opened, gallery, number or 12, beam=1 if greedy else beam))
        return
    captioned: list[str] = []
    captions: list[Any] = []
    for paths in read_batches(images, size=256, paths=True):
        found = opened.caption(paths, beam=1 if greedy else beam, max_tokens=max_tokens, number=number or 1)
        for best in found:
            print_texts(best, as_json)
        captioned, captions = captioned + paths, captions + [best[0] for best in found]
    if out is not None:
        draw_caption_attention(opened, captioned, captions, out)


@app.command()
def match(
    run: RunFolder,
    images: Images = None,
    labels: Annotated[str, typer.Option(help="Comma-separated labels, or a file with one per line.")] = "",
    template: Annotated[
        list[str] | None,
        typer.Option(help="Prompt template such as 'a photo of a {}'; several are averaged (may be repeated)."),
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Rank labels for images (CLIP).

    Print every label with its probability, best first.
    """
    opened = load_for("match", run, device)
    from regard.tasks.contrastive import parse_labels

    choices = parse_labels(labels)
    for lines in read_batches(images, paths=True):
        for path, found in zip(lines, opened.match(lines, choices, template or ["{}"])):
            prefix = f"{path}\t" if images is None or len(images) > 1 else ""
            shown = "\n".join(f"{prefix}{one.label}\t{one.probability:.4f}" for one in found)
            rows = [{"label": one.label, "probability": round(one.probability, 6)} for one in found]
            print(json.dumps(rows, ensure_ascii=False) if as_json else shown)
