"""Write requirements.lock: every version of constraints.txt with the SHA-256 of each of its files, for any platform.

    python .ci/lock.py          (make lock)

The hashes are what the package index that pip is set up with says (its simple API, PEP 503). torch stands without: its build
differs by platform, and is pinned by version alone.
"""

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = """# Written by `make lock` from constraints.txt. To install exactly this, torch first, whose build differs by platform:
#     pip install torch=={torch}
#     pip install --require-hashes --no-deps -r requirements.lock
"""
WITHOUT = {"torch"}


def index() -> str:
    """The index that pip asks."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)
    if not (where := said.stdout.strip() or os.environ.get("PIP_INDEX_URL", "")):
        sys.exit("pip is set up with no index; name one: PIP_INDEX_URL=… make lock")
    return where.rstrip("/")


def hashes(name: str, version: str, where: str) -> list[str]:
    """The SHA-256 of every file of a version."""
    project = re.sub(r"[-_.]+", "-", name).lower()
    asked = urllib.request.Request(f"{where}/{project}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        page = answer.read().decode("utf-8")
    stem = re.sub(r"[-_.]+", "-", f"{project}-{version}").lower()
    links = re.findall(r'href="[^"]*?([^/"]+)#sha256=([0-9a-f]{64})"([^>]*)>', page)
    return sorted({digest for file, digest, more in links if of_version(file, stem) and "data-yanked" not in more})


def of_version(filename: str, stem: str) -> bool:
    """name-version.tar.gz, or name-version-python-abi-platform.whl."""
    plain = re.sub(r"\.(tar\.gz|zip|tar\.bz2)$", "", filename)
    first = "-".join(filename.split("-")[:2]) if filename.endswith(".whl") else plain
    return re.sub(r"[-_.]+", "-", first).lower() == stem


def main() -> None:
    where, lines, torch = index(), [], ""
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, equals, version = line.partition("==")
        if not equals or line.startswith("#"):
            continue
        if name in WITHOUT:
            torch = version
            continue
        found = hashes(name, version, where)
        if not found:
            sys.exit(f"{name}=={version}: the index has no file of it")
        lines.append(" \\\n".join([line, *(f"    --hash=sha256:{one}" for one in found)]))
    (ROOT / "requirements.lock").write_text(HEAD.format(torch=torch) + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
