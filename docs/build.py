"""Build the site: `python docs/build.py` (make docs). The pages of the tour are run; they, docs/*.md, README.md, RESULTS.md and
CHANGELOG.md go into build/site, as does every source file that one of them links to. No network, no script.

A picture is shown where a page's markdown names it, or where a cell ends with a value that has `_repr_svg_` or `_repr_png_`, as
in any notebook.
"""

import argparse
import os
import re
import shutil
import sys
import time
import traceback
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from PIL import Image
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

DOCS = Path(__file__).resolve().parent
ROOT, TOUR = DOCS.parent, DOCS / "tour"
sys.path[:0] = [str(DOCS), str(TOUR)]  # as where a script of either lies
import shown  # noqa: E402
from percent import Failed, Ran, cells, run  # noqa: E402

PICTURES = (".svg", ".png")
HEAVIEST = 400_000
"""Bytes of a source file that is shown."""


@dataclass
class Page:
    """One page of the site: what it is made of, where it goes, its title and its body."""

    source: Path
    place: str
    title: str
    body: str = ""


@dataclass
class Site:
    """What is built, and where; pages by their source."""

    out: Path
    pages: dict[Path, Page] = field(default_factory=dict)
    sections: dict[str, list[Page]] = field(default_factory=dict)

    def add(self, source: Path, place: str, title: str) -> Page:
        return self.pages.setdefault(source, Page(source, place, title))

    def plan(self) -> None:
        """What is read and run, in the order of the contents."""
        tour, others = [DOCS / "tour.md", *sorted(TOUR.glob("[0-9]*.py"))], sorted(DOCS.glob("*.md"))
        for section, sources in (
            ("Start", [ROOT / "README.md", ROOT / "RESULTS.md", ROOT / "CHANGELOG.md"]),
            ("The tour", tour),
            ("Papers and parts", [source for source in others if source not in tour]),
        ):
            self.sections[section] = [self.add(source, place_of(source), title_of(source)) for source in sources]

    def link(self, target: str, page: Page) -> str:
        """Where a link leads, from a page; what it leads to in the repository is made a page, a picture is copied."""
        if re.match(r"[a-z]+:|#", target):
            return target
        path, _, fragment = target.partition("#")
        found = Path(os.path.normpath(page.source.parent / unquote(path)))
        if not found.exists() or not found.is_relative_to(ROOT):
            raise Failed(f"{named(page.source)}: a link to {target}, which is not there")
        if found.suffix in PICTURES:
            place = named(found)
            (self.out / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found, self.out / place)
        else:
            place = self.add(found, f"{named(found)}.html", named(found)).place
        return quote(os.path.relpath(place, Path(page.place).parent)) + (f"#{fragment}" if fragment else "")

    def write(self, page: Page) -> None:
        path = self.out / page.place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(whole(self, page), encoding="utf-8")


