"""Self-contained HTML pages: reports with figures, and attention to explore. No network; words stay text, never markup.

A report has no script; it works in light and dark, on a phone and in print. A view embeds its weights as bytes, 0 to 255 for 0 to
the largest of each head, and the scripts of show/web that draw them on canvases.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from regard.show.figures import style
from regard.show.figures.attention_maps import TINY, AttentionMaps

WEB = Path(__file__).parents[1] / "web"
SHARED_SCRIPTS = ("colours.js", "drawing.js")
"""Used by the server's page too."""
PAGE_VIEWS = {"heads": "lines", "model": "all heads", "matrix": "matrix", "token": "one token"}
PAGE_STYLE = """
* { box-sizing: border-box; }
html { background: var(--paper); }
body { margin: 0 auto; padding: 2.2rem 1.25rem 4rem; max-width: 54rem; background: var(--paper); color: var(--ink);
       font: 1rem/1.55 var(--sans); }
h1, h2 { line-height: 1.25; letter-spacing: -.01em; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; padding-top: .8rem; border-top: 1px solid var(--line); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 4px; }
p.lead { color: var(--soft); font-size: 1.08rem; margin: 0 0 1.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font: .88rem/1.5 var(--sans);
        font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .32rem .9rem .32rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); }
td.number { white-space: nowrap; }
td.small { font-size: .74rem; color: var(--soft); overflow-wrap: anywhere; min-width: 16rem; }
figure { margin: 1.2rem 0; }
figure .card { background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: .8rem; overflow-x: auto; }
figure .card:has(.dark) { background: var(--card); }
figure .dark { display: none; }
:root[data-theme=dark] figure .dark { display: block; } :root[data-theme=dark] figure .dark ~ .light { display: none; }
@media (prefers-color-scheme: dark) { :root:not([data-theme=light]) figure .dark { display: block; }
  :root:not([data-theme=light]) figure .dark ~ .light { display: none; } }
@media print { figure .dark { display: none !important; } figure .dark ~ .light { display: block !important; } }
figure svg { max-width: 100%; height: auto; display: block; margin: 0 auto; }
figcaption { color: var(--soft); font-size: .88rem; margin-top: .4rem; }
dl { margin: 0; } dl div { padding: .55rem 0; border-bottom: 1px solid var(--line); }
dt { color: var(--soft); } dd { margin: 0; } dd.differs { color: var(--soft); font-size: .9rem; }
code { font: .86rem ui-monospace, monospace; }
pre { overflow-x: auto; padding: .7rem .9rem; border: 1px solid var(--line); border-radius: 4px; }
@media (max-width: 40rem) { figure svg { max-width: 200%; } }
@media print { body { max-width: none; padding: 0; } h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""


VIEW_STYLE = """
body { max-width: 76rem; }
.bar { display: flex; flex-wrap: wrap; gap: .5rem 1.1rem; align-items: center; margin: 0 0 .8rem; font-size: .9rem;
       line-height: 1.4; color: var(--soft); }
.bar select, .bar button, #theme { font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--line);
                           border-radius: 6px; padding: .28rem .65rem; max-width: 18rem; cursor: pointer; }
.bar button:hover, #theme:hover { border-color: var(--soft); }
.bar .views { display: flex; gap: 0 1.2rem; border-bottom: 1px solid var(--line); }
.bar .views button { border: 0; border-radius: 0; background: none; color: var(--soft); padding: .35rem 0; margin-bottom: -1px;
                     border-bottom: 2px solid transparent; font-size: 1rem; }
.bar .views button[aria-pressed=true] { color: var(--ink); border-bottom-color: var(--accent); font-weight: 600; }
.bar .head { border: 0; border-radius: 4px; padding: .12rem .5rem; color: #fff; min-width: 1.8rem; font-weight: 600; }
.bar .head[aria-pressed=false] { opacity: .28; }
#theme { float: right; font-size: .88rem; color: var(--soft); margin-left: 1rem; }
#stage { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .9rem; overflow: auto;
         max-height: 82vh; font-size: 13px; line-height: 1; }
#status { min-height: 1.4rem; color: var(--soft); font-size: .9rem; line-height: 1.4; margin: .5rem 0 0;
        overflow-wrap: anywhere; }
.scale { display: inline-flex; align-items: center; gap: .45rem; font-size: .84rem; color: var(--soft);
         font-variant-numeric: tabular-nums; }
