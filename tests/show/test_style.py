"""The house style: a monotone colour scale, labels of any string, several figures in one page."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from regard.show.figures import labels
from regard.show.figures.figure_files import render, to_svg
from regard.show.figures.matrix import attention_matrix, matrix_grid
from regard.show.figures.style import house_style, sequential_colormap, wrap_text


def test_colormap_is_monotone_and_perceptually_even():
    red, green, blue = sequential_colormap()(np.arange(256))[:, :3].T
    linear = [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in (red, green, blue)]
    lightness = 116 * np.cbrt(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]) - 16  # CIE L*
    steps = -np.diff(lightness)
    assert steps.min() > 0 and steps.max() < 2.5 * steps.min()
    assert lightness[0] > 96 and lightness[-1] < 22


def test_gold_links_are_source_then_target():
    figure = attention_matrix(np.full((2, 3), 1 / 3), list("abc"), list("xy"), gold=[(2, 0)])
    frames = [c for c in figure.axes[0].collections if type(c).__name__ == "PatchCollection"]
    box = frames[0].get_paths()[0].get_extents()
    assert 2 <= box.x0 < box.x1 <= 3 and 0 <= box.y0 < box.y1 <= 1


def test_matrix_grid_draws_and_names_every_panel():
    weights = np.random.default_rng(0).dirichlet(np.ones(4), (5, 3))
    figure = matrix_grid(weights, list("abcd"), list("xyz"), [f"view {i}" for i in range(5)])
    drawn = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert np.array_equal(np.stack(drawn), weights)
    text = "".join(ElementTree.fromstring(render(figure, "svg")).itertext())
    assert all(f"view {i}" in text for i in range(5))


@pytest.mark.parametrize("T, S", [(1, 1), (12, 14), (40, 38), (60, 80)])
def test_matrix_labels_stay_inside_and_do_not_overlap(T, S):
    figure = attention_matrix(
        np.full((T, S), 1 / S), ["playhouse"] * S, ["Spielhaus"] * T, title="A title of several words", gold=[]
    )
    figure.draw_without_rendering()
    whole = figure.bbox.padded(1)
    rows = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    for box in rows + [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]:
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1
    assert all(upper.y0 >= lower.y1 - 1 for upper, lower in pairwise(rows))


def test_wrong_shapes_are_assertion_errors():
    with pytest.raises(AssertionError, match=r"expected weights \(2, 3\)"):
        attention_matrix(np.zeros((3, 2)), list("abc"), list("xy"))


def test_inlined_figures_share_no_id_and_keep_words_that_look_like_ids():
    word = 'url(#p1) id="p1"'
    figures = [to_svg(attention_matrix(np.ones((1, 1)), [word], ["y"]), name) for name in ("one", "two")]
    ids = [set(re.findall(r'<[^>]* id="([^"]+)"', text)) for text in figures]
    assert ids[0] and not ids[0] & ids[1]
    for text in figures:
        root = ElementTree.fromstring(text)
        assert word in ["".join(node.itertext()) for node in root.iter("text")]
        assert "http" not in text and not list(root.iter("style"))


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(), max_size=60))
def test_label_is_never_blank_has_no_control_characters_and_keeps_its_ends(word):
    label = labels.label(word)
    assert label.strip() and not any(labels.is_forbidden(char) for char in label)
    assert len(labels.graphemes(label)) <= 32
    ElementTree.fromstring(f"<a>{label.replace('&', '').replace('<', '')}</a>".encode())
    if len(labels.graphemes(labels.clean(word))) > 32:
        assert labels.clean(word).startswith(label.partition("…")[0])


def test_wrapped_bold_title_fits_its_width():
    figure = Figure(figsize=(4, 2))
    with house_style():
        title = figure.text(
            0, 0.5, wrap_text("many a word that may be rather long " * 8, 11.5, 4), fontsize=11.5, fontweight="bold"
        )
        figure.canvas.draw()
        assert title.get_window_extent().width <= figure.bbox.width and title.get_text().count("\n") >= 3
