"""Hooks of the documentation site (`mkdocs build`): run the tour, add pages from outside of docs/ and the API reference, resolve
links.

Links in the documents are written for the repository, so that they also work on GitHub. Here they are rewritten for the site:
README.md is the start page, a page of the tour is its output, and any other file of the repository is shown as a source page.
The tour's pages run in `build/tour`, or in the folder named by REGARD_TOUR; models that they find there are not trained again.
"""

import os
import pkgutil
import re
import sys
import time
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import regard
import regard.tasks
from regard.show.inline import InlineFigure

DOCS = Path(__file__).resolve().parent
ROOT, TOUR = DOCS.parent, DOCS / "tour"
sys.path[:0] = [str(DOCS), str(TOUR)]
import helpers  # noqa: E402
from percent import CellOutput, PageError, run_page  # noqa: E402

LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(`{3,}).*?^\1$", re.M | re.S)
MAX_SOURCE_BYTES = 400_000


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the documents by versions with links for the site; add the pages that are generated."""
    helpers.FOLDER = Path(os.environ.get("REGARD_TOUR", ROOT / "build" / "tour")).resolve()
    documents = {
        uri: (path, path.read_text(encoding="utf-8"))
        for path in [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]
        if (uri := page_uri(path))
    }
    figures: dict[str, bytes] = {}
    for path in sorted(TOUR.glob("[0-9]*.py")):
        text, drawn = run_tour_page(path, path.read_text(encoding="utf-8"))
        documents[page_uri(path)] = path, text
        figures |= drawn
    sources: dict[str, str] = {}
    try:
        pages = {uri: rewrite_links(text, path, uri, sources) for uri, (path, text) in documents.items()}
    except PageError as error:
        raise PluginError(str(error)) from error
    for uri, content in {**pages, **sources, **figures, "api.md": api_page()}.items():
        if (existing := files.get_file_from_path(uri)) is not None:
            files.remove(existing)
        files.append(File.generated(config, uri, content=content))
    return files


def api_page() -> str:
    """Return the API reference: the public names of the package, and the run classes of all tasks, for mkdocstrings."""
    names = {f"regard.{name}": getattr(regard, name) for name in regard.__all__ if not name.startswith("__")}
    for module in pkgutil.iter_modules(regard.tasks.__path__, "regard.tasks."):
        import_module(module.name)
    runs, found = [], [regard.Run]
    while found:
        kind = found.pop(0)
        found += [inner for inner in kind.__subclasses__() if inner.__module__.startswith("regard.tasks.")]
        runs += [kind] if kind is not regard.Run else []
    names |= {kind.__name__: kind for kind in sorted(runs, key=lambda kind: kind.__name__)}
    lines = ["# API reference", "", "The classes whose names end in Run are what `regard.load` returns, one for each task."]
    for name, value in names.items():
        path = f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else name
        lines += ["", f"::: {path}", "    options:", f"      heading: {name}", f"      toc_label: {name}"]
    return "\n".join(lines) + "\n"


def page_uri(path: Path) -> str:
    """Return where a file of the repository is on the site, as mkdocs names its source."""
    if path == ROOT / "README.md":
        return "index.md"
    if path.parent == TOUR and path.suffix == ".py" and path.name[0].isdigit():
        return f"tour/{path.stem}.md"
    if path.is_relative_to(DOCS) and path.suffix in (".md", ".svg", ".png"):
        return path.relative_to(DOCS).as_posix()
    if path.parent == ROOT and path.suffix == ".md":
        return path.name
    return f"source/{path.relative_to(ROOT).as_posix()}.md"


def rewrite_links(text: str, path: Path, uri: str, sources: dict[str, str]) -> str:
    """Return a document with its links to files of the repository as links within the site; add the source pages it needs."""

    def replace(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(path.parent / link[1]))
        if not target.exists() or not target.is_relative_to(ROOT):
            raise PageError(f"{path.relative_to(ROOT)}: the link to {link[1]} leads nowhere")
        found = page_uri(target)
        if found.startswith("source/") and found not in sources:
            sources[found] = ""  # a folder may be reached again from its files
            sources[found] = source_page(target, sources)
        return f"]({os.path.relpath(found, Path(uri).parent)}{link[2] or ''})"

    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(replace, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(replace, text[end:])])


def source_page(path: Path, sources: dict[str, str]) -> str:
    """Return a page that shows a source file, or lists the files of a folder."""
    title = f"---\nsearch:\n  exclude: true\n---\n\n# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        names = sorted(inner.name for inner in path.iterdir() if inner.suffix in (".py", ".toml", ".md"))
        listing = "\n".join(f"- [{name}]({name})" for name in names)
        return title + rewrite_links(listing, path / "index", page_uri(path), sources)
    code = path.read_bytes()[:MAX_SOURCE_BYTES].decode("utf-8", errors="replace")
    return f"{title}{fenced(code, path.suffix[1:])}"


def fenced(text: str, language: str) -> str:
    ticks = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}\n"


@lru_cache
def run_tour_page(path: Path, text: str) -> tuple[str, dict[str, bytes]]:
    """Run a page of the tour (once for each version of its text); return it as markdown, and its figures by name."""
    name, start = path.relative_to(ROOT).as_posix(), time.perf_counter()
    parts, figures = [], {}
    try:
        for number, (cell, output) in enumerate(run_page(path, name), start=1):
            if output is None:
                parts.append(cell.text)
                continue
            parts += [fenced(cell.text, "python")]
            if output.stdout.strip():
                parts.append('<div class="output" markdown>\n\n' + fenced(output.stdout, "text") + "\n</div>")
            parts.append(show_value(output, f"{path.stem}-{number}", figures))
    except PageError as error:
        raise PluginError(str(error)) from error
    print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    parts.append(f"This page is `{name}`: open it as a notebook, or run it with `python {name}`.")
    return "\n\n".join(filter(None, parts)) + "\n", figures


def show_value(output: CellOutput, stem: str, figures: dict[str, bytes]) -> str:
    """Return the value of a cell as markdown, as a notebook would show it; add its figure."""
    if isinstance(output.value, InlineFigure):
        figures[f"tour/{stem}.svg"] = output.value._svg()
        return f'<img src="{stem}.svg" alt="{output.value!r}">'.replace("&", "&amp;")
    for kind in ("svg", "png"):
        drawn: Any = getattr(output.value, f"_repr_{kind}_", lambda: None)()
        if drawn is not None:
            figures[f"tour/{stem}.{kind}"] = drawn.encode() if isinstance(drawn, str) else drawn
            return f'<img src="{stem}.{kind}" alt="{output.value!r}">'.replace("&", "&amp;")
    return "" if output.value is None else fenced(repr(output.value), "text")
