"""The laws of the world of shapes: a pure function of the seed, distinct, in disjoint splits; what it is made of; its files."""

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
    ShapesImage,
    assign_split,
    generate,
    is_true,
    parse_caption,
    scene_from_json,
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

seeds, splits, widths = st.integers(0, 10**6), st.sampled_from(SPLITS), st.sampled_from(range(24, 129, 8))


@pytest.fixture(scope="module")
def pictures() -> dict[str, list[ShapesImage]]:
    return {split: generate(1500 if split == "train" else 300, 1, split=split) for split in SPLITS}


def bytes_of(pictures):
    return b"".join(picture.pixels().tobytes() for picture in pictures)


@given(seeds, splits, widths)
def test_the_seed_alone_decides_and_fewer_are_the_beginning_of_more(seed, split, size):
    one, again, other = (generate(12, s, split=split, size=size) for s in (seed, seed, seed + 1))
    assert one == again and bytes_of(one) == bytes_of(again)
    assert generate(5, seed, split=split, size=size) == one[:5]
    assert one != other and bytes_of(one) != bytes_of(other)


def test_the_seed_decides_for_all_time_and_on_every_machine():
    """Test data that others hold must not move under them: who changes these lines changes everyone's pictures."""
    first = generate(20, 1)
    assert [picture.captions[0].text for picture in first[:2]] == FIRST
    assert hashlib.blake2b(bytes_of(first), digest_size=8).hexdigest() == PIXELS


def test_no_picture_comes_twice(pictures):
    for found in pictures.values():
        assert len({picture.scene.shapes for picture in found}) == len(found)
        assert all(len({caption.text for caption in picture.captions}) == 5 for picture in found)


def test_splits_are_disjoint_whatever_the_seed():
    """One shape has few places to be in a small picture: here they would meet."""
    shapes = [
        {picture.scene.shapes for seed in (1, 2, 3) for picture in generate(300, seed, split=split, shapes=(1, 1), size=24)}
        for split in SPLITS
    ]
    assert not any(one & other for one, other in combinations(shapes, 2))


def test_splits_have_their_shares():
    draws = Random(1)
    found = Counter(assign_split(sample_scene(draws, 32, (1, 4))) for _ in range(8000))
    assert 400 < found["valid"] < 600 and 400 < found["test"] < 600 and not found["composition"]


@given(seeds, splits, widths)
def test_shapes_are_apart_and_inside_and_some_relation_holds_between_any_two(seed, split, size):
    for picture in generate(12, seed, split=split, size=size):
        shapes = picture.scene.shapes
        for one, other in combinations(shapes, 2):
            assert not boxes_overlap(one.box, other.box, 1)
            assert sum(has_relation(one, relation, other, size * RELATION_MARGIN) for relation in RELATIONS) in (1, 2)
        for x0, y0, x1, y1 in (shape.box for shape in shapes):
            assert 1 <= x0 < x1 < size and 1 <= y0 < y1 < size and x1 - x0 == y1 - y0
        assert [*shapes] == sorted(shapes, key=lambda shape: doubled_centre(shape)[::-1])


def test_everything_occurs_about_as_often(pictures):
    scenes = [picture.scene for picture in pictures["train"]]
    number = Counter(len(scene.shapes) for scene in scenes)
    assert set(number) == {1, 2, 3, 4} and max(number.values()) < 1.3 * min(number.values())
    for name, values, spread in (("kind", KINDS, 1.4), ("colour", COLOURS, 1.4), ("texture", TEXTURES, 1.2), ("size", SIZES, 2)):
        found = Counter(getattr(shape, name) for scene in scenes for shape in scene.shapes)
        assert set(found) == set(values) and max(found.values()) < spread * min(found.values()), found
    assert len({shape.combination for scene in scenes for shape in scene.shapes}) == 40
    several = [scene for scene in scenes if len(scene.shapes) > 1]
    alike = [len({shape.combination for shape in scene.shapes}) < len(scene.shapes) for scene in several]
    assert 0.4 < np.mean(alike) < 0.6, "there is something to count"
    assert 0.4 < np.mean([scene.noise == 0 for scene in scenes]) < 0.6


def test_as_many_shapes_as_asked_for():
    for fewest, most in [(1, 1), (2, 3), (4, 4)]:
        assert {len(picture.scene.shapes) for picture in generate(60, 1, shapes=(fewest, most))} == {*range(fewest, most + 1)}


