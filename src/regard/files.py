"""Atomic files and folders, folder locks and the cache on disk. No other module renames anything.

A file or folder is written under a temporary name, fsynced and renamed: after a crash it is either complete or absent. Temporary
names: `.NAME.writing` (file), `.writing-NAME` (folder), `.removing-NAME` and `.replaced-NAME` (a folder on its way out).
`clean_up_partial_writes` knows them all.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from safetensors import SafetensorError

from regard.errors import UserError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DISK_FULL_MESSAGE = "No space left on device"
UNSAFE_CHARACTERS = re.compile(r"[^\w.,()=+@ -]")
MAX_FILE_NAME = 100
"""Bytes; systems allow 255."""
LOCK_FILE = ".lock"
CACHE_LAYOUT = "layout.json"
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
    require_regular_file(path)
    temporary = path.with_name(f".{path.name}.writing")
    try:
        require_space(path.parent, needed)
        yield temporary
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise disk_error(path, needed, error) from None
    finally:
        with suppress(OSError):
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
    except (OSError, SafetensorError) as error:
        raise disk_error(path, needed, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    fsync_folder(path.parent)


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Make a folder of the user's choice to write many files into; a full or read-only disk is the user's error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise disk_error(Path(error.filename or folder), 0, error) from None


def require_regular_file(path: Path) -> None:
    """Refuse to replace what is not a regular file: a folder, a device, a pipe."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # nothing is there, or the write will say what is wrong
        return
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "no regular file"
        raise UserError(f"cannot write {path}: it is {kind}; choose the name of a file")


def require_plain_folder(folder: Path) -> None:
    """Refuse a folder that holds a pipe, a socket or a device, at any depth: to read one may never end."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if path_exists(path) and not path.is_file():
                raise UserError(f"{path} is not a regular file; remove it, or copy {folder} again")


def file_name(name: str) -> str:
    """Return a file name for a name of unknown origin (of a test set, of a task): no folder in it, no special character.

    Names that would become the same are kept apart by a hash."""
    flat = name.replace("/", "-")
    safe = UNSAFE_CHARACTERS.sub("-", flat).encode()[:MAX_FILE_NAME].decode(errors="ignore").strip(". ")
    return (
        safe if safe and safe == flat else f"{safe}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}".lstrip("-")
    )


def path_exists(text: str | Path) -> bool:
    """Return whether a text is the path of something: a text may be longer than any path, or hold a NUL."""
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


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


def disk_error(path: Path, needed: int, error: OSError | SafetensorError) -> UserError:
    """Return the message for an error met while writing."""
    full = DISK_FULL_MESSAGE in str(error) if isinstance(error, SafetensorError) else error.errno in DISK_FULL_ERRNOS
    if not full:
        return UserError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}")
    try:
        free = f"{shutil.disk_usage(path.parent).free:,}"
    except OSError:
        free = "unknown"
    space = f"{needed:,} bytes needed, {free} free" if needed else f"{free} bytes free"
    return UserError(f"cannot write {path}: the disk is full ({space}); free some space and run the command again")


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


def cached_folder(digest: str, build: Callable[[Path], dict[str, int]], root: Path | None = None) -> Path:
    """Return the cached folder of a content digest, in `root` (default: `cache_root`). If there is none, or it is damaged, let
    `build` fill one; its result and the hashes of all files go to layout.json.

    Several processes may build the same folder at once: each has its own temporary folder, and the first rename wins.
    """
    folder = (root or cache_root()) / digest
    damage = find_cache_damage(folder) if folder.exists() else "missing"
    if damage is None:
        return folder
    temporary = folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            print(f"the cache {folder} is damaged ({damage}); building it again", file=sys.stderr)
            remove_folder(folder)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
        layout = build(temporary)
        hashes = {path.name: _fsync_and_hash(path) for path in sorted(temporary.iterdir())}
        write_and_fsync(temporary / CACHE_LAYOUT, json.dumps({**layout, "sha256": hashes}).encode())
        fsync_folder(temporary)
        try:
            temporary.rename(folder)
        except OSError:  # another process was faster
            if find_cache_damage(folder) is not None:
                raise
        fsync_folder(folder.parent)
    except OSError as error:
        raise UserError(
            f"cannot write the cache {folder.parent}: {error.strerror or error}; free some space, or set XDG_CACHE_HOME to "
            "another folder"
        ) from None
    finally:
        if temporary != folder:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def find_cache_damage(folder: Path) -> str | None:
    """Return what is wrong with a cached folder, or None: every file is read and its hash compared."""
    try:
        hashes = json.loads((folder / CACHE_LAYOUT).read_bytes())["sha256"]
        for name, digest in hashes.items():
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return f"{name} does not match its hash"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{CACHE_LAYOUT} or a file it lists cannot be read ({type(error).__name__})"
    return None


def _fsync_and_hash(path: Path) -> str:
    """Wait until a file is on the disk; return its SHA-256."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
