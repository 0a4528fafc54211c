"""The pixel store: images decoded once to one memory-mapped array on disk, cached by the hash of their content.

Images are decoded in threads, since Pillow releases the interpreter's lock while it decodes; the number of threads changes only
the speed.
"""

import hashlib
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL
import torch
from torch import Tensor

from regard.batches.batch import to_device
from regard.corpus.decode_image import ImageTransform, load_pixels
from regard.corpus.examples import ImageExamples, ImageFile
from regard.errors import UserError
from regard.files import cache_root, cached_folder

LAYOUT = 1
FILE = "pixels.npy"
IMAGES_PER_TASK = 64
MAX_DEVICE_FRACTION = 0.25
"""The fraction of a device's free memory that images may occupy."""

Pixels = np.ndarray | Tensor
"""(N, H, W, 3) in uint8: on disk, in memory or on a device."""


def open_pixel_store(examples: ImageExamples, transform: ImageTransform, *, workers: int | None = None) -> np.ndarray:
    """Return all images (N, H, W, 3), memory-mapped from the cache; decode them if they are not there yet."""

    def build(folder: Path) -> dict[str, int]:
        _require_cache_space(folder, len(examples) * transform.size[0] * transform.size[1] * 3)
        shape = (len(examples), *transform.size, 3)
        pixels = np.lib.format.open_memmap(folder / FILE, mode="w+", dtype=np.uint8, shape=shape)
        _decode_into(pixels, examples.images, transform, workers)
        pixels.flush()
        return {"layout": LAYOUT, "rows": len(examples)}

    pixels: np.ndarray = np.load(cached_folder(pixel_digest(examples, transform), build) / FILE, mmap_mode="r")
    return pixels


def decode_images(
    images: Sequence[ImageFile | np.ndarray], transform: ImageTransform, *, workers: int | None = None
) -> np.ndarray:
    """Return all images (N, H, W, 3), without the cache."""
    pixels = np.empty((len(images), *transform.size, 3), np.uint8)
    _decode_into(pixels, images, transform, workers)
    return pixels


def pixel_digest(examples: ImageExamples, transform: ImageTransform) -> str:
    """Hash the settings, Pillow's version, which may decode differently, and every image."""
    digest = hashlib.sha256(f"pixels {LAYOUT} {transform} {PIL.__version__}\n".encode())
    for image_digest in examples.digests:
        digest.update(image_digest.encode() + b"\n")
    return digest.hexdigest()[:32]


def _decode_into(
    pixels: np.ndarray, images: Sequence[ImageFile | np.ndarray], transform: ImageTransform, workers: int | None = None
) -> None:
    """Decode all images into the array; of several broken ones, report the first."""

    def decode(start: int) -> None:
        for row, image in enumerate(images[start : start + IMAGES_PER_TASK], start=start):
            pixels[row] = load_pixels(image, transform)

    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        futures = [pool.submit(decode, start) for start in range(0, len(images), IMAGES_PER_TASK)]
        try:
            for future in futures:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _require_cache_space(folder: Path, needed: int) -> None:
    """Check the free space first: a disk that fills up under a memory map kills the process."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"the decoded images take {needed / 2**30:.1f} GiB in {cache_root()}, where {free / 2**30:.1f} GiB are "
            "free; free some space, set XDG_CACHE_HOME to another disk, or make data.size smaller"
        )


def move_to_device_if_fits(pixels: np.ndarray, device: torch.device) -> Pixels:
    """Copy all images to a GPU if they fit into its memory; else return them as they are."""
    if device.type != "cuda" or pixels.nbytes > MAX_DEVICE_FRACTION * torch.cuda.mem_get_info(device)[0]:
        return pixels
    on_device = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    for start in range(0, len(pixels), 4096):
        on_device[start : start + 4096] = torch.from_numpy(np.array(pixels[start : start + 4096])).to(device)
    return on_device


def take_pixels(pixels: Pixels, rows: np.ndarray) -> Tensor:
    """Return some images in a model's layout (B, 3, H, W)."""
    if isinstance(pixels, Tensor):
        return pixels[to_device(torch.from_numpy(rows), pixels.device)].permute(0, 3, 1, 2)
    return torch.from_numpy(pixels[rows]).permute(0, 3, 1, 2)
