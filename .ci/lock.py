"""Write requirements.lock: every version of constraints.txt with the SHA-256 of each of its files, for any platform.

    python .ci/lock.py          (make lock)

The hashes come from the package index that pip is configured with (its simple API, PEP 503). torch has none: its build differs
by platform, and is pinned by version alone.
"""

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from pip._internal.models.index import PyPI  # pip's default

ROOT = Path(__file__).resolve().parent.parent
HEAD = """# Written by `make lock` from constraints.txt. To install exactly this, torch first, whose build differs by platform:
#     pip install torch=={torch}
#     pip install --require-hashes --no-deps -r requirements.lock
"""
UNHASHED = {"torch"}


def index_url() -> str:
    """Return the package index that pip is configured with."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    configured = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return (os.environ.get("PIP_INDEX_URL") or configured or PyPI.simple_url).rstrip("/")


def file_hashes(name: str, version: str, index: str) -> list[str]:
    """Return the SHA-256 of every file of a version."""
    project = re.sub(r"[-_.]+", "-", name).lower()
    request = urllib.request.Request(f"{index}/{project}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=60) as response:
        page = response.read().decode("utf-8")
    stem = re.sub(r"[-_.]+", "-", f"{project}-{version}").lower()
    links = re.findall(r'href="[^"]*?([^/"]+)#sha256=([0-9a-f]{64})"([^>]*)>', page)
    return sorted({digest for file, digest, more in links if is_release_file(file, stem) and "data-yanked" not in more})


def is_release_file(filename: str, stem: str) -> bool:
    """Return whether a file is name-version.tar.gz or name-version-python-abi-platform.whl."""
    plain = re.sub(r"\.(tar\.gz|zip|tar\.bz2)$", "", filename)
    first = "-".join(filename.split("-")[:2]) if filename.endswith(".whl") else plain
    return re.sub(r"[-_.]+", "-", first).lower() == stem


def main() -> None:
    index, lines, torch = index_url(), [], ""
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, equals, version = line.partition("==")
        if not equals or line.startswith("#"):
            continue
        if name in UNHASHED:
            torch = version
            continue
        found = file_hashes(name, version, index)
        if not found:
            sys.exit(f"{name}=={version}: the index has no file of it")
        lines.append(" \\\n".join([line, *(f"    --hash=sha256:{digest}" for digest in found)]))
    (ROOT / "requirements.lock").write_text(HEAD.format(torch=torch) + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
