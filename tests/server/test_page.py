"""The page's files: they load nothing from other servers, insert text only as text nodes, and have readable colours."""

import re
from pathlib import Path

import pytest

from regard.server.app import MEDIA_TYPES, PAGE_FOLDER, page_files
from regard.server.models import VERBS

FILES = sorted(page_files().values())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
TEXT = {path.name: path.read_text(encoding="utf-8") for path in FILES}


def test_every_file_is_served(client):
    assert set(PAGE_FOLDER.iterdir()) <= set(FILES)
    for path in FILES:
        found = client.get("/" if path.name == "index.html" else f"/page/{path.name}")
        assert found.status_code == 200 and found.content == path.read_bytes()
        assert found.headers["content-type"] == MEDIA_TYPES[path.suffix]
        assert "script-src 'self';" in found.headers["content-security-policy"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_never_insert_html(path):
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|setHTML|DOMParser|createContextualFragment|"
        r"\beval\(|new Function|srcdoc|setAttribute\(\"style|cssText|javascript:",
        TEXT[path.name],
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_load_nothing_from_other_servers(path):
    """No URL but SVG's namespace; nothing that a strict Content-Security-Policy would block."""
    text = TEXT[path.name].replace("http://www.w3.org/2000/svg", "")
    assert not re.findall(r"https?://|//[\w-]+\.\w+/|@import|url\(", text)
    if path.suffix == ".html":
        assert not re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)


def test_imports_between_scripts_exist_and_are_used():
    exported = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.M)
    known = {name: set(exported.findall(text)) for name, text in TEXT.items()}
    named = re.compile(r"^import \{([^}]*)\} from \"\./([\w.]+)\";", re.M)
    for path in SCRIPTS:
        for names, source in named.findall(TEXT[path.name]):
            wanted = {name.strip() for name in names.split(",")}
            assert wanted <= known[source], f"{path.name} wants {sorted(wanted - known[source])} of {source}"
            rest = named.sub("", TEXT[path.name])
            idle = [name for name in wanted if not re.search(rf"\b{name}\b", rest)]
            assert not idle, f"{path.name} has no use for {idle}"
    loaded = {source for text in TEXT.values() for _, source in named.findall(text)} | {"app.js"}
    assert {path.name for path in SCRIPTS} == loaded


def test_every_verb_has_a_view():
    views = re.search(r"const VIEWS = \{([^}]*)\}", TEXT["views.js"])[1]
    assert {*VERBS, "attention"} <= {name.strip() for name in views.split(",")}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_enough_contrast(theme):
    """A ratio of at least 4.5 to 1 (WCAG 2, AA)."""
    blocks = re.findall(r":root(?:\[data-theme=dark\])? \{(.*?)\}", TEXT["theme.css"], re.S)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[theme == "dark"]))
    pairs = [
        ("ink", "paper"),
        ("ink", "card"),
        ("ink", "tint"),
        ("soft", "paper"),
        ("soft", "card"),
        ("accent", "paper"),
        ("accent", "card"),
        ("on-accent", "accent"),
        ("error", "error-paper"),
    ]
    low = {pair: ratio for pair in pairs if (ratio := contrast(*(colours[name] for name in pair))) < 4.5}
    assert not low


def contrast(one: str, other: str) -> float:
    lights = []
    for colour in (one, other):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_wheel_includes_the_page():
    """The wheel holds everything under src/regard that git does not ignore."""
    ignored = (Path(__file__).parents[2] / ".gitignore").read_text(encoding="utf-8").split()
    assert not {"*.js", "*.css", "*.html", "*.svg", "page", "page/"} & set(ignored)