def build(out: Path, work: Path) -> list[Page]:
    """The whole site; models are trained in `work`, unless they are there already."""
    clear(out)
    shown.FOLDER = work
    site = Site(out)
    site.plan()
    shutil.copyfile(DOCS / "site.css", out / "style.css")
    done: set[Path] = set()
    while waiting := [page for source, page in site.pages.items() if source not in done]:
        for page in waiting:  # pages that are linked to come to those that are known
            begun = time.perf_counter()
            page.body = body_of(site, page)
            done.add(page.source)
            if page.source.is_relative_to(TOUR) and page.source.suffix == ".py":
                print(f"{named(page.source)}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    for page in site.pages.values():
        site.write(page)
    return list(site.pages.values())


def clear(out: Path) -> None:
    """Remove an earlier site, and nothing else."""
    if out.exists() and any(out.iterdir()) and not ((out / "index.html").exists() and (out / "style.css").exists()):
        raise Failed(f"{out}: there is something else than a site; name another folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)


def body_of(site: Site, page: Page) -> str:
    if page.source.is_dir():
        inside = sorted(path for path in page.source.iterdir() if path.suffix in (".py", ".toml", ".md"))
        items = "".join(
            f'<li><a href="{site.link(path.name, Page(page.source / "x", page.place, ""))}">{path.name}</a></li>'
            for path in inside
        )
        return f"<h1>{escape(page.title)}</h1>\n<ul>{items}</ul>"
    if page in site.sections["The tour"] and page.source.suffix == ".py":
        return notebook(site, page)
    if page.source.suffix == ".md":
        return words(site, page, page.source.read_text(encoding="utf-8"))
    code = page.source.read_bytes()[:HEAVIEST].decode("utf-8", errors="replace")
    return f"<h1>{escape(page.title)}</h1>\n{coloured(code, page.source.suffix[1:])}"


# pages of the tour


def notebook(site: Site, page: Page) -> str:
    parts = []
    for number, (cell, ran) in enumerate(run(page.source, named(page.source)), start=1):
        if ran is None:
            parts.append(words(site, page, cell.text))
            continue
        said = f'<pre class="said">{escape(ran.printed.rstrip())}</pre>' if ran.printed.strip() else ""
        parts.append(f'<div class="cell">{coloured(cell.text, "python")}{said}</div>{shown_value(site, page, ran, number)}')
    name = named(page.source)
    parts.append(
        f'<p class="note">This page is <code>{name}</code>: open it as a notebook, or run it with <code>python {name}</code>.</p>'
    )
    return "\n".join(parts)


def shown_value(site: Site, page: Page, ran: Ran, number: int) -> str:
    """A cell's value, as a notebook would show it."""
    for kind in ("svg", "png"):
        drawn = getattr(ran.value, f"_repr_{kind}_", lambda: None)()
        if drawn is not None:
            path = site.out / f"{page.place.removesuffix('.html')}-{number}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(drawn.encode() if isinstance(drawn, str) else drawn)
            return framed(path, path.name, repr(ran.value))
    return "" if ran.value is None else f'<pre class="said">{escape(repr(ran.value))}</pre>'


def framed(path: Path, url: str, alt: str) -> str:
    """A picture on its card, at its own size; on a narrow page the card scrolls before words become too small."""
    return (
        f'<figure><div class="card"><img src="{escape(url)}" alt="{escape(alt)}" style="--wide: {width_of(path)}px">'
        "</div></figure>"
    )


def width_of(path: Path) -> int:
    """Pixels of the screen, 96 an inch."""
    if path.suffix == ".svg":
        said = re.search(r'<svg[^>]*?\swidth="([\d.]+)(pt|px)?"', path.read_text(encoding="utf-8"))
        if said is None:
            raise Failed(f"{path}: an SVG without a width")
        return round(float(said[1]) * (4 / 3 if said[2] == "pt" else 1))
    with Image.open(path) as picture:
        return round(picture.width * 96 / picture.info.get("dpi", (96, 96))[0])


# words


def words(site: Site, page: Page, text: str) -> str:
    """Markdown as HTML: links led to where their pages are, headings with a name, code in colours, wide tables that scroll."""
    reader = MarkdownIt("commonmark").enable("table")
    tokens = reader.parse(text)
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", slug(tokens[at + 1].content))
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", site.link(str(child.attrGet("href")), page))

    def fence(self: Any, tokens: list[Token], at: int, options: Any, env: Any) -> str:
        return coloured(tokens[at].content, tokens[at].info.strip())

    def image(self: Any, tokens: list[Token], at: int, options: Any, env: Any) -> str:
        target = str(tokens[at].attrGet("src"))
        url = site.link(target, page)
        return framed(page.source.parent / unquote(target), url, tokens[at].content)

    reader.add_render_rule("fence", fence)
    reader.add_render_rule("image", image)
    reader.add_render_rule("table_open", lambda *_: '<div class="scroll"><table>\n')
    reader.add_render_rule("table_close", lambda *_: "</table></div>\n")
    made = reader.renderer.render(tokens, reader.options, {})
    return re.sub(r"<p>(<figure>.*?</figure>)</p>", r"\1", made)  # a figure is a block of its own


def slug(heading: str) -> str:
    return re.sub(r"[^\w]+", "-", heading.lower()).strip("-")


def coloured(code: str, language: str) -> str:
    try:
        lexer = get_lexer_by_name({"py": "python", "": "text"}.get(language, language), stripnl=False)
        inside = highlight(code.rstrip("\n"), lexer, HtmlFormatter(nowrap=True)).rstrip("\n")
    except ClassNotFound:
        inside = escape(code.rstrip("\n"))
    return f'<pre class="code"><code>{inside}</code></pre>'


# around a page


def whole(site: Site, page: Page) -> str:
    up = os.path.relpath(".", Path(page.place).parent)
    style, home = f"{up}/style.css", f"{up}/index.html"
    title = "regard" if page.place == "index.html" else f"{page.title} · regard"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{style}">
</head>
<body>
<header><a class="name" href="{home}">regard</a><a class="to" href="#contents">contents</a></header>
<main>
{page.body}
{beside(site, page)}
</main>
<nav id="contents" aria-label="contents">
{contents(site, page)}
</nav>
</body>
</html>
"""


def contents(site: Site, page: Page) -> str:
    parts = []
    for section, pages in site.sections.items():
        here = {id(page): ' aria-current="page"'}
        items = "".join(
            f'<li><a href="{between(page, other)}"{here.get(id(other), "")}>{escape(other.title)}</a></li>' for other in pages
        )
        parts += [f"<h2>{section}</h2>", f"<ul>{items}</ul>"]
    return "\n".join(parts)


def beside(site: Site, page: Page) -> str:
    """The pages of the tour before and after."""
    tour = site.sections["The tour"]
    if page not in tour:
        return ""
    at = tour.index(page)
    before = f'<a rel="prev" href="{between(page, tour[at - 1])}">← {escape(tour[at - 1].title)}</a>' if at else "<span></span>"
    after = f'<a rel="next" href="{between(page, tour[at + 1])}">{escape(tour[at + 1].title)} →</a>' if at + 1 < len(tour) else ""
    return f'<div class="beside">{before}{after}</div>'


def between(page: Page, other: Page) -> str:
    return quote(os.path.relpath(other.place, Path(page.place).parent))


def place_of(path: Path) -> str:
    return "index.html" if path == ROOT / "README.md" else path.relative_to(ROOT).with_suffix(".html").as_posix()


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def title_of(path: Path) -> str:
    """A page's first heading."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = "\n\n".join(cell.text for cell in cells(text, named(path)) if cell.words)
    heading = re.search(r"^# (.+)$", text, re.M)
    if heading is None:
        raise Failed(f"{named(path)}: a page begins with a heading, # …")
    return heading[1].replace("`", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="where the site goes")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "tour", help="where the tour's pages train and draw")
    chosen = parser.parse_args()
    try:
        pages = build(chosen.out.resolve(), chosen.work.resolve())
    except Failed as failure:
        if failure.__cause__ is not None:
            traceback.print_exception(failure.__cause__)
        sys.exit(f"docs: {failure}")
    print(f"{len(pages)} pages in {chosen.out}; open {chosen.out / 'index.html'}")


if __name__ == "__main__":
    main()
