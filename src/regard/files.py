"""Atomic files and folders, folder locks and the cache on disk. No other module renames anything.

A file or folder is written under a temporary name, fsynced and renamed: after a crash it is either complete or absent. Temporary
names: `.NAME.writing` (file), `.writing-NAME` (folder), `.removing-NAME` and `.replaced-NAME` (a folder on its way out).
`clean_up_partial_writes` knows them all.
"""

import errno
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from regard.errors import UserError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LOCK_FILE = ".lock"
LOCKED_FOLDERS: set[Path] = set()
"""Folders locked by this process: POSIX locks do not exclude the process that holds them."""


def atomic_write(path: Path, data: bytes | str) -> None:
    """Replace the contents of a file."""
    data = data.encode() if isinstance(data, str) else data
    with atomic_file(path, len(data)) as temporary:
        write_and_fsync(temporary, data)


@contextmanager
def atomic_file(path: Path, needed: int = 0) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces `path` when the block ends without an exception."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        require_space(path.parent, needed)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise disk_error(path, needed, error) from None
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path, needed: int = 0) -> Iterator[Path]:
    """Yield a temporary folder to write into, which replaces `path` when the block ends without an exception."""
    temporary, replaced = path.with_name(f".writing-{path.name}"), path.with_name(f".replaced-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        require_space(path.parent, needed)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        yield temporary
        fsync_folder(temporary)
        if path.exists():
            path.rename(replaced)
        temporary.rename(path)
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise disk_error(path, needed, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    fsync_folder(path.parent)


def write_and_fsync(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def fsync_folder(folder: Path) -> None:
    """Make renames in a folder durable. Does nothing where a folder cannot be opened (Windows) or synced (some network disks)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def move(source: Path, target: Path) -> Path:
    """Move a file or folder within one disk, replacing a folder at the target; return the target."""
    target.parent.mkdir(exist_ok=True)
    if target.is_dir():
        shutil.rmtree(target, ignore_errors=True)
    return source.rename(target)


def remove_folder(path: Path) -> None:
    """Rename a folder, then delete it, so that no reader finds half of it."""
    temporary = path.with_name(f".removing-{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    path.rename(temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def clean_up_partial_writes(folder: Path) -> None:
    """Delete what a killed process left half-written or half-removed; restore a folder whose replacement never arrived."""
    for replaced in folder.glob(".replaced-*"):
        if not (path := folder / replaced.name.removeprefix(".replaced-")).exists():
            replaced.rename(path)
        shutil.rmtree(replaced, ignore_errors=True)
    for partial in (*folder.glob(".writing-*"), *folder.glob(".removing-*"), *folder.glob(".*.writing")):
        shutil.rmtree(partial, ignore_errors=True) if partial.is_dir() else partial.unlink(missing_ok=True)


def require_new_folder(path: str | Path) -> Path:
    """Return the path of a folder to be created; refuse one that already holds something."""
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} already exists; choose another folder")
    return path


def require_space(folder: Path, needed: int) -> None:
    """Raise ENOSPC before writing if the disk has less free space than needed."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes needed, {free:,} free")


def disk_error(path: Path, needed: int, error: OSError) -> UserError:
    """Return the message for an OSError met while writing."""
    if error.errno not in DISK_FULL_ERRNOS:
        return UserError(f"cannot write {path}: {error.strerror or error}")
    try:
        free = f"{shutil.disk_usage(path.parent).free:,}"
    except OSError:
        free = "unknown"
    space = f"{needed:,} bytes needed, {free} free" if needed else f"{free} bytes free"
    return UserError(f"cannot write {path}: the disk is full ({space}); free some space and resume, nothing is lost")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a run folder. The lock ends with the process, however that ends.

    Under torchrun rank 0 holds the lock for all ranks.
    """
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    resolved = folder.resolve()
    if resolved in LOCKED_FOLDERS:
        raise UserError(f"{folder} is being trained in by this process already")
    try:
        file = (folder / LOCK_FILE).open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write the run folder {folder}: {error.strerror}") from None
    with file:
        _acquire_lock(file, folder)
        LOCKED_FOLDERS.add(resolved)
        try:
            yield
        finally:
            LOCKED_FOLDERS.discard(resolved)


def _acquire_lock(file: TextIO, folder: Path) -> None:
    """Take a POSIX lock, which worker processes do not inherit: it goes when the training process goes."""
    if fcntl is None:
        print(f"this system has no file locks: make sure that nothing else trains in {folder}", file=sys.stderr)
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
        print(f"{folder} cannot be locked ({error.strerror}): make sure that nothing else trains there", file=sys.stderr)
        return
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()}")
    file.flush()


def cache_root() -> Path:
    """Return the folder of all cached folders: XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "regard", "stores")


def cached_folder(digest: str, build: Callable[[Path], dict[str, int]]) -> Path:
    """Return the cached folder of a content digest. If there is none, let `build` fill one; its result goes to layout.json.

    Several processes may build the same folder at once: each has its own temporary folder, and the first rename wins.
    """
    folder = cache_root() / digest
    if (folder / "layout.json").exists():
        return folder
    temporary = folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
        (temporary / "layout.json").write_text(json.dumps(build(temporary)))
        try:
            temporary.rename(folder)
        except OSError:  # another process was faster
            if not (folder / "layout.json").exists():
                raise
    except OSError as error:
        raise UserError(
            f"cannot write the cache {folder.parent}: {error.strerror or error}; free some space, or set XDG_CACHE_HOME to "
            "another folder"
        ) from None
    finally:
        if temporary != folder:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder
