"""The pixel store: pictures decoded once, kept on disk in one array, memory-mapped, found again by their content.

They are decoded in worker processes, each of which writes its rows into the array: their number changes nothing but the time.
"""

import hashlib
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import PIL
import torch
from torch import Tensor

from regard.batches.batch import Batch, Change, send
from regard.batches.store import cache_folder, open_store
from regard.corpus.examples import Pictures
from regard.corpus.images import Frame, pixels_of
from regard.corpus.piece import Piece
from regard.errors import Mistake

LAYOUT = 1
FILE = "pixels.npy"
AT_ONCE = 64
"""Pictures that a worker is given at a time."""
MOST_OF_A_DEVICE = 0.25
"""The part of a device's free memory that pictures may take for good."""

Pixels = np.ndarray | Tensor
"""(N, H, W, 3) in uint8: on disk or in memory, or on a device."""


def open_pixels(pictures: Pictures, frame: Frame, *, workers: int | None = None) -> np.ndarray:
    """All pictures brought to the frame (N, H, W, 3), decoded if they are not in the cache yet."""
    def build(folder: Path) -> dict[str, int]:
        require_space(folder, len(pictures) * frame.size[0] * frame.size[1] * 3)
        decode_into(folder / FILE, pictures.pictures, frame, workers)
        return {"layout": LAYOUT, "rows": len(pictures)}

    return np.load(open_store(digest(pictures, frame), build) / FILE, mmap_mode="r")


def decoded(pictures: Sequence[Piece | np.ndarray], frame: Frame, *, workers: int | None = None) -> np.ndarray:
    """All pictures brought to the frame (N, H, W, 3), and kept nowhere."""
    if len(pictures) <= AT_ONCE:
        return np.stack([pixels_of(picture, frame) for picture in pictures])
    with tempfile.TemporaryDirectory() as folder:
        decode_into(Path(folder, FILE), pictures, frame, workers)
        return np.array(np.load(Path(folder, FILE), mmap_mode="r"))


def digest(pictures: Pictures, frame: Frame) -> str:
    """Of the settings, of Pillow, which may decode otherwise in another version, and of every picture."""
    found = hashlib.sha256(f"pixels {LAYOUT} {frame} {PIL.__version__}\n".encode())
    for one in pictures.digests:
        found.update(one.encode() + b"\n")
    return found.hexdigest()[:32]


def decode_into(path: Path, pictures: Sequence[Piece | np.ndarray], frame: Frame, workers: int | None = None) -> None:
    """Decode all pictures into an array at `path`; the first one that cannot be is the one that is told of."""
    np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(len(pictures), *frame.size, 3)).flush()
    parts = [(path, start, pictures[start:start + AT_ONCE], frame) for start in range(0, len(pictures), AT_ONCE)]
    workers = min(workers or os.cpu_count() or 1, len(parts))
    if workers <= 1:
        for part in parts:
            decode_part(*part)
        return
    method = "fork" if sys.platform == "linux" else "spawn"                       # spawned ones run the user's script again
    with ProcessPoolExecutor(workers, multiprocessing.get_context(method)) as pool:
        waiting = [pool.submit(decode_part, *part) for part in parts]
        try:
            for one in waiting:
                one.result()
        except BrokenProcessPool:
            raise Mistake("a process that decodes pictures was ended from outside; is there enough memory?") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def decode_part(path: Path, start: int, pictures: Sequence[Piece | np.ndarray], frame: Frame) -> None:
    pixels = np.load(path, mmap_mode="r+")
    for row, picture in enumerate(pictures, start=start):
        pixels[row] = pixels_of(picture, frame)
    pixels.flush()


def require_space(folder: Path, needed: int) -> None:
    """A disk that fills up under a memory map ends the process: better to look first."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Mistake(f"the decoded pictures take {needed / 2**30:.1f} GiB in {cache_folder()}, where {free / 2**30:.1f} GiB are "
                      "free; make room, set XDG_CACHE_HOME to another disk, or make data.size smaller")


def placed(pixels: np.ndarray, device: torch.device) -> Pixels:
    """On a GPU whose memory has room for all of them, there; else where they are."""
    if device.type != "cuda" or pixels.nbytes > MOST_OF_A_DEVICE * torch.cuda.mem_get_info(device)[0]:
        return pixels
    there = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    for start in range(0, len(pixels), 4096):
        there[start:start + 4096] = torch.from_numpy(np.array(pixels[start:start + 4096])).to(device)
    return there


def with_pictures(batch: Batch, pixels: Pixels, rows: np.ndarray, change: Change | None) -> Batch:
    """A batch that reads these pictures too, changed once they are on their device. From a device they are taken then, by the
    thread that computes with them: what another one launches there is done in an order of its own."""
    if isinstance(pixels, Tensor):
        return replace(batch, inputs={"pixels": torch.from_numpy(rows), **batch.inputs}, change=Fetch(pixels, change))
    return replace(batch, inputs={"pixels": take(pixels, rows), **batch.inputs}, change=change)


@dataclass(frozen=True)
class Fetch:
    """Pictures from their device in the place of their numbers, and then what is done to them."""

    pixels: Tensor
    change: Change | None

    def __call__(self, batch: Batch) -> Batch:
        pictures = self.pixels[batch.inputs["pixels"]].permute(0, 3, 1, 2)        # (B, 3, H, W)
        fetched = replace(batch, inputs={**batch.inputs, "pixels": pictures})
        return fetched if self.change is None else self.change(fetched)


def take(pixels: Pixels, rows: np.ndarray) -> Tensor:
    """Some pictures as a model reads them: (B, 3, H, W)."""
    if isinstance(pixels, Tensor):
        return pixels[send(torch.from_numpy(rows), pixels.device)].permute(0, 3, 1, 2)
    return torch.from_numpy(pixels[rows]).permute(0, 3, 1, 2)
