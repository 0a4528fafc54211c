"""A contact sheet of what a run draws for captions it has not learned."""

from pathlib import Path
from typing import Any

import numpy as np

from regard.batches.image_store import take_pixels
from regard.corpus.examples import ImageExamples
from regard.show.figures.contact import ContactRow, contact_sheet_figure
from regard.show.figures.style import figure_format, save_figure
from regard.tasks.text_to_image import TextToImageRun
from regard.worlds.shapes import image_satisfies

COLUMN_TITLES = ("as it is", "of its codes", "drawn")


def sample_gallery(run: TextToImageRun, out: Path, number: int = 12, samples: int = 4, truth: bool = True, **manner: Any) -> str:
    """Captions of the test set, each with its true picture, that picture made of its codes again (the best that could be drawn),
    and what is drawn; without `truth`, what is drawn alone. On the world of shapes the judge says of each whether it is right."""
    figure_format(out)
    name, examples = next(iter((run.data.tests or {"valid": run.data.valid}).items()))
    chosen = spread_examples(examples, number)
    captions = [examples.captions[i][0] for i in chosen]
    real = take_pixels(run._images.pixels(examples), np.array(chosen)).permute(0, 2, 3, 1).cpu().numpy()
    rebuilt = run._codes_run.decode(run._codes(examples)[chosen].reshape(-1, *run._codes_run.model.grid).astype(np.int64))
    drawn = run.draw(captions, number=samples, **manner)
    rows = []
    for caption, as_is, again, found in zip(captions, real, rebuilt, drawn):
        pictures = [*([as_is, again] if truth else []), *(one.picture for one in found)]
        notes = ["right" if image_satisfies(picture, caption) else "wrong" for picture in pictures] if examples.gold else []
        rows.append(ContactRow(caption, pictures, notes))
    save_figure(contact_sheet_figure(rows, COLUMN_TITLES if truth else COLUMN_TITLES[2:]), out)
    return f"wrote {out}: {len(rows)} captions of {name}"


def spread_examples(examples: ImageExamples, number: int) -> list[int]:
    """Examples with different captions, from all over the set."""
    first = list({captions[0]: i for i, captions in reversed(list(enumerate(examples.captions)))}.values())
    return sorted(first)[:: max(1, len(first) // number)][:number]
