"""Figures of images: attention word by word, saliency maps by method; layout, colours, reproducible bytes."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from regard.show.figures import style
from regard.show.figures.figure_files import render
from regard.show.figures.image_figures import (
    ImageAttention,
    SaliencyRow,
    image_attention_figure,
    overlay_weights,
    saliency_figure,
)

PIXELS = np.full((16, 24, 3), 200, np.uint8)


def image_attention(words=3, title=""):
    weights = np.random.default_rng(0).dirichlet(np.ones(24), words).reshape(words, 4, 6)
    return ImageAttention(PIXELS, [f"word{i}" for i in range(words)], weights, title)


def saliency(methods, outputs, size=(12, 12), **more):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (*size, 3)).astype(np.uint8)
    maps = [rng.normal(size=(3, 3)) for _ in methods]
    title = "the word 'triangle', 7 of 7 in 'a picture of a small orange triangle': probability 0.59"
    row = SaliencyRow(title, maps, ["0.40 (0.05)"] * len(methods))
    return saliency_figure(pixels, methods, [row] * outputs, **more)


def colourfulness(pixels):
    return pixels.max(-1).astype(int) - pixels.min(-1)


def test_overlay_is_most_colourful_where_the_weight_is_and_darkens_nothing_else():
    weights = np.zeros((4, 6))
    weights[1, 4] = 1
    found = overlay_weights(PIXELS, weights)
    y, x = np.unravel_index(colourfulness(found).argmax(), found.shape[:2])
    assert (y // 4, x // 4) == (1, 4) and (found[-1, 0] == PIXELS[-1, 0]).all()
    half = colourfulness(overlay_weights(PIXELS, weights, end=4.0)).max()
    assert 0 < half < colourfulness(found).max(), "on a longer scale the same weight is fainter"


def test_overlay_of_signed_weights_has_a_hue_on_either_side_of_zero():
    red, _, blue = overlay_weights(PIXELS, np.array([[1.0, 0, -1.0]]), smooth=False).transpose(2, 0, 1).astype(int)
    assert (red[0, 0] > blue[0, 0]) and (red[0, 12] == blue[0, 12] == 200) and (red[0, -1] < blue[0, -1])


def test_overlay_has_hard_edges_unless_smooth():
    pixels, weights = np.full((6, 6, 3), 200, np.uint8), np.zeros((3, 3))
    weights[1, 2] = 1
    found = colourfulness(overlay_weights(pixels, weights, smooth=False))
    assert (found[2:4, 4:6] == found.max()).all() and found[:2].max() == found[:, :4].max() == found[4:].max() == 0
    assert len(np.unique(overlay_weights(pixels, weights))) > 4


def test_words_of_several_images_share_one_scale_with_numbers():
    strong, weak = image_attention(2), image_attention(2)
    weak = replace(weak, weights=weak.weights / 10)
    figure = image_attention_figure([strong, weak])
    ticks = [tick.get_text() for tick in figure.axes[-1].get_xticklabels()]
    assert ticks[0] == "0" and float(ticks[-1]) >= strong.weights.max() > 0.5 * float(ticks[-1])
    tiles = [np.asarray(axes.images[0].get_array()) for axes in figure.axes]
    assert colourfulness(tiles[4]).max() < colourfulness(tiles[1]).max()
    absolute = image_attention_figure([weak], absolute=True)
    assert [tick.get_text() for tick in absolute.axes[-1].get_xticklabels()] == ["0", "0.5", "1"]


def test_image_attention_has_one_tile_per_word_and_one_plain():
    figure = image_attention_figure([image_attention(3, "a title"), image_attention(12)])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["", "word0", "word1", "word2", "", *(f"word{i}" for i in range(12)), ""]  # the last is the legend
    assert [text.get_text() for text in figure.texts] == ["a title", "attention weight of a patch"]
    boxes = [axes.get_position() for axes in figure.axes]
    assert all(0 <= box.x0 < box.x1 <= 1 and 0 <= box.y0 < box.y1 <= 1 for box in boxes)


@pytest.mark.parametrize("size", [(12, 12), (8, 20), (20, 8)])
@pytest.mark.parametrize("number", [1, 3, 8])
def test_saliency_text_is_not_cut_off_and_overlaps_nothing(number, size):
    below = ["distance 0.00 (0.00)\nselectivity 0.00"] * number
    figure = saliency(["integrated-gradients"] * number, 2, size, below=below, legend="Bright patches matter. " * 9)
    FigureCanvasAgg(figure).draw()
    width, height = figure.bbox.width, figure.bbox.height
    boxes = [text.get_window_extent() for text in figure.texts if text.get_text()]
    tiles = [axes.get_window_extent() for axes in figure.axes]
    assert len(tiles) == 2 * (number + 1)
    for index, box in enumerate(boxes):
        assert box.x0 >= 0 and box.x1 <= width + 1 and box.y0 >= 0 and box.y1 <= height + 1
        assert not any(box.overlaps(tile) for tile in tiles)
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])


def test_image_figures_render_to_the_same_bytes():
    assert render(saliency(["occlusion"], 1), "svg") == render(saliency(["occlusion"], 1), "svg")
    for kind in ("png", "svg"):
        assert render(image_attention_figure([image_attention()]), kind) == render(
            image_attention_figure([image_attention()]), kind
        )


def test_contour_lines_leave_the_image_as_it_is_away_from_them():
    """Hues colour the whole tile; lines at quarters of the scale are only where the weight crosses them."""
    pixels = np.full((64, 64, 3), 128, np.uint8)
    weights = np.zeros((1, 8, 8))
    weights[0, :, 4:] = 1.0  # every level is crossed between two columns of patches
    with style.use_options(style.FigureLook(contours=True)):
        figure = image_attention_figure([ImageAttention(pixels, ["word"], weights)])
    plain, tile = figure.axes[:2]
    assert np.array_equal(tile.images[0].get_array(), pixels) and not plain.collections and len(tile.collections) == 2
    x = np.concatenate([path.vertices[:, 0] for path in tile.collections[1].get_paths()])
    assert len(x) and x.min() > 24 and x.max() < 40
    hues = image_attention_figure([ImageAttention(pixels, ["word"], weights)]).axes[1]
    assert not np.array_equal(hues.images[0].get_array(), pixels) and not hues.collections
