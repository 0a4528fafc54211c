"""Recognition: rendered scenes are recovered, also when blurred and noisy, and nothing is found where there is nothing."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from regard.worlds import shapes


@pytest.mark.parametrize("size", [24, 32, 64])
def test_rendered_scenes_are_recovered(size):
    for image in shapes.generate(40, 3, size=size):
        found = shapes.recognise_scene(image.pixels())
        assert found.shapes == image.scene.shapes and abs(found.shade - image.scene.shade) <= 3


def test_recognition_is_robust_to_blur_and_noise():
    rng, right = np.random.default_rng(0), 0
    images = shapes.generate(60, 4, shapes=(1, 2))
    for image in images:
        pixels = image.pixels().astype(float)
        pixels = (2 * pixels + np.roll(pixels, 1, 0) + np.roll(pixels, 1, 1)) / 4 + rng.normal(0, 12, pixels.shape)
        found = shapes.recognise_scene(pixels.clip(0, 255).astype(np.uint8))
        right += {(one.kind, one.colour) for one in found.shapes} == {(one.kind, one.colour) for one in image.scene.shapes}
    assert right >= 54


def test_captions_have_the_same_truth_on_pixels_as_on_scenes():
    for number, image in enumerate(shapes.generate(25, 5)):
        assert all(shapes.image_satisfies(image.pixels(), caption.text) for caption in image.captions)
        for text in shapes.false_captions(image.scene, 2, Random(number)):
            assert shapes.image_satisfies(image.pixels(), text) is False, text
    assert shapes.image_satisfies(image.pixels(), "a melancholy afternoon") is None


def test_faint_shapes_are_found_and_shadows_are_not():
    for image in shapes.generate(10, 7, shapes=(1, 2)):
        pixels, shade = image.pixels().astype(float), image.scene.shade
        assert shapes.recognise_scene((shade + 0.8 * (pixels - shade)).astype(np.uint8)).shapes == image.scene.shapes
        assert shapes.recognise_scene((shade + 0.1 * (pixels - shade)).astype(np.uint8)).shapes == ()


def test_empty_and_noise_images_have_no_shapes():
    for shade in (0, 128, 200, 255):
        assert shapes.recognise_scene(np.full((32, 32, 3), shade, np.uint8)).shapes == ()
    noise = np.random.default_rng(0).integers(150, 250, (32, 32, 3)).astype(np.uint8)
    assert shapes.recognise_scene(noise).shapes == ()
    (image,) = shapes.generate(1, 6, shapes=(1, 1))
    empty = shapes.render_scene(replace(image.scene, shapes=()))
    assert shapes.recognise_scene(empty).shapes == ()
