"""What speaks for an answer in a picture, drawn."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from regard.show.figures.overlay import overlay_weights
from regard.show.figures.saliency import SaliencyRow, saliency_figure
from regard.show.figures.style import render


def drawn(methods, answers, size=(12, 12), **more):
    chance = np.random.default_rng(0)
    pixels = chance.integers(0, 256, (*size, 3)).astype(np.uint8)
    maps = [chance.normal(size=(3, 3)) for _ in methods]
    shown = [
        SaliencyRow(
            "the word 'triangle', 7 of 7 in 'a picture of a small orange triangle': probability 0.59",
            maps,
            ["0.40 (0.05)"] * len(methods),
        )
        for _ in range(answers)
    ]
    return saliency_figure(pixels, methods, shown, **more)


@pytest.mark.parametrize("size", [(12, 12), (8, 20), (20, 8)])
@pytest.mark.parametrize("number", [1, 3, 8])
def test_nothing_is_cut_off_and_nothing_lies_on_a_map(number, size):
    methods = ["integrated-gradients"] * number
    figure = drawn(methods, 2, size, below=["apart 0.00 (0.00)\nselective 0.00"] * number, legend="Bright is what speaks. " * 9)
    FigureCanvasAgg(figure).draw()
    width, height = figure.bbox.width, figure.bbox.height
    boxes = [text.get_window_extent() for text in figure.texts if text.get_text()]
    tiles = [axes.get_window_extent() for axes in figure.axes]
    assert len(tiles) == 2 * (number + 1)
    for box in boxes:
        assert box.x0 >= 0 and box.x1 <= width + 1 and box.y0 >= 0 and box.y1 <= height + 1
        assert not any(box.overlaps(tile) for tile in tiles)
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])


def test_the_same_maps_give_the_same_bytes():
    assert render(drawn(["occlusion"], 1), "svg") == render(drawn(["occlusion"], 1), "svg")


def test_a_patch_has_edges_where_it_is_not_smoothed():
    pixels, weights = np.full((6, 6, 3), 200, np.uint8), np.zeros((3, 3))
    weights[1, 2] = 1
    found = overlay_weights(pixels, weights, smooth=False)
    assert (found[2:4, 4:6] == 200).all() and found[:2].max() == found[:, :4].max() == found[4:].max() < 60
    assert len(np.unique(overlay_weights(pixels, weights))) > 4
