"""Figures of images: attention word by word, saliency maps by method; layout, brightness, reproducible bytes."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from regard.show.figures.figure_files import render
from regard.show.figures.image_figures import (
    DIM,
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


def test_overlay_is_brightest_where_the_weight_is():
    weights = np.zeros((4, 6))
    weights[1, 4] = 1
    light = overlay_weights(PIXELS, weights).mean(-1)
    y, x = np.unravel_index(light.argmax(), light.shape)
    assert (y // 4, x // 4) == (1, 4) and light.max() == 200
    assert light[-1, 0] == round(DIM * 200)
    assert (overlay_weights(PIXELS, np.full((4, 6), 1 / 24)) == PIXELS).all(), "uniform weights leave the image unchanged"


def test_overlay_has_hard_edges_unless_smooth():
    pixels, weights = np.full((6, 6, 3), 200, np.uint8), np.zeros((3, 3))
    weights[1, 2] = 1
    found = overlay_weights(pixels, weights, smooth=False)
    assert (found[2:4, 4:6] == 200).all() and found[:2].max() == found[:, :4].max() == found[4:].max() < 60
    assert len(np.unique(overlay_weights(pixels, weights))) > 4


def test_image_attention_has_one_tile_per_word_and_one_plain():
    figure = image_attention_figure([image_attention(3, "a title"), image_attention(12)])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["", "word0", "word1", "word2", "", *(f"word{i}" for i in range(12))]
    assert [text.get_text() for text in figure.texts] == ["a title"]
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
