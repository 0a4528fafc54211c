"""The pixel store: pictures decoded once, kept on disk in one array, memory-mapped, found again by their content.

They are decoded in threads, for Pillow lets go of the interpreter while it decodes: their number changes nothing but the time.
"""

import hashlib
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import PIL
import torch
from torch import Tensor

from regard.batches.batch import Batch, Transform, to_device
from regard.batches.cache_folder import cache_folder, cached_folder
from regard.corpus.decode_image import ImageTransform, load_pixels
from regard.corpus.examples import ImageExamples
from regard.corpus.image_bytes import ImageFile
from regard.errors import UserError

LAYOUT = 1
FILE = "pixels.npy"
AT_ONCE = 64
"""Pictures that a thread is given at a time."""
MOST_OF_A_DEVICE = 0.25
"""The part of a device's free memory that pictures may take for good."""

Pixels = np.ndarray | Tensor
"""(N, H, W, 3) in uint8: on disk or in memory, or on a device."""


def open_pixel_store(pictures: ImageExamples, frame: ImageTransform, *, workers: int | None = None) -> np.ndarray:
    """All pictures brought to the frame (N, H, W, 3), decoded if they are not in the cache yet."""

    def build(folder: Path) -> dict[str, int]:
        require_space(folder, len(pictures) * frame.size[0] * frame.size[1] * 3)
        pixels = np.lib.format.open_memmap(folder / FILE, mode="w+", dtype=np.uint8, shape=(len(pictures), *frame.size, 3))
        decode_into(pixels, pictures.images, frame, workers)
        pixels.flush()
        return {"layout": LAYOUT, "rows": len(pictures)}

    return np.load(cached_folder(pixel_digest(pictures, frame), build) / FILE, mmap_mode="r")


def decode_images(pictures: Sequence[ImageFile | np.ndarray], frame: ImageTransform, *, workers: int | None = None) -> np.ndarray:
    """All pictures brought to the frame (N, H, W, 3), and kept nowhere."""
    pixels = np.empty((len(pictures), *frame.size, 3), np.uint8)
    decode_into(pixels, pictures, frame, workers)
    return pixels


def pixel_digest(pictures: ImageExamples, frame: ImageTransform) -> str:
    """Of the settings, of Pillow, which may decode otherwise in another version, and of every picture."""
    found = hashlib.sha256(f"pixels {LAYOUT} {frame} {PIL.__version__}\n".encode())
    for one in pictures.digests:
        found.update(one.encode() + b"\n")
    return found.hexdigest()[:32]


def decode_into(
    pixels: np.ndarray, pictures: Sequence[ImageFile | np.ndarray], frame: ImageTransform, workers: int | None = None
) -> None:
    """Fill the array with all pictures; the first one that cannot be decoded is the one that is told of."""

    def decode(start: int) -> None:
        for row, picture in enumerate(pictures[start : start + AT_ONCE], start=start):
            pixels[row] = load_pixels(picture, frame)

    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        waiting = [pool.submit(decode, start) for start in range(0, len(pictures), AT_ONCE)]
        try:
            for one in waiting:
                one.result()
        finally:
            pool.shutdown(cancel_futures=True)


def require_space(folder: Path, needed: int) -> None:
    """A disk that fills up under a memory map ends the process: better to look first."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"the decoded pictures take {needed / 2**30:.1f} GiB in {cache_folder()}, where {free / 2**30:.1f} GiB are "
            "free; make room, set XDG_CACHE_HOME to another disk, or make data.size smaller"
        )


def move_to_device_if_fits(pixels: np.ndarray, device: torch.device) -> Pixels:
    """On a GPU whose memory has room for all of them, there; else where they are."""
    if device.type != "cuda" or pixels.nbytes > MOST_OF_A_DEVICE * torch.cuda.mem_get_info(device)[0]:
        return pixels
    there = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    for start in range(0, len(pixels), 4096):
        there[start : start + 4096] = torch.from_numpy(np.array(pixels[start : start + 4096])).to(device)
    return there


def with_pixels(batch: Batch, pixels: Pixels, rows: np.ndarray, change: Transform | None) -> Batch:
    """A batch that reads these pictures too, changed once they are on their device. From a device they are taken then, by the
    thread that computes with them: what another one launches there is done in an order of its own."""
    if isinstance(pixels, Tensor):
        return replace(batch, inputs={"pixels": torch.from_numpy(rows), **batch.inputs}, change=GatherPixels(pixels, change))
    return replace(batch, inputs={"pixels": take_pixels(pixels, rows), **batch.inputs}, change=change)


@dataclass(frozen=True)
class GatherPixels:
    """Pictures from their device in the place of their numbers, and then what is done to them."""

    pixels: Tensor
    change: Transform | None

    def __call__(self, batch: Batch) -> Batch:
        pictures = self.pixels[batch.inputs["pixels"]].permute(0, 3, 1, 2)  # (B, 3, H, W)
        fetched = replace(batch, inputs={**batch.inputs, "pixels": pictures})
        return fetched if self.change is None else self.change(fetched)


def take_pixels(pixels: Pixels, rows: np.ndarray) -> Tensor:
    """Some pictures as a model reads them: (B, 3, H, W)."""
    if isinstance(pixels, Tensor):
        return pixels[to_device(torch.from_numpy(rows), pixels.device)].permute(0, 3, 1, 2)
    return torch.from_numpy(pixels[rows]).permute(0, 3, 1, 2)
