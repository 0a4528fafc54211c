"""Pictures with all that is known of them, drawn from a seed and written to files."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from regard.errors import Mistake
from regard.worlds.shapes.caption import Caption, captions
from regard.worlds.shapes.render import draw
from regard.worlds.shapes.scene import COLOURS, HELD_OUT, KINDS, Scene, Shape, compose

SPLITS = ("train", "valid", "test", "composition")
CAPTIONS = 5  # of every picture
PATIENCE = 2000  # draws in a row without a new scene before they count as used up
LABELS = {"kind": KINDS, "colour": COLOURS, "both": tuple(f"{colour} {kind}" for colour in COLOURS for kind in KINDS)}
EXPLAINED = """# A world of shapes

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
class Picture:
    scene: Scene
    captions: tuple[Caption, ...]

    def pixels(self) -> np.ndarray:
        """(size, size, 3), RGB in uint8; drawn anew each time."""
        return draw(self.scene)

    def label(self, of: str = "both") -> str:
        """What it is a picture of: one of LABELS[of]."""
        main = self.scene.main
        return {"kind": main.kind, "colour": main.colour, "both": f"{main.colour} {main.kind}"}[of]


def generate(number: int, seed: int, *, split: str = "train", size: int = 32, shapes: tuple[int, int] = (1, 4)) -> list[Picture]:
    """The first `number` pictures of a seed, all different; fewer are always the beginning of more. Of the splits, composition
    alone has the held-out combinations of colour and kind, and has one in every picture, as its label, and in every caption."""
    if number <= 0:
        raise Mistake(f"number = {number}: ask for at least one picture")
    if split not in SPLITS:
        raise Mistake(f"split = {split!r}: the splits are {', '.join(SPLITS)}")
    if size not in range(24, 129, 8):
        raise Mistake(f"size = {size}: a multiple of 8 from 24 to 128")
    if not 1 <= shapes[0] <= shapes[1] <= 4:
        raise Mistake(f"shapes = {shapes[0]} to {shapes[1]}: from 1 to 4, the fewest first")
    found: dict[tuple[Shape, ...], Picture] = {}
    idle = 0
    for scene in scenes(seed, split, size, shapes):
        idle += 1
        if scene.shapes not in found:
            idle = 0
            found[scene.shapes] = Picture(scene, captions(scene, CAPTIONS, Random(f"captions {seed} {split} {len(found)}")))
        if len(found) == number:
            return list(found.values())
        if idle == PATIENCE:
            break
    raise Mistake(
        f"number = {number}: {split} pictures with {shapes[0]} to {shapes[1]} shapes run dry at {len(found)}; ask for fewer"
    )


def scenes(seed: int, split: str, size: int, shapes: tuple[int, int]) -> Iterator[Scene]:
    """Those of a split, without end."""
    held_out = split == "composition"
    draws = Random(f"composition {seed}" if held_out else f"shapes {seed}")
    while True:
        scene = compose(draws, size, shapes, held_out)
        if split_of(scene) == split:
            yield scene


def split_of(scene: Scene) -> str:
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
            raise Mistake(f"{path} is there already: choose another folder, or remove it")
    if folder.exists() and not folder.is_dir():
        raise Mistake(f"{folder} is a file: choose another folder")
    for split in SPLITS:
        pictures = generate(number if split == "train" else held_out, seed, split=split, size=size)
        save(folder / split, pictures)
    combinations = ", ".join(f"{colour} {kind}" for colour, kind in sorted(HELD_OUT))
    (folder / "README.md").write_bytes(
        (
            EXPLAINED.format(number=number, held_out=held_out, seed=seed, size=size, captions=CAPTIONS, combinations=combinations)
            + "\n"
        ).encode()
    )


def save(folder: Path, pictures: list[Picture]) -> None:
    """Pictures as files, and what is known of them, a line each."""
    from PIL import Image

    folder.mkdir(parents=True)
    digits = len(str(len(pictures) - 1))
    with (folder / "captions.jsonl").open("w", encoding="utf-8", newline="\n") as lines:
        for rank, picture in enumerate(pictures):
            name = f"{rank:0{digits}}.png"
            Image.fromarray(picture.pixels()).save(folder / name)
            lines.write(json.dumps(record(picture, name)) + "\n")


def record(picture: Picture, name: str) -> dict[str, Any]:
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


def scene_of(record: dict[str, Any]) -> Scene:
    """The scene in a line of captions.jsonl."""
    scene = record["scene"]
    shapes = tuple(Shape(**{**shape, "box": tuple(shape["box"])}) for shape in scene["shapes"])
    return Scene(scene["size"], shapes, scene["shade"], scene["noise"])
