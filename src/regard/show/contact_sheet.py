"""Pictures as files: each by itself, and all on one sheet."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from regard.errors import UserError

MARGIN = 2


def check_png_path(out: Path) -> None:
    """Before anything is drawn."""
    if out.suffix.lower() != ".png":
        raise UserError(f"--out {out}: pictures are written as .png; name one, such as {out.stem or 'a'}.png")
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; name a picture in it")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it first")


def write_images(pictures: Sequence[np.ndarray], out: Path) -> list[Path]:
    """One picture is `a.png`; several are a-1.png, a-2.png …, and `a.png` shows them all. The files of the pictures."""
    paths = [out] if len(pictures) == 1 else [out.with_name(f"{out.stem}-{n}{out.suffix}") for n in range(1, len(pictures) + 1)]
    files = [*zip(paths, pictures), *([(out, contact_sheet(pictures))] if len(pictures) > 1 else [])]
    for path, pixels in files:
        try:
            Image.fromarray(pixels).save(path, format="PNG")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    return paths


def contact_sheet(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures of one size (H, W, 3) row by row on white, about as many across as down."""
    height, width = pictures[0].shape[:2]
    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    whole = np.full((rows * (height + MARGIN) + MARGIN, columns * (width + MARGIN) + MARGIN, 3), 255, np.uint8)
    for place, picture in enumerate(pictures):
        top, left = (MARGIN + at * (side + MARGIN) for at, side in zip(divmod(place, columns), (height, width)))
        whole[top : top + height, left : left + width] = picture
    return whole
