"""The look of figures: scales with numbers, themes, titles, widths, and fonts."""

import warnings
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgb
from PIL import Image

from regard.errors import UserError
from regard.show.figures.figure_files import render
from regard.show.figures.matrix import attention_matrix, matrix_grid
from regard.show.figures.style import THEMES, FigureLook, scale_end, sequential_colormap, use_options


def contrast(one, other):
    """Return the contrast ratio of WCAG 2."""
    linear = [[x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(colour)] for colour in (one, other)]
    light, dark = sorted((np.dot([0.2126, 0.7152, 0.0722], part) for part in linear), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@given(st.floats(1e-6, 1))
def test_scale_ends_at_a_round_number_just_above_the_largest_weight(largest):
    end = scale_end(largest)
    assert largest <= end * (1 + 1e-6) and end <= min(1, 2 * largest * (1 + 1e-6)) and float(f"{end:.2g}") == end
    assert scale_end(0.0) == 1


def test_diffuse_attention_is_not_blank_unless_the_scale_is_absolute():
    weights = np.full((2, 200, 200), 1 / 200)
    words = [str(i) for i in range(200)]
    for figure, end in (
        (attention_matrix(weights[0], words, words), 0.005),
        (attention_matrix(weights[0], words, words, absolute=True), 1),
        (matrix_grid(weights, words, words, ["1", "2"]), 0.005),
        (matrix_grid(weights, words, words, ["1", "2"], absolute=True), 1),
    ):
        assert figure.axes[0].images[0].get_clim() == (0, end)
        assert [tick.get_text() for tick in figure.axes[-1].get_yticklabels()][0::2] == ["0", f"{end:g}"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_of_scripts_and_figures_are_those_of_the_theme(theme):
    """Text on the paper of a figure has a contrast of 4.5 to 1, and the map of weights begins near the paper."""
    with use_options(FigureLook(theme=theme)):
        found = THEMES[theme]
        assert contrast(found.text, found.paper) > 7 and contrast(found.muted, found.paper) > 4.5
        lowest = to_hex(sequential_colormap()(0.0))
        assert contrast(lowest, found.paper) < 1.25
        svg = render(attention_matrix(np.eye(2), ["a", "b"], ["c", "d"]), "svg").decode()
        assert found.paper in svg and found.text in svg


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_title_width_and_background_of_a_file(kind):
    def draw(**options):
        with use_options(FigureLook(**options)):
            return render(attention_matrix(np.eye(2), ["a", "b"], ["c", "d"], title="own"), kind)

    assert draw() == draw() and draw(width="6in") == draw(width="6in") != draw()
    if kind == "svg":
        assert (
            b'width="576.0000pt"' in draw(width="768px") and b">other<" in draw(title="other") and b">own<" not in draw(title="")
        )
        assert b"#ffffff" not in draw(transparent=True).partition(b'id="axes_1"')[0]
    if kind == "png":
        assert Image.open(BytesIO(draw(width="640px"))).width in (639, 640, 641)
        assert Image.open(BytesIO(draw(transparent=True))).convert("RGBA").getpixel((0, 0))[3] == 0
    if kind == "pdf":
        assert b"/MediaBox [ 0 0 432 " in draw(width="6in")


@pytest.mark.parametrize("width", ["wide", "0px", "1000in", "-3cm"])
def test_width_that_is_none_is_a_user_error(width):
    with pytest.raises(UserError, match="write 800px, 6in"):
        FigureLook(width=width)


def test_missing_glyphs_are_named_with_the_font_to_install():
    figure = attention_matrix(np.eye(2), ["ཀ", "b"], ["c", "𐎠"])
    with pytest.warns(UserWarning, match="no installed font has ཀ 𐎠.*Noto Sans Old.*Noto Sans Tibetan"):
        render(figure, "png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        render(figure, "svg")
        render(attention_matrix(np.eye(2), ["a", "b"], ["c", "d"]), "png")
