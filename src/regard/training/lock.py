"""One run per folder: a lock that ends with its process, however that ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from regard.errors import UserError
from regard.training.log import note

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
HELD: set[Path] = set()
"""Folders that this process trains in: a process is never locked out by its own locks."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Nobody else trains in this folder meanwhile. Under torchrun the first process has the lock for all of them."""
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    place = folder.resolve()
    if place in HELD:
        raise UserError(f"{folder} is being trained in by this process already")
    try:
        file = (folder / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write the run folder {folder}: {error.strerror}") from None
    with file:
        acquire(file, folder)
        HELD.add(place)
        try:
            yield
        finally:
            HELD.discard(place)


def acquire(file: TextIO, folder: Path) -> None:
    """A POSIX lock: worker processes do not inherit it, so it goes when the training process goes."""
    if fcntl is None:
        note(f"there are no file locks on this system: see to it yourself that nobody else trains in {folder}")
        return
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.seek(0)
        raise UserError(
            f"{folder} is being trained in by {file.read().strip() or 'another process'}; "
            "wait for it or stop it, or choose another --out"
        ) from None
    except OSError as error:
        note(f"{folder} cannot be locked ({error.strerror}): see to it yourself that nobody else trains there")
        return
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()}")
    file.flush()
