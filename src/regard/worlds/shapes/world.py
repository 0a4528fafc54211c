"""Images with their annotations, generated from a seed and written to files."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from regard import worlds
from regard.errors import UserError
from regard.files import atomic_write, writing_into
from regard.progress import track
from regard.worlds.shapes.caption import GroundedCaption, sample_captions
from regard.worlds.shapes.render import render_scene
from regard.worlds.shapes.scene import COLOURS, HELD_OUT, KINDS, Scene, Shape, sample_scene

SPLITS = ("train", "valid", "test", "composition")
CAPTIONS_PER_IMAGE = 5
MAX_DUPLICATES = 2000  # consecutive repeated scenes after which they count as exhausted
LABELS = {"kind": KINDS, "colour": COLOURS, "both": tuple(f"{colour} {kind}" for colour in COLOURS for kind in KINDS)}
README = """# A world of shapes

Images of {size} × {size} pixels, written by `regard world shapes --number {number} --seed {seed} --size {size}`:
{number} training images and {held_out} each for valid, test and composition; no scene is in two splits. Every image of
composition has a combination of colour and kind that no other split has:
{combinations}.

A folder contains its images and `captions.jsonl`, one line per image:

| key | content |
|---|---|
| `file` | the image |
| `captions` | {captions} sentences that are true of it |
| `label`, `kind`, `colour` | of its only shape, or the largest; ties go to the topmost, then to the leftmost |
| `boxes` | the noun phrases of each caption: `words`, the first and the one after the last; `boxes` of the shapes they refer to |
| `scene` | every shape, and the background |

Words are separated by spaces. Boxes are x0, y0, x1, y1 in pixels from the top left; x1 and y1 are the first outside."""


@dataclass(frozen=True, slots=True)
class ShapesImage:
    """A scene and its captions."""

    scene: Scene
    captions: tuple[GroundedCaption, ...]

    def pixels(self) -> np.ndarray:
        """Return the image (size, size, 3), RGB in uint8; rendered anew on each call."""
        return render_scene(self.scene)

    def label(self, of: str = "both") -> str:
        """Return the label of its main shape, one of LABELS[of]."""
        main = self.scene.main
        return {"kind": main.kind, "colour": main.colour, "both": f"{main.colour} {main.kind}"}[of]


def generate(
    number: int, seed: int, *, split: str = "train", size: int = 32, shapes: tuple[int, int] = (1, 4)
) -> list[ShapesImage]:
    """Return the first `number` distinct images of a seed; a smaller number gives a prefix of a larger one.

    Only the split "composition" has the held-out combinations of colour and kind: one in every image, as its label, and in
    every caption.
    """
    if number <= 0:
        raise UserError(f"number = {number}: ask for at least one image")
    if split not in SPLITS:
        raise UserError(f"split = {split!r}: the splits are {', '.join(SPLITS)}")
    if size not in range(24, 129, 8):
        raise UserError(f"size = {size}: use a multiple of 8 from 24 to 128")
    if not 1 <= shapes[0] <= shapes[1] <= 4:
        raise UserError(f"shapes = {shapes[0]} to {shapes[1]}: use 1 to 4, the smaller number first")
    found: dict[tuple[Shape, ...], ShapesImage] = {}
    duplicates = 0
    for scene in _iterate_scenes(seed, split, size, shapes):
        duplicates += 1
        if scene.shapes not in found:
            duplicates = 0
            rng = Random(f"captions {seed} {split} {len(found)}")
            found[scene.shapes] = ShapesImage(scene, sample_captions(scene, CAPTIONS_PER_IMAGE, rng))
        if len(found) == number:
            return list(found.values())
        if duplicates == MAX_DUPLICATES:
            break
    raise UserError(
        f"number = {number}: {split} images with {shapes[0]} to {shapes[1]} shapes are exhausted after {len(found)}; "
        "ask for fewer"
    )


def _iterate_scenes(seed: int, split: str, size: int, shapes: tuple[int, int]) -> Iterator[Scene]:
    """Yield the scenes of a split, without end."""
    held_out = split == "composition"
    rng = Random(f"composition {seed}" if held_out else f"shapes {seed}")
    while True:
        scene = sample_scene(rng, size, shapes, held_out)
        if assign_split(scene) == split:
            yield scene


def assign_split(scene: Scene) -> str:
    """Return the split of a scene, by its shapes alone: no seed and no number puts a test scene into train."""
    return "composition" if scene.novel else worlds.assign_split(repr(scene.shapes))


def write(folder: Path, number: int, seed: int, size: int = 32) -> None:
    """Write PNG files and captions.jsonl: `number` training images, and a twentieth of that, at least 200, for each other
    split."""
    held_out = max(200, number // 20)
    for path in (folder / name for name in (*SPLITS, "README.md")):
        if path.exists():
            raise UserError(f"{path} already exists: choose another folder, or remove it")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose another folder")
    for split in SPLITS:
        _write_images(folder / split, generate(number if split == "train" else held_out, seed, split=split, size=size))
    combinations = ", ".join(f"{colour} {kind}" for colour, kind in sorted(HELD_OUT))
    text = README.format(
        number=number, held_out=held_out, seed=seed, size=size, captions=CAPTIONS_PER_IMAGE, combinations=combinations
    )
    atomic_write(folder / "README.md", text + "\n")


def _write_images(folder: Path, images: list[ShapesImage]) -> None:
    """Write images as PNG files, and their annotations to captions.jsonl."""
    from PIL import Image

    digits = len(str(len(images) - 1))
    with writing_into(folder), (folder / "captions.jsonl").open("w", encoding="utf-8", newline="\n") as lines:
        for i, image in track(enumerate(images), len(images)):
            name = f"{i:0{digits}}.png"
            Image.fromarray(image.pixels()).save(folder / name)
            lines.write(json.dumps(_image_to_json(image, name)) + "\n")


def _image_to_json(image: ShapesImage, name: str) -> dict[str, Any]:
    return {
        "file": name,
        "captions": [caption.text for caption in image.captions],
        "label": image.label(),
        "kind": image.label("kind"),
        "colour": image.label("colour"),
        "boxes": [
            [{"words": [phrase.start, phrase.end], "boxes": phrase.boxes} for phrase in caption.phrases]
            for caption in image.captions
        ],
        "scene": asdict(image.scene),
    }
