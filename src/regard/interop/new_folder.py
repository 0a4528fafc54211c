"""Folders for other programs: written aside, and put in place whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import UserError


def require_new_folder(path: str | Path) -> Path:
    """A place where a folder can be put, and nothing is lost by it."""
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} is already there; choose another folder")
    return path


@contextmanager
def write_folder_atomically(path: Path) -> Iterator[Path]:
    """The folder to write into, which is at `path` in the end."""
    aside = path.parent / f".{path.name}.writing"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        yield aside
        if path.exists():
            path.rmdir()
        aside.rename(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
