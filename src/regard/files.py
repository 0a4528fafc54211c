"""Files that are whole or not there, whenever the machine stops: written aside, fsynced, renamed."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import UserError

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def atomic_write(path: Path, data: bytes | str) -> None:
    """Put data in a file's place in one move."""
    data = data.encode() if isinstance(data, str) else data
    aside = path.with_name(f".{path.name}.writing")
    try:
        require_space(path.parent, len(data))
        write_and_fsync(aside, data)
        aside.replace(path)
    except OSError as error:
        raise disk_error(path, len(data), error) from None
    finally:
        aside.unlink(missing_ok=True)
    fsync_folder(path.parent)


def write_and_fsync(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def fsync_folder(folder: Path) -> None:
    """Make a rename durable; systems that cannot open a folder (Windows) do without."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:  # some network file systems cannot: what they do is all there is
        pass
    finally:
        os.close(handle)


def remove_folder(path: Path) -> None:
    """Take a folder away in one move, then what was in it: nobody finds half of it."""
    aside = path.with_name(f".removing-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def replace_folder(path: Path, aside: Path) -> None:
    """Put a folder in another's place; the other one is there until then, if need be under the name that `sweep` knows."""
    before = path.with_name(f".replaced-{path.name}")
    if path.exists():
        path.rename(before)
    aside.rename(path)
    shutil.rmtree(before, ignore_errors=True)


def clean_up_partial_writes(folder: Path) -> None:
    """Take away what a killed process left half-written or half-removed, and put back what it had not replaced yet."""
    for before in folder.glob(".replaced-*"):
        if not (place := folder / before.name.removeprefix(".replaced-")).exists():
            before.rename(place)
        shutil.rmtree(before, ignore_errors=True)
    for left in (*folder.glob(".writing-*"), *folder.glob(".removing-*"), *folder.glob(".*.writing")):
        shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)


def require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes are needed, {free:,} are free")


def disk_error(path: Path, needed: int, error: OSError) -> UserError:
    if error.errno not in DISK_FULL_ERRNOS:
        return UserError(f"cannot write {path}: {error.strerror or error}")
    try:
        free = f"{shutil.disk_usage(path.parent).free:,}"
    except OSError:
        free = "unknown"
    return UserError(
        f"cannot write {path}: the disk is full ({needed:,} bytes needed, {free} free); make room and resume, nothing is lost"
    )


def require_new_folder(path: str | Path) -> Path:
    """Return the path, if a folder can be written there without losing anything."""
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} already exists; choose another folder")
    return path


@contextmanager
def write_folder_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to write into; it becomes `path` at the end, or is removed after an error."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        if path.exists():
            path.rmdir()
        temporary.rename(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
