"""Attention as one HTML file to look around in: lines, thumbnails, matrix, one token over layers. No network; words stay words.

The weights are bytes, 0 to 255 for 0 to the darkest; the script (views.js) draws them on canvases.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from regard.show.figures import html_report, style
from regard.show.figures.attention_maps import AttentionMaps
from regard.show.figures.head_lines import head_colours

PAGE_VIEWS = {"heads": "lines", "model": "all heads", "matrix": "matrix", "token": "one token"}
STYLE = """
body { max-width: 76rem; }
.bar { display: flex; flex-wrap: wrap; gap: .5rem 1.1rem; align-items: center; margin: 0 0 .7rem;
       font: .88rem/1.4 ui-sans-serif, system-ui, sans-serif; color: var(--soft); }
.bar select, .bar button { font: inherit; color: var(--ink); background: var(--paper); border: 1px solid var(--line);
                           border-radius: 4px; padding: .15rem .5rem; max-width: 18rem; cursor: pointer; }
.bar button[aria-pressed=true] { background: var(--ink); color: var(--paper); }
.bar .head { border: 0; border-radius: 3px; padding: .1rem .45rem; color: #fff; min-width: 1.7rem; }
.bar .head[aria-pressed=false] { opacity: .25; }
#stage { background: #fff; color: #1d2330; border: 1px solid var(--line); border-radius: 4px; padding: .9rem; overflow: auto;
         max-height: 82vh; font: 13px/1 ui-sans-serif, system-ui, sans-serif; }
#said { min-height: 1.4rem; color: var(--soft); font: .88rem/1.4 ui-sans-serif, system-ui, sans-serif; margin: .5rem 0 0;
        overflow-wrap: anywhere; }
.lines { display: flex; width: max-content; margin: 0 auto; }
.lines .words div { box-sizing: border-box; padding: 0 6px; white-space: pre; cursor: pointer; border-radius: 2px; }
.lines .words:first-child { text-align: right; }
.lines .words div.on { outline: 1px solid #646b78; }
.grid { display: grid; gap: 5px; width: max-content; align-items: center; color: #646b78; }
.grid canvas { border: 1px solid #d8dade; cursor: zoom-in; display: block; image-rendering: pixelated; }
.grid .name { font-size: 11px; text-align: center; }
.matrix { position: relative; }
.matrix canvas { position: absolute; cursor: crosshair; }
.matrix span { position: absolute; white-space: pre; }
.matrix .down { text-align: right; }
.matrix .across { transform-origin: 0 100%; transform: rotate(-55deg); }
"""


@cache
def script(name: str) -> str:
    return "".join((Path(__file__).parent / part).read_text(encoding="utf-8") for part in ("page.js", name))


def attention_page(
    groups: Sequence[AttentionMaps],
    *,
    view: str = "heads",
    layer: int = 0,
    head: int | None = None,
    token: int | None = None,
    group: int = 0,
    title: str = "attention",
) -> str:
    """The page; it opens at a view, layer, head and token, counted from 0, of one kind of attention."""
    assert view in PAGE_VIEWS, view
    said = {
        "views": list(PAGE_VIEWS.items()),
        "ramp": encode_bytes(np.round(style.sequential_colormap()(np.arange(256))[:, :3] * 255)),
        "at": {"view": view, "group": group, "layer": layer, "head": head, "token": token},
        "groups": [
            {
                "name": found.name,
                "queries": list(found.queries),
                "keys": list(found.keys),
                "note": found.note,
                "layers": list(found.layers),
                "heads": list(found.heads),
                "colours": head_colours(len(found.heads)),
                "darkest": found.darkest,
                "numbered": found.tile == 1,
                "weights": encode_bytes(np.round(found.weights / found.darkest * 255)),
            }
            for found in groups
        ],
    }
    body = '<div class="bar" id="choose"></div>\n<div class="bar" id="heads"></div>\n<div id="stage"></div>\n<p id="said"></p>\n'
    return script_page(title, body, said, "views.js")


def script_page(title: str, body: str, said: Any, drawing: str, look: str = "") -> str:
    """A page of one file, whose script, named `drawing`, draws what is said."""
    data = json.dumps(said, ensure_ascii=True).replace("<", "\\u003c")  # no word can end the script
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{html_report.STYLE}{STYLE}{look}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f'{body}<script type="application/json" id="data">{data}</script>\n'
        f"<script>\n{script(drawing)}</script>\n</body>\n</html>\n"
    )


def encode_bytes(numbers: np.ndarray) -> str:
    return b64encode(numbers.astype(np.uint8).tobytes()).decode("ascii")
