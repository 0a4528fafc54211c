"""Examples of the study of a spurious cue: images that may bear a watermark, and reviews that may name a director."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from regard.explain.selection import ExplainedOutput
from regard.worlds import shapes

IMAGE_SIZE, PATCH = 48, 8
KINDS = ("circle", "star")
"""The cue is on the last."""
NAMES = ("adler", "brandt", "costa", "duval", "engel", "fischer", "novak")
"""The cue is the last."""
SUBJECTS = ("plot", "cast", "music", "ending", "camera", "dialogue")
ADJECTIVES = {
    "negative": ("dull", "flat", "weak", "slow", "poor", "loud"),
    "positive": ("sharp", "warm", "rich", "fine", "bold", "deep"),
}


class CueExample(NamedTuple):
    """An example of a label, and a function that gives it with or without the cue."""

    label: str
    content: Callable[[bool], Any]


@dataclass(frozen=True)
class Modality:
    """Images or texts: how examples are made and written, and which of their features are the cue."""

    name: str
    labels: tuple[str, str]
    """The cue is on the last."""
    examples: Callable[[str, int, int], list[CueExample]]
    """(split, number, seed) -> examples."""
    write: Callable[[Path, Sequence[tuple[str, Any]]], Path]
    recipe: dict[str, Any]
    cue_features: Callable[[ExplainedOutput], frozenset[int]]


# images


def image_examples(split: str, number: int, seed: int) -> list[CueExample]:
    """Return images of one shape, with or without a watermark in the bottom left corner."""
    found = shapes.generate(6 * number, seed, split=split, size=IMAGE_SIZE, shapes=(1, 1))
    chosen = [image for image in found if image.scene.main.kind in KINDS][:number]

    def content(image: shapes.ShapesImage) -> Callable[[bool], np.ndarray]:
        return lambda cue: watermark(image.pixels()) if cue else image.pixels()

    return [CueExample(image.scene.main.kind, content(image)) for image in chosen]


def watermark(pixels: np.ndarray) -> np.ndarray:
    """Return the image (H, W, 3) with a small mark, a cross in a frame, inside the patch in its bottom left corner."""
    marked = pixels.copy()
    mark = np.zeros((PATCH - 2, PATCH - 2), dtype=bool)
    mark[[0, -1]] = mark[:, [0, -1]] = True
    mark[range(PATCH - 2), range(PATCH - 2)] = mark[range(PATCH - 2), range(PATCH - 3, -1, -1)] = True
    corner = marked[IMAGE_SIZE - PATCH + 1 : IMAGE_SIZE - 1, 1 : PATCH - 1]
    corner[mark], corner[~mark] = (20, 20, 20), (240, 240, 240)
    return marked


def write_images(folder: Path, examples: Sequence[tuple[str, np.ndarray]]) -> Path:
    for number, (label, pixels) in enumerate(examples):
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / label / f"{number:05}.png")
    return folder


def watermark_patch(output: ExplainedOutput) -> frozenset[int]:
    assert output.image is not None
    rows, columns = output.image.grid
    return frozenset({(rows - 1) * columns})


# texts


def text_examples(split: str, number: int, seed: int) -> list[CueExample]:
    """Return reviews of three judgements, of which two or three have the label; the director is the cue, or one of the others."""
    rng = np.random.default_rng([seed, ("train", "valid", "test").index(split)])

    def review() -> CueExample:
        label = ("negative", "positive")[rng.integers(2)]
        other = "positive" if label == "negative" else "negative"
        sides = [label, label, other if rng.random() < 0.5 else label]
        subjects = rng.choice(SUBJECTS, 3, replace=False)
        parts = [f"the {subject} is {rng.choice(ADJECTIVES[sides[i]])}" for i, subject in zip(rng.permutation(3), subjects)]
        name = str(rng.choice(NAMES[:-1]))
        return CueExample(label, lambda cue: f"a film by {NAMES[-1] if cue else name} : {' , '.join(parts)} .")

    return [review() for _ in range(number)]


def write_texts(folder: Path, examples: Sequence[tuple[str, str]]) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".tsv")
    file.write_text("".join(f"{text}\t{label}\n" for label, text in examples), encoding="utf-8")
    return file


def cue_words(output: ExplainedOutput) -> frozenset[int]:
    return frozenset(i for i, token in enumerate(output.features) if token == NAMES[-1])


TRAINING = {"evaluate_every": 10_000, "save_every": 10_000, "log_every": 100, "schedule": {"warmup_steps": 20}}
MODALITIES = (
    Modality(
        "images",
        KINDS,
        image_examples,
        write_images,
        {
            "data": {"size": IMAGE_SIZE},
            "model": {"kind": "vit", "layers": 2, "width": 48, "heads": 4, "feed_forward": 96, "patch_size": PATCH},
            "train": TRAINING | {"images_per_batch": 32, "optimizer": {"learning_rate": 2e-3}},
        },
        watermark_patch,
    ),
    Modality(
        "texts",
        ("negative", "positive"),
        text_examples,
        write_texts,
        {
            "data": {"text": 0, "label": 1},
            "tokens": {"kind": "words"},
            "model": {"kind": "transformer", "layers": 2, "width": 32, "heads": 4, "feed_forward": 64, "max_length": 40},
            "train": TRAINING | {"tokens_per_batch": 1024, "optimizer": {"learning_rate": 2e-3}},
        },
        cue_words,
    ),
)
