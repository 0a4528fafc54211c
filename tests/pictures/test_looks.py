"""The picture again for each word: bright where it looked, the same bytes every time."""

import numpy as np

from regard.show.figures.overlay import DIM, ImageAttention, image_attention_figure, overlay_weights
from regard.show.figures.style import render

PIXELS = np.full((16, 24, 3), 200, np.uint8)


def shown(words=3, title=""):
    weights = np.random.default_rng(0).dirichlet(np.ones(24), words).reshape(words, 4, 6)
    return ImageAttention(PIXELS, [f"word{i}" for i in range(words)], weights, title)


def test_it_is_bright_where_it_looked():
    weights = np.zeros((4, 6))
    weights[1, 4] = 1
    light = overlay_weights(PIXELS, weights).mean(-1)
    y, x = np.unravel_index(light.argmax(), light.shape)
    assert (y // 4, x // 4) == (1, 4) and light.max() == 200
    assert light[-1, 0] == round(DIM * 200)
    assert (overlay_weights(PIXELS, np.full((4, 6), 1 / 24)) == PIXELS).all(), (
        "looking everywhere alike leaves the picture as it is"
    )


def test_a_tile_for_each_word_and_one_without():
    figure = image_attention_figure([shown(3, "a title"), shown(12)])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["", "word0", "word1", "word2", "", *(f"word{i}" for i in range(12))]
    assert [text.get_text() for text in figure.texts] == ["a title"]
    inside = [axes.get_position() for axes in figure.axes]
    assert all(0 <= place.x0 < place.x1 <= 1 and 0 <= place.y0 < place.y1 <= 1 for place in inside)


def test_the_same_bytes_every_time():
    for kind in ("png", "svg"):
        assert render(image_attention_figure([shown()]), kind) == render(image_attention_figure([shown()]), kind)
