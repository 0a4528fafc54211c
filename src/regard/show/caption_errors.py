"""Pictures of what a captioner said and where it looked; and a gallery of what it got wrong."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regard.batches.image_store import decode_images, take_pixels
from regard.corpus.examples import ImageExamples
from regard.errors import UserError
from regard.scoring import sentence_bleu
from regard.show.figures.html_report import HtmlReport, html_report
from regard.show.figures.overlay import ImageAttention, image_attention_figure
from regard.show.figures.style import figure_format, save_figure, to_svg
from regard.tasks.caption import CaptionRun, caption_is_true
from regard.tasks.shared.images import ImageInput, as_image_source
from regard.tasks.translate import Translation

PAGE_ENDINGS = (".html", ".htm")


def draw_caption_attention(run: CaptionRun, pictures: Sequence[ImageInput], captions: Sequence[Translation], out: Path) -> None:
    """The given pictures with their captions, a row or more each."""
    figure_format(out)
    pixels = decode_images([as_image_source(one) for one in pictures], run._images.transform)
    save_figure(
        image_attention_figure(caption_attention(run, pixels, [caption.tokens for caption in captions], [""] * len(captions))),
        out,
    )


def caption_attention(
    run: CaptionRun, pixels: np.ndarray, captions: Sequence[list[int]], titles: Sequence[str]
) -> list[ImageAttention]:
    found = zip(pixels, run._align_tokens(pixels, captions), titles)
    return [ImageAttention(picture, look.words, look.weights, title) for picture, look, title in found]


def caption_error_gallery(run: CaptionRun, out: Path, number: int = 12, beam: int | None = None) -> str:
    """Wrong captions of a test set, with where the model looked at each word: one page (.html) or one picture. What a world's
    judge says is wrong, else those that are least like their references."""
    paged = out.suffix.lower() in PAGE_ENDINGS
    if not paged:
        figure_format(out)
    name, examples = next(iter((run.data.tests or {"valid": run.data.valid}).items()))
    pixels = run._images.pixels(examples)
    said = [found[0] for found in run._caption_pixels(pixels, beam=beam)]
    chosen, why = worst_captions(said, examples)
    if not chosen:
        return f"nothing is wrong among {len(examples):,} captions of {name}; no gallery written"
    chosen = chosen[:number]
    kept = take_pixels(pixels, np.array(chosen)).permute(0, 2, 3, 1).cpu().numpy()
    told = caption_attention(run, kept, [said[i].tokens for i in chosen], [said[i].text for i in chosen])
    notes = [f"{examples.where(i)}: {' / '.join(examples.captions[i])}" for i in chosen]
    if paged:
        figures = [
            (note, to_svg(image_attention_figure([one]), f"picture-{i}"))
            for i, (one, note) in enumerate(zip(told, notes), start=1)
        ]
        summary = f"{len(chosen)} captions of {name}: {why}. Bright is where it looked for a word; below stand the references."
        text = html_report(HtmlReport(f"What {run.folder.name} got wrong", summary, figures=figures))
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{out}: cannot write the page ({error.strerror}); choose another path") from None
    else:
        save_figure(image_attention_figure(told), out)
    return f"wrote {out}: {len(chosen)} captions of {name}, {why}"


def worst_captions(said: Sequence[Translation], examples: ImageExamples) -> tuple[list[int], str]:
    """Which captions are wrong, and by what measure. Captions without words are left out: there is nothing to see of them."""
    spoken = [i for i, caption in enumerate(said) if caption.text.strip()]
    if examples.gold:
        found = [i for i in spoken if not caption_is_true(said[i].text, examples.gold[i])]
        return found, f"{len(found)} of {len(said)} are not wholly true"
    order = sorted(spoken, key=lambda i: (sentence_bleu(said[i].text, examples.captions[i]), i))
    return order, "those with the lowest BLEU"
