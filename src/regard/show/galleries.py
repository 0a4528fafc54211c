"""Galleries: wrong captions with their attention, generated images beside the real ones; and images as PNG files."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from regard.batches.image_store import Pixels, take_pixels
from regard.corpus.examples import ImageExamples
from regard.errors import UserError
from regard.files import atomic_file, require_regular_file
from regard.scoring import sentence_bleu
from regard.show.figures.figure_files import figure_format, save_figure, to_svg, write_file
from regard.show.figures.html_pages import HtmlReport, html_report
from regard.show.figures.image_figures import ContactRow, contact_sheet_figure, image_attention_figure
from regard.show.image_attention import caption_attention
from regard.tasks.caption import CaptionRun, caption_is_true
from regard.tasks.text_to_image import TextToImageRun
from regard.tasks.translate import Translation
from regard.worlds.shapes import image_satisfies

PAGE_ENDINGS = (".html", ".htm")
COLUMN_TITLES = ("original", "reconstruction", "generated")
SHEET_MARGIN = 2  # pixels


def caption_error_gallery(run: CaptionRun, out: Path, number: int = 12, beam: int | None = None) -> str:
    """Draw wrong captions of a test set with the attention of each word, as a page (.html) or a figure. Return a description.

    Wrong is what a world knows to be false; elsewhere, the captions with the lowest BLEU."""
    paged = out.suffix.lower() in PAGE_ENDINGS
    if not paged:
        figure_format(out)
    name, examples = next(iter((run.data.tests or {"valid": run.data.valid}).items()))
    pixels = run._images.pixels(examples)
    captions = [found[0] for found in run._caption_pixels(pixels, beam=beam)]
    chosen, why = worst_captions(captions, examples)
    if not chosen:
        return f"nothing is wrong among {len(examples):,} captions of {name}; no gallery written"
    chosen = chosen[:number]
    shown = caption_attention(
        run, images_at(pixels, chosen), [captions[i].tokens for i in chosen], [captions[i].text for i in chosen]
    )
    if paged:
        notes = [f"{examples.where(i)}: {' / '.join(examples.captions[i])}" for i in chosen]
        figures = [
            (note, to_svg(image_attention_figure([image]), f"image-{i}"))
            for i, (image, note) in enumerate(zip(shown, notes), start=1)
        ]
        summary = f"{len(chosen)} captions of {name}: {why}. Coloured patches are attended to for a word; references are below."
        write_file(out, html_report(HtmlReport(f"Caption errors of {run.folder.name}", summary, figures=figures)).encode())
    else:
        save_figure(image_attention_figure(shown), out)
    return f"wrote {out}: {len(chosen)} captions of {name}, {why}"


def worst_captions(captions: Sequence[Translation], examples: ImageExamples) -> tuple[list[int], str]:
    """Return the indices of wrong captions, and by what measure. Empty captions have no attention to show and are left out."""
    present = [i for i, caption in enumerate(captions) if caption.text.strip()]
    if examples.gold:
        found = [i for i in present if not caption_is_true(captions[i].text, examples.gold[i])]
        return found, f"{len(found)} of {len(captions)} are not wholly true"
    order = sorted(present, key=lambda i: (sentence_bleu(captions[i].text, examples.captions[i]), i))
    return order, "those with the lowest BLEU"


def sample_gallery(
    run: TextToImageRun, out: Path, number: int = 12, samples: int = 4, truth: bool = True, **sampling: Any
) -> str:
    """Draw captions of the test set with the original image, its reconstruction from codes (the upper bound), and generated ones.

    Without `truth`, generated images alone. In the world of shapes, each image is marked right or wrong."""
    figure_format(out)
    name, examples = next(iter((run.data.tests or {"valid": run.data.valid}).items()))
    chosen = spread_examples(examples, number)
    captions = [examples.captions[i][0] for i in chosen]
    originals = images_at(run._images.pixels(examples), chosen)
    rebuilt = run._codes_run.decode(run._codes(examples)[chosen].reshape(-1, *run._codes_run.model.grid).astype(np.int64))
    generated = run.draw(captions, number=samples, **sampling)
    rows = []
    for caption, original, reconstruction, found in zip(captions, originals, rebuilt, generated):
        images = [*([original, reconstruction] if truth else []), *(one.image for one in found)]
        notes = ["right" if image_satisfies(image, caption) else "wrong" for image in images] if examples.gold else []
        rows.append(ContactRow(caption, images, notes))
    save_figure(contact_sheet_figure(rows, COLUMN_TITLES if truth else COLUMN_TITLES[2:]), out)
    return f"wrote {out}: {len(rows)} captions of {name}"


def spread_examples(examples: ImageExamples, number: int) -> list[int]:
    """Return the indices of examples with different captions, spread over the set."""
    first = list({captions[0]: i for i, captions in reversed(list(enumerate(examples.captions)))}.values())
    return sorted(first)[:: max(1, len(first) // number)][:number]


def images_at(pixels: Pixels, indices: Sequence[int]) -> np.ndarray:
    """Return stored images as (N, H, W, 3)."""
    return take_pixels(pixels, np.array(indices)).permute(0, 2, 3, 1).cpu().numpy()


# images as files


def check_png_path(out: Path) -> None:
    """Check, before anything is generated, that images can be written there."""
    if out.suffix.lower() != ".png":
        raise UserError(f"--out {out}: images are written as .png; use a name such as {out.stem or 'a'}.png")
    require_regular_file(out)
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it first")


def write_images(images: Sequence[np.ndarray], out: Path) -> list[Path]:
    """Write one image as a.png, several as a-1.png, a-2.png … with a contact sheet a.png. Return the paths of the images."""
    paths = [out] if len(images) == 1 else [out.with_name(f"{out.stem}-{n}{out.suffix}") for n in range(1, len(images) + 1)]
    files = [*zip(paths, images), *([(out, contact_sheet(images))] if len(images) > 1 else [])]
    for path, pixels in files:
        with atomic_file(path) as temporary:
            Image.fromarray(pixels).save(temporary, format="PNG")
    return paths


def contact_sheet(images: Sequence[np.ndarray]) -> np.ndarray:
    """Return images of one size (H, W, 3) row by row on white, about as many across as down."""
    height, width = images[0].shape[:2]
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    shape = (rows * (height + SHEET_MARGIN) + SHEET_MARGIN, columns * (width + SHEET_MARGIN) + SHEET_MARGIN, 3)
    sheet = np.full(shape, 255, np.uint8)
    for index, image in enumerate(images):
        top, left = (SHEET_MARGIN + at * (side + SHEET_MARGIN) for at, side in zip(divmod(index, columns), (height, width)))
        sheet[top : top + height, left : left + width] = image
    return sheet
