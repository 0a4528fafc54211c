"""Rendering: shapes fill their boxes in their colours, the background is grey, and different names look different."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.worlds.shapes import COLOURS, KINDS, SIZES, TEXTURES, Scene, Shape, generate, render_scene
from regard.worlds.shapes.render import DARK_DIVISOR, FULL_COVERAGE, NOISE_AMPLITUDE, RGB, pixel_coverage, texture_mask

WIDTHS = range(24, 129, 8)
seeds = st.integers(0, 10**6)


@given(seeds, st.sampled_from(WIDTHS))
def test_boxes_are_tight_and_the_background_is_grey(seed, size):
    for image in generate(8, seed, size=size):
        scene, pixels = image.scene, image.pixels()
        assert pixels.shape == (size, size, 3) and pixels.dtype == np.uint8
        outside = np.ones((size, size), bool)
        for shape in scene.shapes:
            x0, y0, x1, y1 = shape.box
            outside[y0:y1, x0:x1] = False
            without = render_scene(replace(scene, shapes=tuple(other for other in scene.shapes if other != shape)))
            rows, columns = np.nonzero((without != pixels).any(2))
            assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == shape.box
        assert (np.ptp(pixels[outside], axis=1) == 0).all(), "grey"
        assert (abs(pixels[outside].astype(int) - scene.shade) <= (NOISE_AMPLITUDE if scene.noise else 0)).all()
        assert (np.ptp(pixels[outside]) > NOISE_AMPLITUDE) == bool(scene.noise)


@given(seeds, st.sampled_from(WIDTHS))
def test_shapes_have_their_colour_and_textures_a_darker_one(seed, size):
    for image in generate(8, seed, size=size):
        for shape in image.scene.shapes:
            x0, y0, x1, y1 = shape.box
            inside = image.pixels()[y0:y1, x0:x1][pixel_coverage(shape.kind, x1 - x0) == FULL_COVERAGE]
            bright, dark = (
                (inside == colour).all(1) for colour in (RGB[shape.colour], np.array(RGB[shape.colour]) // DARK_DIVISOR)
            )
            assert (bright | dark).all() and bright.mean() > 0.3 and dark.any() == (shape.texture != "plain")


def test_noise_depends_on_its_seed():
    one, other = (render_scene(Scene(32, (), shade=200, noise=noise)) for noise in (1, 2))
    assert (one != other).any(2).mean() > 0.8


def test_square_fills_its_box():
    pixels = render_scene(Scene(24, (Shape("square", "blue", "plain", "large", (2, 3, 12, 13)),), shade=200, noise=0))
    assert (pixels[3:13, 2:12] == RGB["blue"]).all() and (pixels == 200).all(2).sum() == 24 * 24 - 100


@pytest.mark.parametrize("kind, area", [("circle", np.pi / 4), ("ring", np.pi * 3 / 16), ("triangle", 1 / 2), ("square", 1)])
def test_areas_match_geometry(kind, area):
    assert pixel_coverage(kind, 56).sum() / FULL_COVERAGE / 56**2 == pytest.approx(area, rel=0.005)


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_are_mirror_symmetric(kind):
    for width in (9, 14):
        assert (pixel_coverage(kind, width) == pixel_coverage(kind, width)[:, ::-1]).all()


@pytest.mark.parametrize("size", WIDTHS)
def test_different_names_look_different(size):
    small, large = ([(width * size + 16) // 32 for width in SIZES[name]] for name in ("small", "large"))
    assert min(large) >= 1.4 * max(small)
    for width in small + large:
        for one, other in combinations(KINDS, 2):
            assert abs(pixel_coverage(one, width) - pixel_coverage(other, width)).sum() > 0.1 * FULL_COVERAGE * width**2, (
                one,
                other,
            )
        for kind in KINDS:
            covered = pixel_coverage(kind, width)
            dark = {texture: (texture_mask(texture, width, size) * covered).sum() / covered.sum() for texture in TEXTURES}
            assert dark["plain"] == 0 and 0.04 < dark["dotted"] < 0.3 < dark["striped"] < 0.6, (kind, width, dark)
    assert min(np.abs(np.subtract(RGB[one], RGB[other])).max() for one, other in combinations(COLOURS, 2)) >= 90
