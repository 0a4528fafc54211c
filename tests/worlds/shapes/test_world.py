"""The world of shapes: determinism, distinct images, disjoint splits, balance, labels, files."""

import hashlib
import json
from collections import Counter
from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from regard.errors import UserError
from regard.worlds.shapes import (
    COLOURS,
    HELD_OUT,
    KINDS,
    LABELS,
    SIZES,
    SPLITS,
    TEXTURES,
    Scene,
    Shape,
    ShapesImage,
    assign_split,
    false_captions,
    generate,
    is_true,
    parse_caption,
    world,
    write,
)
from regard.worlds.shapes.scene import RELATIONS, boxes_overlap, doubled_centre, has_relation, sample_scene
from regard.worlds.shapes.statement import RELATION_MARGIN

FIRST = [
    "we see two small yellow triangles, a pink spotted triangle and one green cross",
    "the striped shape is a green cross",
]
PIXELS = "ca9b51841360e6b4"
CAPTIONS = "6d204c2d6eb7e8b2"

seeds, splits, widths = st.integers(0, 10**6), st.sampled_from(SPLITS), st.sampled_from(range(24, 129, 8))


@pytest.fixture(scope="module")
def images() -> dict[str, list[ShapesImage]]:
    return {split: generate(1500 if split == "train" else 300, 1, split=split) for split in SPLITS}


def scene_from_json(line):
    scene = line["scene"]
    shapes = tuple(Shape(**{**shape, "box": tuple(shape["box"])}) for shape in scene["shapes"])
    return Scene(scene["size"], shapes, scene["shade"], scene["noise"])


def pixel_bytes(images):
    return b"".join(image.pixels().tobytes() for image in images)


@given(seeds, splits, widths)
def test_generation_is_deterministic_and_prefix_stable(seed, split, size):
    one, again, other = (generate(12, s, split=split, size=size) for s in (seed, seed, seed + 1))
    assert one == again and pixel_bytes(one) == pixel_bytes(again)
    assert generate(5, seed, split=split, size=size) == one[:5]
    assert one != other and pixel_bytes(one) != pixel_bytes(other)


def test_first_images_of_a_seed_never_change():
    """Changing these lines would change everyone's test data."""
    first = generate(20, 1)
    assert [image.captions[0].text for image in first[:2]] == FIRST
    assert hashlib.blake2b(pixel_bytes(first), digest_size=8).hexdigest() == PIXELS


def test_true_and_false_captions_of_a_seed_never_change():
    """A faster generator draws the same random numbers in the same order."""
    digest = hashlib.blake2b(digest_size=8)
    for image in (image for split in SPLITS for image in generate(60, 1, split=split)):
        rng = Random("false")
        texts = [caption.text for caption in image.captions] + false_captions(image.scene, 12, rng)
        digest.update("\n".join([*texts, str(rng.random())]).encode())
    assert digest.hexdigest() == CAPTIONS


def test_images_and_captions_are_distinct(images):
    for found in images.values():
        assert len({image.scene.shapes for image in found}) == len(found)
        assert all(len({caption.text for caption in image.captions}) == 5 for image in found)


def test_splits_are_disjoint_for_all_seeds():
    """A single shape has few positions in a small image, so overlaps would show here."""
    shapes = [
        {image.scene.shapes for seed in (1, 2, 3) for image in generate(300, seed, split=split, shapes=(1, 1), size=24)}
        for split in SPLITS
    ]
    assert not any(one & other for one, other in combinations(shapes, 2))


def test_splits_have_the_expected_fractions():
    rng = Random(1)
    found = Counter(assign_split(sample_scene(rng, 32, (1, 4))) for _ in range(8000))
    assert 400 < found["valid"] < 600 and 400 < found["test"] < 600 and not found["composition"]


@given(seeds, splits, widths)
def test_shapes_are_separate_and_every_two_are_related(seed, split, size):
    for image in generate(12, seed, split=split, size=size):
        shapes = image.scene.shapes
        for one, other in combinations(shapes, 2):
            assert not boxes_overlap(one.box, other.box, 1)
            assert sum(has_relation(one, relation, other, size * RELATION_MARGIN) for relation in RELATIONS) in (1, 2)
        for x0, y0, x1, y1 in (shape.box for shape in shapes):
            assert 1 <= x0 < x1 < size and 1 <= y0 < y1 < size and x1 - x0 == y1 - y0
        assert [*shapes] == sorted(shapes, key=lambda shape: doubled_centre(shape)[::-1])


def test_properties_are_balanced(images):
    scenes = [image.scene for image in images["train"]]
    number = Counter(len(scene.shapes) for scene in scenes)
    assert set(number) == {1, 2, 3, 4} and max(number.values()) < 1.3 * min(number.values())
    for name, values, spread in (("kind", KINDS, 1.4), ("colour", COLOURS, 1.4), ("texture", TEXTURES, 1.2), ("size", SIZES, 2)):
        found = Counter(getattr(shape, name) for scene in scenes for shape in scene.shapes)
        assert set(found) == set(values) and max(found.values()) < spread * min(found.values()), found
    assert len({shape.combination for scene in scenes for shape in scene.shapes}) == 40
    several = [scene for scene in scenes if len(scene.shapes) > 1]
    alike = [len({shape.combination for shape in scene.shapes}) < len(scene.shapes) for scene in several]
    assert 0.4 < np.mean(alike) < 0.6, "shapes repeat often enough to be counted"
    assert 0.4 < np.mean([scene.noise == 0 for scene in scenes]) < 0.6


