"""Figures as files: reproducible SVG, PNG and PDF, at their own size or a chosen width."""

import io
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

from matplotlib.backends.backend_mixed import MixedModeRenderer
from matplotlib.backends.backend_pdf import Op, PdfFile, RendererPdf
from matplotlib.figure import Figure

from regard.errors import UserError
from regard.files import atomic_write, writing_into
from regard.show.figures import style

FORMATS: dict[str, dict[str, Any]] = {  # no dates or versions: the same figure gives the same bytes
    "svg": {"metadata": {"Date": None, "Creator": None, "Format": None, "Type": None}},
    "png": {"metadata": {"Software": None}, "dpi": 200},
    "pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}},
}


def render(figure: Figure, kind: str, background: str | None = None) -> bytes:
    """Return the figure as the bytes of an "svg", "png" or "pdf" file."""
    background = background or ("none" if style.options().transparent else style.theme().paper)
    natural = float(figure.get_size_inches()[0])
    inches, unit = (natural, "in") if style.options().width is None else style.parse_width(str(style.options().width))
    settings, buffer = dict(FORMATS[kind]), io.BytesIO()
    if kind == "png":
        settings["dpi"] *= inches * (style.PER_INCH["px"] / settings["dpi"] if unit == "px" else 1) / natural
    with style.house_style(), report_missing_glyphs(kind):
        if kind == "pdf" and inches != natural:
            write_scaled_pdf(figure, buffer, inches / natural, background)
        else:
            figure.savefig(buffer, format=kind, facecolor=background, **settings)
    content = buffer.getvalue()
    return scale_svg(content, inches / natural) if kind == "svg" and inches != natural else content


@contextmanager
def report_missing_glyphs(kind: str) -> Iterator[None]:
    """Warn once about characters that no installed font has, and say which font to install; an SVG leaves them to its viewer."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    missing: dict[str, None] = {}
    for one in caught:
        glyph = re.match(style.MISSING_GLYPH, str(one.message))
        if glyph:
            missing[chr(int(glyph[1]))] = None
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if missing and kind != "svg":
        shown = " ".join(list(missing)[:8]) + (" …" if len(missing) > 8 else "")
        fonts = " and ".join(sorted({font_with(char) for char in missing}))
        warnings.warn(f"no installed font has {shown}: the figure shows boxes; install {fonts}", stacklevel=5)


def font_with(char: str) -> str:
    """Return a free font that has a character, and its package on Debian and Ubuntu."""
    script = unicodedata.name(char, "SYMBOL").split()[0]
    if script in ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH", "HALFWIDTH", "IDEOGRAPHIC"):
        return "Noto Sans CJK (apt install fonts-noto-cjk)"
    if unicodedata.category(char)[0] == "L" or unicodedata.category(char)[0] == "M":
        return f"Noto Sans {script.title()} (apt install fonts-noto-core)"
    return "Noto Sans Symbols2 (apt install fonts-noto-core) or Noto Emoji"


def scale_svg(svg: bytes, scale: float) -> bytes:
    """Return an SVG whose width and height are so many times larger; its drawing grows with them."""

    def larger(size: re.Match[bytes]) -> bytes:
        return b'%s="%.4fpt"' % (size[1], float(size[2]) * scale)

    start = svg.index(b"<svg")
    end = svg.index(b">", start)
    return svg[:start] + re.sub(rb'\b(width|height)="([\d.]+)pt"', larger, svg[start:end]) + svg[end:]


def write_scaled_pdf(figure: Figure, buffer: io.BytesIO, scale: float, background: str) -> None:
    """Write a PDF whose page is so many times larger; its drawing grows with it."""
    across, down = figure.get_size_inches()
    file = cast(Any, PdfFile)(buffer, FORMATS["pdf"]["metadata"])
    before, colour = figure.dpi, figure.get_facecolor()
    figure.dpi = 72
    figure.set_facecolor(background)
    file.newPage(across * scale, down * scale)
    file.output(scale, 0, 0, scale, 0, 0, Op.concat_matrix)
    renderer = cast(Any, RendererPdf)(file, before, down, across)
    figure.draw(cast(Any, MixedModeRenderer)(figure, across, down, before, renderer))
    renderer.finalize()
    file.finalize()
    file.close()
    figure.dpi = before
    figure.set_facecolor(colour)


def to_svg(figure: Figure, name: str = "") -> str:
    """Return the figure as an <svg> to inline in a page; `name` prefixes every id, so that several figures can share a page."""
    root = ElementTree.fromstring(render(figure, "svg", background="none"))  # the background of the page shows through
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}style", "}metadata")):  # an inlined style would apply to the whole page
                parent.remove(child)
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]  # HTML needs no namespace for <svg>
        node.attrib = {key.rpartition("}")[2]: prefix_ids(key, value, name) for key, value in node.attrib.items()}
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    return ElementTree.tostring(root, encoding="unicode")


def prefix_ids(key: str, value: str, name: str) -> str:
    """Return the attribute with `name` before each id that it defines or refers to."""
    prefix = f"{name}-" if name else ""
    if key == "id":
        return prefix + value
    return f"#{prefix}{value[1:]}" if value.startswith("#") and key.endswith("href") else value.replace("url(#", f"url(#{prefix}")


def figure_format(path: Path, *, pages: bool = False) -> str:
    """Return the format that the file name ends in, .html among them if `pages`; raise a UserError for any other."""
    kind = path.suffix.lower()[1:]
    if kind not in FORMATS and not (pages and kind == "html"):
        wrong = f"{path.suffix} is not a supported format" if kind else "the file name has no extension"
        raise UserError(f"--out {path}: {wrong}; use {'.svg, .png, .pdf or .html' if pages else '.svg, .png or .pdf'}")
    return kind


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format that the file name ends in."""
    write_file(path, render(figure, figure_format(path)))


def write_view(out: Path | None, figure: Callable[[], Figure], page: Callable[[], str]) -> None:
    """Write a figure, or where the file name ends in .html a page; nothing without a file."""
    if out is not None:
        kind = figure_format(out, pages=True)
        write_file(out, page().encode() if kind == "html" else render(figure(), kind))


def write_file(path: Path, content: bytes) -> None:
    """Write a figure or page; missing folders are made."""
    with writing_into(path.parent):
        atomic_write(path, content)
