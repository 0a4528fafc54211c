"""A figure as an object: it displays by itself in a notebook, and is saved as an image or a page."""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from regard.errors import UserError
from regard.show.figures import style
from regard.show.figures.figure_files import render, to_svg, write_view
from regard.show.figures.html_pages import HtmlReport, html_report

FRAME_HEIGHT = 460
"""Of a page in a notebook, in pixels, until its script knows better."""


class InlineFigure:
    """A view of attention. In Jupyter and VS Code it displays by itself, without a network; `save` writes it to a file.

    It is drawn when it is first shown or saved. `description` says in a line what it shows, `note` what a user should know about
    the choice, if anything; `data` holds the numbers of a view that has some of its own (`lens`, `flow`).
    """

    def __init__(
        self,
        description: str,
        figure: Callable[[], Figure],
        *,
        text: Callable[[], str] | None = None,
        page: Callable[[], str] | None = None,
        title: str = "",
        data: object = None,
        note: str = "",
    ):
        self.description, self.data, self.note = description, data, note
        self._figure, self._text, self._page, self._title = figure, text, page, title or description

    def save(
        self,
        path: str | Path,
        *,
        title: str | None = None,
        width: str | None = None,
        theme: str | None = None,
        transparent: bool = False,
        contours: bool = False,
    ) -> Path:
        """Write the view to a file, whose name ends in .svg, .pdf, .png or .html; return its path.

        `title` replaces the figure's own; `width` is that of an image, such as "800px", "6in" or "84mm"; `theme` is "light" or
        "dark", by default light for an image and as the reader's system for a page; with `contours`, weights over an image are
        lines.
        """
        options, file = style.FigureLook(theme, title, width, transparent, contours), Path(path)
        if file.suffix.lower() == ".html" and (width or transparent):
            raise UserError(f"--out {path}: a page has no width or background of its own; leave out --width and --transparent")
        with style.use_options(options):
            write_view(file, self._figure, self._page or self._still_page)
        return file

    def text(self) -> str:
        """Return the view as text, for a terminal."""
        return self.description if self._text is None else f"{self.description}\n\n{self._text()}"

    def __repr__(self) -> str:
        return self.description

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook displays: a page in a frame of its own, so that no two cells share names; else an image."""
        return {"text/html": self._still() if self._page is None else self._frame(), "text/plain": self.description}

    def _frame(self) -> str:
        assert self._page is not None
        page = self._page().replace("<body>", '<body class="inline">', 1)
        style = f"width: 100%; height: {FRAME_HEIGHT}px; border: 0"
        return f'<iframe srcdoc="{escape(page)}" style="{style}" title="{escape(self._title)}"></iframe>'

    def _still(self) -> str:
        image = b64encode(self._svg()).decode("ascii")
        return f'<img src="data:image/svg+xml;base64,{image}" style="max-width: 100%" alt="{escape(self._title)}">'

    def _svg(self) -> bytes:
        return render(self._figure(), "svg")

    def _still_page(self) -> str:
        """Return a page with the figure in both themes; the reader's system chooses, unless one was chosen."""
        return html_report(HtmlReport(self._title, "", figures=[("", svg_in_both_themes(self._figure))]))


def svg_in_both_themes(figure: Callable[[], Figure]) -> str:
    """Return a figure for a page, dark and light: its style sheet shows the reader's."""
    chosen = style.options()
    svgs = []
    for theme in ("dark", "light"):  # in this order for the style sheet
        with style.use_options(replace(chosen, theme=theme, title="")):  # the page has it
            svgs.append(f'<div class="{theme}">{to_svg(figure(), theme)}</div>')
    return "".join(svgs)
