"""Pictures with all that is known of them, drawn from a seed and written to files."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.worlds.shapes.caption import GroundedCaption, captions
from regard.worlds.shapes.render import render_scene
from regard.worlds.shapes.scene import COLOURS, HELD_OUT, KINDS, Scene, Shape, sample_scene

SPLITS = ("train", "valid", "test", "composition")
CAPTIONS_PER_IMAGE = 5  # of every picture
MAX_DUPLICATES = 2000  # draws in a row without a new scene before they count as used up
LABELS = {"kind": KINDS, "colour": COLOURS, "both": tuple(f"{colour} {kind}" for colour in COLOURS for kind in KINDS)}
README = """# A world of shapes

Pictures of {size} by {size} pixels, as `regard world shapes --number {number} --seed {seed} --size {size}` writes them.
{number} pictures to train on, {held_out} each for valid, test and composition; no scene is in two of them. Every picture of
composition has a combination of colour and kind that none of the others has:
{combinations}.

A folder has its pictures and `captions.jsonl`, a line for each of them:

| key | what it is |
|---|---|
| `file` | the picture |
| `captions` | {captions} sentences that are true of it |
| `label`, `kind`, `colour` | of its only shape, or the largest; of several as large the topmost, then the leftmost |
| `boxes` | of each caption the noun phrases: `words`, the first and the one after the last; `boxes` of the shapes meant |
| `scene` | every shape, and the background |

Words are what spaces separate. Boxes are x0, y0, x1, y1 in pixels from the top left; x1 and y1 are the first outside."""


@dataclass(frozen=True, slots=True)
class ShapesImage:
    scene: Scene
    captions: tuple[GroundedCaption, ...]

    def pixels(self) -> np.ndarray:
        """(size, size, 3), RGB in uint8; drawn anew each time."""
        return render_scene(self.scene)

    def label(self, of: str = "both") -> str:
        """What it is a picture of: one of LABELS[of]."""
        main = self.scene.main
        return {"kind": main.kind, "colour": main.colour, "both": f"{main.colour} {main.kind}"}[of]


def generate(
    number: int, seed: int, *, split: str = "train", size: int = 32, shapes: tuple[int, int] = (1, 4)
) -> list[ShapesImage]:
    """The first `number` pictures of a seed, all different; fewer are always the beginning of more. Of the splits, composition
    alone has the held-out combinations of colour and kind, and has one in every picture, as its label, and in every caption."""
    if number <= 0:
        raise UserError(f"number = {number}: ask for at least one picture")
    if split not in SPLITS:
        raise UserError(f"split = {split!r}: the splits are {', '.join(SPLITS)}")
    if size not in range(24, 129, 8):
        raise UserError(f"size = {size}: a multiple of 8 from 24 to 128")
    if not 1 <= shapes[0] <= shapes[1] <= 4:
        raise UserError(f"shapes = {shapes[0]} to {shapes[1]}: from 1 to 4, the fewest first")
    found: dict[tuple[Shape, ...], ShapesImage] = {}
    idle = 0
    for scene in iterate_scenes(seed, split, size, shapes):
        idle += 1
        if scene.shapes not in found:
            idle = 0
            found[scene.shapes] = ShapesImage(
                scene, captions(scene, CAPTIONS_PER_IMAGE, Random(f"captions {seed} {split} {len(found)}"))
            )
        if len(found) == number:
            return list(found.values())
        if idle == MAX_DUPLICATES:
            break
    raise UserError(
        f"number = {number}: {split} pictures with {shapes[0]} to {shapes[1]} shapes run dry at {len(found)}; ask for fewer"
    )


def iterate_scenes(seed: int, split: str, size: int, shapes: tuple[int, int]) -> Iterator[Scene]:
    """Those of a split, without end."""
    held_out = split == "composition"
    draws = Random(f"composition {seed}" if held_out else f"shapes {seed}")
    while True:
        scene = sample_scene(draws, size, shapes, held_out)
        if assign_split(scene) == split:
            yield scene


def assign_split(scene: Scene) -> str:
    """By the shapes alone, so that no seed and no number puts a test scene into train: one of sixteen each for valid and test."""
    if scene.novel:
        return "composition"
    drawn = hashlib.blake2b(repr(scene.shapes).encode(), digest_size=1).digest()[0] % 16
    return {0: "valid", 1: "test"}.get(drawn, "train")


def write(folder: Path, number: int, seed: int, size: int = 32) -> None:
    """PNG files and captions.jsonl: `number` pictures to train on and a twentieth of that, at least 200, for each other split."""
    held_out = max(200, number // 20)
    for path in (folder / name for name in (*SPLITS, "README.md")):
        if path.exists():
            raise UserError(f"{path} is there already: choose another folder, or remove it")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose another folder")
    for split in SPLITS:
        pictures = generate(number if split == "train" else held_out, seed, split=split, size=size)
        write_images(folder / split, pictures)
    combinations = ", ".join(f"{colour} {kind}" for colour, kind in sorted(HELD_OUT))
    (folder / "README.md").write_bytes(
        (
            README.format(
                number=number, held_out=held_out, seed=seed, size=size, captions=CAPTIONS_PER_IMAGE, combinations=combinations
            )
            + "\n"
        ).encode()
    )


def write_images(folder: Path, pictures: list[ShapesImage]) -> None:
    """Pictures as files, and what is known of them, a line each."""
    from PIL import Image

    folder.mkdir(parents=True)
    digits = len(str(len(pictures) - 1))
    with (folder / "captions.jsonl").open("w", encoding="utf-8", newline="\n") as lines:
        for rank, picture in enumerate(pictures):
            name = f"{rank:0{digits}}.png"
            Image.fromarray(picture.pixels()).save(folder / name)
            lines.write(json.dumps(image_to_json(picture, name)) + "\n")


def image_to_json(picture: ShapesImage, name: str) -> dict[str, Any]:
    boxes = [
        [{"words": [phrase.start, phrase.end], "boxes": phrase.boxes} for phrase in caption.phrases]
        for caption in picture.captions
    ]
    labels = {"label": picture.label(), "kind": picture.label("kind"), "colour": picture.label("colour")}
    return {
        "file": name,
        "captions": [caption.text for caption in picture.captions],
        **labels,
        "boxes": boxes,
        "scene": asdict(picture.scene),
    }


def scene_from_json(record: dict[str, Any]) -> Scene:
    """The scene in a line of captions.jsonl."""
    scene = record["scene"]
    shapes = tuple(Shape(**{**shape, "box": tuple(shape["box"])}) for shape in scene["shapes"])
    return Scene(scene["size"], shapes, scene["shade"], scene["noise"])