#scale { margin: .7rem 0 0; }
.scale canvas { width: 7.5rem; height: .6rem; border: 1px solid var(--line); }
.lines { display: flex; width: max-content; margin: 0 auto; }
.lines .words div { box-sizing: border-box; padding: 0 6px; white-space: pre; cursor: pointer; border-radius: 2px; }
.lines .words:first-child { text-align: right; }
.lines .words div.on { outline: 1px solid var(--soft); }
.grid { display: grid; gap: 5px; width: max-content; align-items: center; color: var(--soft); }
.grid canvas { border: 1px solid var(--line); cursor: zoom-in; display: block; image-rendering: pixelated; }
.grid .name { font-size: 11px; text-align: center; }
.matrix { position: relative; }
.matrix canvas { position: absolute; cursor: crosshair; }
.matrix span { position: absolute; white-space: pre; }
.matrix .down { text-align: right; }
body.inline { padding: .3rem .2rem; max-width: none; background: none; }
html:has(body.inline) { background: none; }
body.inline h1 { font-size: 1rem; margin: 0 0 .5rem; }
body.inline #stage { max-height: 44rem; }
.matrix .across { transform-origin: 0 100%; transform: rotate(-55deg); }
"""


@dataclass(frozen=True)
class HtmlReport:
    """The content of a report page; sections without content are left out."""

    title: str
    summary: str
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = ()
    """(title, header, rows)"""
    answer: Sequence[tuple[str, str]] = ()
    """(caption, <svg>), before the tables."""
    notes: Sequence[str] = ()
    examples: Sequence[tuple[str, str, str]] = ()
    """(source, hypothesis, reference)"""
    figures: Sequence[tuple[str, str]] = ()
    """(caption, <svg>)"""
    commands: Sequence[str] = ()


def html_report(report: HtmlReport) -> str:
    """Return the report as a page; all text is escaped, only the figures are markup."""
    title = style.options().title or report.title
    parts = [f"<h1>{escape(title)}</h1>", f'<p class="lead">{escape(report.summary)}</p>' if report.summary else ""]
    if report.facts:
        parts.append(html_table((), report.facts))

    parts += html_figures(report.answer)
    for heading, header, rows in report.tables:
        parts += [f"<h2>{escape(heading)}</h2>", html_table(header, rows)]
    parts += [f"<p>{escape(note)}</p>" for note in report.notes]
    if report.examples:
        parts += ["<h2>Translations of test sentences</h2>", "<dl>", *(example_row(*row) for row in report.examples), "</dl>"]
    if report.figures:
        parts += [*(["<h2>Figures</h2>"] if len(parts) > 2 else []), *html_figures(report.figures)]
    if report.commands:
        commands = escape("\n".join(report.commands))
        parts += ["<h2>Next commands</h2>", f"<pre><code>{commands}</code></pre>"]
    return html_page(title, PAGE_STYLE, "\n".join(parts) + "\n")


def html_figures(figures: Sequence[tuple[str, str]]) -> list[str]:
    """Return figures, (caption, <svg>), as HTML."""
    return [
        f'<figure><div class="card">{svg}</div><figcaption>{escape(caption)}</figcaption></figure>' for caption, svg in figures
    ]


def html_page(title: str, css: str, body: str) -> str:
    """Return a page in the colours and type of show/web/theme.css."""
    css = (WEB / "theme.css").read_text(encoding="utf-8") + css
    theme = f' data-theme="{style.options().theme}"' if style.options().theme else ""
    return (
        f'<!doctype html>\n<html lang="en"{theme}>\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{css}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; its first column is plain, a signature is small, and others are numbers where there is a header."""
    head = f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in header)}</tr>" if header else ""
    kinds = ["", *("small" if name == "signature" else "number" for name in header[1:])] if header else [""] * len(rows[0])
    lines = ["".join(f"<td class={kind!r}>{escape(cell)}</td>" for kind, cell in zip(kinds, row)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table>{head}{body}</table></div>'


def example_row(source: str, hypothesis: str, reference: str) -> str:
    differs = "" if hypothesis == reference else f'<dd class="differs">reference: {escape(reference)}</dd>'
    return f"<div><dt>{escape(source)}</dt><dd>{escape(hypothesis)}</dd>{differs}</div>"


# pages with scripts


def attention_page(
    groups: Sequence[AttentionMaps],
    *,
    view: str = "heads",
    layer: int = 0,
    head: int | None = None,
    token: int | None = None,
    group: int = 0,
    absolute: bool = False,
    title: str = "attention",
) -> str:
    """Return a page to explore attention; it opens at a view, layer, head and token, counted from 0, of one group."""
    assert view in PAGE_VIEWS, view
    data = {
        "views": list(PAGE_VIEWS.items()),
        "at": {"view": view, "group": group, "layer": layer, "head": head, "token": token, "absolute": absolute},
        "groups": [
            {
                "name": maps.name,
                "queries": list(maps.queries),
                "keys": list(maps.keys),
                "note": maps.note,
                "layers": list(maps.layers),
                "heads": list(maps.heads),
                "numbered": maps.tile == 1,
                "largest": [[float(f"{weight:.6g}") for weight in layer] for layer in largest[..., 0, 0]],
                "weights": encode_bytes(np.round(maps.weights / np.maximum(largest, TINY) * 255)),
            }
            for maps in groups
            for largest in [maps.weights.max((2, 3), keepdims=True)]
        ],
    }
    body = (
        '<div class="bar" id="choose"></div>\n<div class="bar" id="heads"></div>\n<div id="stage"></div>\n'
        '<div class="bar" id="scale"></div>\n<p id="status"></p>\n'
    )
    return script_page(title, body, data, "views.js")


def script_page(title: str, body: str, data: Any, script: str, css: str = "", start: str = "") -> str:
    """Return a self-contained page whose script, a file of show/web, draws the data; `start` calls it, where it is shared with
    the page of the server."""
    title = style.options().title or title
    encoded = json.dumps(data, ensure_ascii=True).replace("<", "\\u003c")  # no word can end the script
    content = (
        f'<button id="theme" type="button" hidden></button>\n<h1>{escape(title)}</h1>\n{body}'
        f'<script type="application/json" id="data">{encoded}</script>\n'
        f'<script type="module">\n{read_scripts(script)}{start}</script>\n'
    )
    return html_page(title, PAGE_STYLE + VIEW_STYLE + css, content)


@cache
def read_scripts(name: str) -> str:
    """Return the shared scripts followed by the one of the page, as one module."""
    return "".join((WEB / part).read_text(encoding="utf-8") for part in (*SHARED_SCRIPTS, "page.js", name))


@cache
def read_css(name: str) -> str:
    """Return a style sheet of show/web."""
    return (WEB / name).read_text(encoding="utf-8")


def encode_bytes(numbers: np.ndarray) -> str:
    return b64encode(numbers.astype(np.uint8).tobytes()).decode("ascii")