def test_held_out_combinations_are_in_composition_alone_and_always(pictures):
    assert len(HELD_OUT) == 8 and {c for c, _ in HELD_OUT} == set(COLOURS) and {k for _, k in HELD_OUT} == set(KINDS)
    for split, found in pictures.items():
        for picture in found:
            novel = {shape.combination for shape in picture.scene.shapes} & HELD_OUT
            said = [any(f"{colour} {kind}" in text for colour, kind in HELD_OUT) for text in texts(picture)]
            named = [parse_caption(text).names_held_out() for text in texts(picture)]
            if split == "composition":
                assert picture.scene.main.combination in novel and all(named)
            else:
                assert not novel and not any(said) and not any(named)
    assert {picture.scene.main.combination for picture in pictures["composition"]} == HELD_OUT


def texts(picture):
    return [caption.text for caption in picture.captions]


def test_labels_are_of_the_largest_shape_and_of_the_topmost_of_those(pictures):
    for picture in pictures["train"]:
        colour, kind = picture.label("colour"), picture.label("kind")
        assert picture.label() == f"{colour} {kind}" and all(picture.label(of) in labels for of, labels in LABELS.items())
        shapes = picture.scene.shapes
        largest = [shape for shape in shapes if shape.size == "large"] or shapes
        topmost = min(largest, key=lambda shape: (shape.box[1] + shape.box[3], shape.box[0] + shape.box[2]))
        assert topmost.combination == (colour, kind)
    assert {of: len(labels) for of, labels in LABELS.items()} == {"kind": 6, "colour": 8, "both": 48}


@pytest.mark.parametrize(
    "given_, said",
    [
        (dict(number=0), "number = 0: ask for at least one picture"),
        (dict(split="dev"), "split = 'dev': the splits are train, valid, test, composition"),
        (dict(size=33), "size = 33: a multiple of 8 from 24 to 128"),
        (dict(size=136), "size = 136"),
        (dict(shapes=(0, 2)), "shapes = 0 to 2: from 1 to 4"),
        (dict(shapes=(3, 2)), "shapes = 3 to 2"),
        (dict(shapes=(1, 5)), "shapes = 1 to 5"),
    ],
)
def test_mistakes_are_one_line(given_, said):
    with pytest.raises(UserError, match=said) as caught:
        generate(**{"number": 5, "seed": 1, **given_})
    assert "\n" not in str(caught.value)


def test_what_runs_dry_says_so(monkeypatch):
    monkeypatch.setattr(world, "MAX_DUPLICATES", 1)
    with pytest.raises(UserError, match=r"number = 90000: composition pictures with 1 to 1 shapes run dry at \d{2,3}; ask"):
        generate(90000, 1, split="composition", shapes=(1, 1), size=24)


def test_the_files_have_everything(tmp_path):
    write(tmp_path / "world", 30, 5, size=24)  # and the least, 200, of each other split
    for split in SPLITS:
        pictures = generate(30 if split == "train" else 200, 5, split=split, size=24)
        records = [json.loads(line) for line in (tmp_path / "world" / split / "captions.jsonl").read_text().splitlines()]
        files = sorted(path.name for path in (tmp_path / "world" / split).glob("*.png"))
        assert [record["file"] for record in records] == files and len(files) == len(pictures)
        for record, picture in zip(records, pictures):
            with Image.open(tmp_path / "world" / split / record["file"]) as image:
                assert image.mode == "RGB" and (np.asarray(image) == picture.pixels()).all()
            assert scene_from_json(record) == picture.scene and record["captions"] == texts(picture)
            assert (record["label"], record["colour"], record["kind"]) == tuple(map(picture.label, ("both", "colour", "kind")))
            assert all(is_true(parse_caption(text), scene_from_json(record)) for text in record["captions"])
            assert [[(named["words"], named["boxes"]) for named in phrases] for phrases in record["boxes"]] == [
                [([named.start, named.end], [[*box] for box in named.boxes]) for named in caption.phrases]
                for caption in picture.captions
            ]
    assert "30 pictures to train on, 200 each for" in (tmp_path / "world" / "README.md").read_text()


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "valid").mkdir()
    (tmp_path / "file").write_text("mine")
    for folder, said in [(tmp_path, "valid is there already"), (tmp_path / "file", "is a file")]:
        with pytest.raises(UserError, match=said):
            write(folder, 10, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "valid"] and (tmp_path / "file").read_text() == "mine"
