"""What the world drew is recognised; what is nearly so, too; and what is not there, is not."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from regard.worlds import shapes


@pytest.mark.parametrize("size", [24, 32, 64])
def test_what_was_drawn_is_recognised(size):
    for picture in shapes.generate(40, 3, size=size):
        found = shapes.recognise_scene(picture.pixels())
        assert found.shapes == picture.scene.shapes and abs(found.shade - picture.scene.shade) <= 3


def test_so_it_is_when_blurred_and_noisy():
    chance, right = np.random.default_rng(0), 0
    pictures = shapes.generate(60, 4, shapes=(1, 2))
    for picture in pictures:
        pixels = picture.pixels().astype(float)
        pixels = (2 * pixels + np.roll(pixels, 1, 0) + np.roll(pixels, 1, 1)) / 4 + chance.normal(0, 12, pixels.shape)
        found = shapes.recognise_scene(pixels.clip(0, 255).astype(np.uint8))
        right += {(one.kind, one.colour) for one in found.shapes} == {(one.kind, one.colour) for one in picture.scene.shapes}
    assert right >= 54


def test_captions_are_judged_by_pixels_as_by_scenes():
    for number, picture in enumerate(shapes.generate(25, 5)):
        assert all(shapes.image_satisfies(picture.pixels(), caption.text) for caption in picture.captions)
        for text in shapes.false_captions(picture.scene, 2, Random(number)):
            assert shapes.image_satisfies(picture.pixels(), text) is False, text
    assert shapes.image_satisfies(picture.pixels(), "a melancholy afternoon") is None


def test_what_is_faint_is_there_and_a_shadow_is_not():
    for picture in shapes.generate(10, 7, shapes=(1, 2)):
        pixels, shade = picture.pixels().astype(float), picture.scene.shade
        assert shapes.recognise_scene((shade + 0.8 * (pixels - shade)).astype(np.uint8)).shapes == picture.scene.shapes
        assert shapes.recognise_scene((shade + 0.1 * (pixels - shade)).astype(np.uint8)).shapes == ()


def test_nothing_is_in_nothing():
    for shade in (0, 128, 200, 255):
        assert shapes.recognise_scene(np.full((32, 32, 3), shade, np.uint8)).shapes == ()
    noise = np.random.default_rng(0).integers(150, 250, (32, 32, 3)).astype(np.uint8)
    assert shapes.recognise_scene(noise).shapes == ()
    (picture,) = shapes.generate(1, 6, shapes=(1, 1))
    empty = shapes.render_scene(replace(picture.scene, shapes=()))
    assert shapes.recognise_scene(empty).shapes == ()
