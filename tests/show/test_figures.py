"""Figures and report pages: reproducible bytes, words as text, nothing loaded from outside."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from regard.errors import UserError
from regard.show.figures.curves import score_by_length, score_over_length, training_curves
from regard.show.figures.figure_files import render, save_figure, to_svg
from regard.show.figures.halting_steps import HaltingColumn, halting_figure
from regard.show.figures.html_pages import HtmlReport, html_report
from regard.show.figures.matrix import attention_matrix, matrix_grid, matrix_text
from regard.show.figures.teaching import norm_figure, softmax_gradients

NASTY = ["<img src=x onerror=alert(1)>", "$x^2$", "&amp;", "Straße", "犬", "_under_", "\\frac", "\u202eevil", "", "a" * 80]


def matrix(T, S, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(S), T)


def svg_words(svg):
    return ["".join(node.itertext()).strip() for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


FIGURES = {
    "alignment": lambda: attention_matrix(matrix(4, 5), list("abcde"), list("wxyz"), title="title", gold=[(0, 0), (1, 3)]),
    "heads": lambda: matrix_grid(
        np.stack([matrix(4, 5, h) for h in range(6)]),
        list("abcde"),
        list("wxyz"),
        [f"head {head + 1}" for head in range(6)],
        title="layer 1",
    ),
    "training": lambda: training_curves(
        [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "valid_loss": 2.5, "valid_bleu": 10.0}]
    ),
    "steps": lambda: halting_figure(
        [HaltingColumn("source", ["a", "$x^2$"], [1, 3], 4), HaltingColumn("output", ["<b>", "", "c"], [0, 2, 3], 3)]
    ),
    "gradients": lambda: softmax_gradients([4, 16], {"one": [[0.1, 0.2, 0.3], [1e-3, 1e-2, 1e-1]], "two": [[0.1] * 3] * 2}),
    "norms": lambda: norm_figure(
        {"before": matrix(3, 4), "after": matrix(3, 4, 1)}, list("abc"), outlined={"after": "row"}, breaks=[2]
    ),
    "longer": lambda: score_over_length(
        {"one": [dict(length=5, score=100.0, low=99.0, high=100.0)], "two": [dict(length=5, score=0.0, low=0.0, high=1.0)]},
        trained=4,
    ),
    "length": lambda: score_by_length(
        {
            "one": [dict(low=1, high=5, count=9, score=50.0, ci_low=40.0, ci_high=55.0)],
            "two": [dict(low=1, high=5, count=9, score=60.0, ci_low=50.0, ci_high=65.0)],
        }
    ),
}


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_figures_render_to_the_same_bytes(name, kind):
    assert render(FIGURES[name](), kind) == render(FIGURES[name](), kind)


def test_words_are_text_in_the_svg():
    words = svg_words(render(FIGURES["alignment"](), "svg"))
    for word in [*"abcde", *"wxyz", "title", "attention weight", "gold alignment"]:
        assert word in words


def test_markup_and_formulas_stay_text():
    """Markup, formulas and other scripts neither break the figure nor are interpreted."""
    svg = render(attention_matrix(matrix(len(NASTY), len(NASTY)), NASTY, NASTY), "svg")
    words = svg_words(svg)
    assert "$x^2$" in words and "Straße" in words and any(word.startswith("<img src=x onerror") for word in words)
    assert b"<img" not in svg


def test_softmax_gradients_are_medians_on_plain_number_axes():
    axes = FIGURES["gradients"]().axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.2, 1e-2], [0.1, 0.1]]
    words = svg_words(render(FIGURES["gradients"](), "svg"))
    assert {"4", "16", "one", "two", "0.01", "0.1"} <= set(words) and not any("$" in word for word in words)


@pytest.mark.parametrize(("along", "box"), [("row", (-0.5, 0.5, 4, 1)), ("column", (0.5, -0.5, 1, 3))])
def test_norm_panels_share_a_scale_and_outline_what_is_averaged(along, box):
    panels = {"before": 3 * matrix(3, 4), "after": matrix(3, 4)}
    left, right = norm_figure(panels, NASTY[:3], outlined={"after": along}).axes
    assert left.images[0].get_clim() == right.images[0].get_clim() == (-panels["before"].max(), panels["before"].max())
    assert not left.patches and right.patches[0].get_bbox().bounds == box


def test_the_darkest_cell_is_the_largest_weight(tmp_path):
    from PIL import Image

    weights = np.zeros((3, 4))
    weights[1, 2] = 1.0
    axes = attention_matrix(weights, list("abcd"), list("xyz")).axes[0]
    assert np.array_equal(axes.images[0].get_array(), weights)
    assert axes.images[0].get_clim() == (0, 1)
    save_figure(attention_matrix(weights, list("abcd"), list("xyz")), tmp_path / "a.png")
    grey = np.asarray(Image.open(tmp_path / "a.png").convert("L"))
    assert grey.min() < 60 and (grey > 240).mean() > 0.5


@pytest.mark.parametrize("T, S", [(1, 1), (1, 60), (70, 90)])
def test_matrix_fits_any_number_of_words(T, S):
    figure = attention_matrix(matrix(T, S), [f"word{i}" for i in range(S)], [f"Wort{i}" for i in range(T)])
    assert max(figure.get_size_inches()) < 20
    assert f"word{S - 1}" in svg_words(render(figure, "svg"))


def test_unsupported_formats_and_unwritable_paths_are_user_errors(tmp_path):
    figure = FIGURES["training"]()
    with pytest.raises(UserError, match=r"\.gif is not a supported format; use \.svg, \.png or \.pdf"):
        save_figure(figure, tmp_path / "a.gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        save_figure(figure, tmp_path / "file" / "a.svg")


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]


def test_report_page_escapes_all_text_and_loads_nothing():
    nasty = "<script>alert(1)</script>"
    text = html_report(
        HtmlReport(
            title=nasty,
            summary=nasty,
            facts=[(nasty, nasty)],
            tables=[(nasty, [nasty], [[nasty]]), ("Scores", ["set", "signature"], [[nasty, nasty], [nasty, nasty]])],
            notes=[nasty],
            examples=[(nasty, nasty, nasty + "!")],
            commands=[nasty],
            figures=[(nasty, to_svg(FIGURES["training"](), "one")), ("again", to_svg(FIGURES["training"](), "two"))],
        )
    )
    found = Tags(text)
    assert "script" not in found.tags and "link" not in found.tags and "img" not in found.tags
    assert text.count("&lt;script&gt;") >= 10
    assert len(found.ids) == len(set(found.ids)) and found.tags.count("svg") == 2
    assert not re.search(r'(?:src|href)="(?!#)', text) and not re.findall(r"url\((?!#)", text)
    for reference in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text):
        assert (reference[0] or reference[1]) in found.ids


def test_matrix_text_falls_back_to_a_list_where_it_is_too_wide():
    weights = np.array([[1.0, 0.0], [0.25, 0.75]])
    drawn = matrix_text(weights, ["ab", "cde"], ["Wort", "x"]).splitlines()
    assert [line.strip() for line in drawn[:3]] == ["c", "a d", "b e"]
    assert drawn[3] == " Wort █" and drawn[4].startswith("    x ") and "▓" in drawn[4]
    listed = matrix_text(weights, ["ab", "cde"], ["Wort", "x"], width=5).splitlines()
    assert listed == ["Wort ← ab 1", "   x ← cde 0.75, ab 0.25"]
    assert "\x1b" not in matrix_text(weights, ["\x1b[31mred", "b"], ["犬犬", "\ud800"])
