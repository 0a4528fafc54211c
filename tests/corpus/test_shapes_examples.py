"""The shapes world as the data of a recipe."""

import numpy as np
import pytest

from regard.corpus.dataset import read_dataset, shape_examples
from regard.recipe import CaptionedImageData, LabelledImageData
from regard.tasks import build_recipe
from regard.worlds import shapes

WORLD = {"kind": "shapes", "number": 12, "held_out": 6, "shapes": (1, 2)}


@pytest.mark.parametrize("of", ["kind", "colour", "both"])
def test_labels_are_the_worlds_annotations(of):
    data = read_dataset(LabelledImageData(size=32, label_attribute=of, world=WORLD))
    assert (len(data.train), len(data.valid), {name: len(one) for name, one in data.tests.items()}) == (
        12,
        6,
        {"test": 6, "composition": 6},
    )
    for examples in (data.train, data.tests["composition"]):
        assert examples.label == [image.label(of) for image in examples.gold]
        assert all(np.array_equal(pixels, image.pixels()) for pixels, image in zip(examples.images, examples.gold))
    chosen = data.train.select([3, 1])
    assert [chosen.gold, chosen.label] == [[part[3], part[1]] for part in (data.train.gold, data.train.label)]


def test_captions_are_true_of_their_images():
    data = CaptionedImageData(size=40, world=WORLD)
    found = shape_examples(data, data.world, "valid", 5)
    assert all(
        shapes.is_true(shapes.parse_caption(text), image.scene)
        for texts, image in zip(found.captions, found.gold)
        for text in texts
    )
    assert {pixels.shape for pixels in found.images} == {(40, 40, 3)}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"task": "language"}, "has images, and this task reads texts"),
        ({"task": "classify", "model": {"kind": "vit"}, "data": {"size": 30}}, "a multiple of 8"),
        ({"task": "classify", "model": {"kind": "vit"}, "data": {"world": {"kind": "bilingual"}}}, "has no images"),
    ],
)
def test_world_that_does_not_fit_the_task_is_refused(change, message):
    with pytest.raises(Exception, match=message):
        build_recipe({**change, "data": {"world": {"kind": "shapes"}, **change.get("data", {})}})