def test_number_of_shapes_is_within_bounds():
    for fewest, most in [(1, 1), (2, 3), (4, 4)]:
        assert {len(image.scene.shapes) for image in generate(60, 1, shapes=(fewest, most))} == {*range(fewest, most + 1)}


def test_held_out_combinations_are_in_composition_only_and_always(images):
    assert len(HELD_OUT) == 8 and {c for c, _ in HELD_OUT} == set(COLOURS) and {k for _, k in HELD_OUT} == set(KINDS)
    for split, found in images.items():
        for image in found:
            novel = {shape.combination for shape in image.scene.shapes} & HELD_OUT
            mentioned = [any(f"{colour} {kind}" in text for colour, kind in HELD_OUT) for text in texts(image)]
            named = [parse_caption(text).names_held_out() for text in texts(image)]
            if split == "composition":
                assert image.scene.main.combination in novel and all(named)
            else:
                assert not novel and not any(mentioned) and not any(named)
    assert {image.scene.main.combination for image in images["composition"]} == HELD_OUT


def texts(image):
    return [caption.text for caption in image.captions]


def test_label_is_of_the_largest_then_topmost_shape(images):
    for image in images["train"]:
        colour, kind = image.label("colour"), image.label("kind")
        assert image.label() == f"{colour} {kind}" and all(image.label(of) in labels for of, labels in LABELS.items())
        shapes = image.scene.shapes
        largest = [shape for shape in shapes if shape.size == "large"] or shapes
        topmost = min(largest, key=lambda shape: (shape.box[1] + shape.box[3], shape.box[0] + shape.box[2]))
        assert topmost.combination == (colour, kind)
    assert {of: len(labels) for of, labels in LABELS.items()} == {"kind": 6, "colour": 8, "both": 48}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(number=0), "number = 0: ask for at least one image"),
        (dict(split="dev"), "split = 'dev': the splits are train, valid, test, composition"),
        (dict(size=33), "size = 33: use a multiple of 8 from 24 to 128"),
        (dict(size=136), "size = 136"),
        (dict(shapes=(0, 2)), "shapes = 0 to 2: use 1 to 4"),
        (dict(shapes=(3, 2)), "shapes = 3 to 2"),
        (dict(shapes=(1, 5)), "shapes = 1 to 5"),
    ],
)
def test_invalid_arguments_raise_one_line_errors(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        generate(**{"number": 5, "seed": 1, **arguments})
    assert "\n" not in str(caught.value)


def test_exhausted_scenes_raise_an_error(monkeypatch):
    monkeypatch.setattr(world, "MAX_DUPLICATES", 1)
    with pytest.raises(
        UserError, match=r"number = 90000: composition images with 1 to 1 shapes are exhausted after \d{2,3}; ask"
    ):
        generate(90000, 1, split="composition", shapes=(1, 1), size=24)


def test_written_files_contain_everything(tmp_path):
    write(tmp_path / "world", 30, 5, size=24)  # and the minimum of 200 for each other split
    for split in SPLITS:
        images = generate(30 if split == "train" else 200, 5, split=split, size=24)
        lines = [json.loads(text) for text in (tmp_path / "world" / split / "captions.jsonl").read_text().splitlines()]
        files = sorted(path.name for path in (tmp_path / "world" / split).glob("*.png"))
        assert [line["file"] for line in lines] == files and len(files) == len(images)
        for line, image in zip(lines, images):
            with Image.open(tmp_path / "world" / split / line["file"]) as png:
                assert png.mode == "RGB" and (np.asarray(png) == image.pixels()).all()
            assert scene_from_json(line) == image.scene and line["captions"] == texts(image)
            assert (line["label"], line["colour"], line["kind"]) == tuple(map(image.label, ("both", "colour", "kind")))
            assert all(is_true(parse_caption(text), scene_from_json(line)) for text in line["captions"])
            assert [[(named["words"], named["boxes"]) for named in phrases] for phrases in line["boxes"]] == [
                [([named.start, named.end], [[*box] for box in named.boxes]) for named in caption.phrases]
                for caption in image.captions
            ]
    assert "30 training images and 200 each for" in (tmp_path / "world" / "README.md").read_text()


def test_write_does_not_overwrite(tmp_path):
    (tmp_path / "valid").mkdir()
    (tmp_path / "file").write_text("mine")
    for folder, message in [(tmp_path, "valid already exists"), (tmp_path / "file", "is a file")]:
        with pytest.raises(UserError, match=message):
            write(folder, 10, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "valid"] and (tmp_path / "file").read_text() == "mine"
