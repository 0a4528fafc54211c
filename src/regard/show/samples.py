"""A contact sheet of what a run draws for captions it has not learned."""

from pathlib import Path
from typing import Any

import numpy as np

from regard.batches.image_store import take
from regard.corpus.examples import Pictures
from regard.show.figures.contact import Row, contact
from regard.show.figures.style import format_of, save
from regard.tasks.text_to_image import DrawRun
from regard.worlds.shapes import shows

HEADS = ("as it is", "of its codes", "drawn")


def gallery(run: DrawRun, out: Path, number: int = 12, samples: int = 4, truth: bool = True, **manner: Any) -> str:
    """Captions of the test set, each with its true picture, that picture made of its codes again (the best that could be drawn),
    and what is drawn; without `truth`, what is drawn alone. On the world of shapes the judge says of each whether it is right."""
    format_of(out)
    name, examples = next(iter((run.data.tests or {"valid": run.data.valid}).items()))
    chosen = spread(examples, number)
    captions = [examples.captions[i][0] for i in chosen]
    real = take(run.pixels(examples), np.array(chosen)).permute(0, 2, 3, 1).cpu().numpy()
    rebuilt = run.codes.decode(run.codes_of(examples)[chosen].reshape(-1, *run.codes.model.grid).astype(np.int64))
    drawn = run.draw(captions, number=samples, **manner)
    rows = []
    for caption, as_is, again, found in zip(captions, real, rebuilt, drawn):
        pictures = [*([as_is, again] if truth else []), *(one.picture for one in found)]
        notes = ["right" if shows(picture, caption) else "wrong" for picture in pictures] if examples.gold else []
        rows.append(Row(caption, pictures, notes))
    save(contact(rows, HEADS if truth else HEADS[2:]), out)
    return f"wrote {out}: {len(rows)} captions of {name}"


def spread(examples: Pictures, number: int) -> list[int]:
    """Examples with different captions, from all over the set."""
    first = list({captions[0]: i for i, captions in reversed(list(enumerate(examples.captions)))}.values())
    return sorted(first)[:: max(1, len(first) // number)][:number]
