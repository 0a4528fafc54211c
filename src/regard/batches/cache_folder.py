"""The cache on disk: what was built of some content, found again by its hash."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from regard.errors import UserError


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "regard", "stores")


def cached_folder(digest: str, build: Callable[[Path], dict[str, int]]) -> Path:
    """The folder of this digest. Where there is none, `build` fills one aside, which is then renamed: a half-built one is never
    found. What `build` returns is kept in layout.json."""
    folder = cache_folder() / digest
    if (folder / "layout.json").exists():
        return folder
    aside = folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
        (aside / "layout.json").write_text(json.dumps(build(aside)))
        try:
            aside.rename(folder)
        except OSError:  # somebody else was faster
            if not (folder / "layout.json").exists():
                raise
    except OSError as error:
        raise UserError(
            f"cannot write the cache {folder.parent}: {error.strerror or error}; make room, or set XDG_CACHE_HOME to "
            "another folder"
        ) from None
    finally:
        if aside != folder:
            shutil.rmtree(aside, ignore_errors=True)
    return folder
