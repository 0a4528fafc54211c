"""Captions: true ones parse, are true and have the right boxes; false ones parse and are false."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.worlds.shapes import KINDS, SPLITS, VOCABULARY, ShapesImage, false_captions, generate, is_true, parse_caption
from regard.worlds.shapes.caption import perturb, realise
from regard.worlds.shapes.scene import OPPOSITE, sample_scene
from regard.worlds.shapes.statement import sample_statement

NOUNS = {*KINDS, "circles", "squares", "triangles", "crosses", "stars", "rings", "shape", "shapes"}
NUMBERS = {"a": 1, "an": 1, "the": 1, "one": 1, "two": 2, "three": 3, "four": 4}
seeds, splits = st.integers(0, 10**6), st.sampled_from(SPLITS)


@pytest.fixture(scope="module")
def images() -> list[ShapesImage]:
    return [image for split in SPLITS for image in generate(400, 1, split=split)]


def bare(text):
    return [word.strip(",:") for word in text.split()]


@given(seeds, splits, st.sampled_from(range(24, 129, 8)))
def test_captions_parse_and_are_true(seed, split, size):
    for image in generate(12, seed, split=split, size=size):
        for caption in image.captions:
            assert is_true(parse_caption(caption.text), image.scene), caption.text


def test_noun_phrases_have_the_boxes_of_their_referents(images):
    for image in images:
        by_box = {shape.box: shape for shape in image.scene.shapes}
        for caption in image.captions:
            words = bare(caption.text)
            assert [phrase.end - 1 for phrase in caption.phrases] == [at for at, word in enumerate(words) if word in NOUNS]
            assert all(one.end <= other.start for one, other in pairwise(caption.phrases))
            for phrase in caption.phrases:
                said = words[phrase.start : phrase.end]
                assert len(phrase.boxes) == len(set(phrase.boxes)) == NUMBERS[said[0]], caption.text
                looks = parse_caption(" ".join(said)).phrases[0].looks
                assert all(looks.fits(by_box[box]) for box in phrase.boxes), caption.text


def test_noun_phrase_refers_to_all_shapes_that_it_fits(images):
    """Its boxes are unambiguous; phrases after a colon refer to shapes named before it, and those after "is a" to the subject."""
    for image in images:
        for caption in image.captions:
            statement = parse_caption(caption.text)
            named = caption.phrases[:1] if statement.whole or statement.quality else caption.phrases
            for phrase in named:
                looks = parse_caption(" ".join(bare(caption.text)[phrase.start : phrase.end])).phrases[0].looks
                assert {*phrase.boxes} == {shape.box for shape in image.scene.shapes if looks.fits(shape)}, caption.text
            if statement.quality:
                assert len({phrase.boxes for phrase in caption.phrases}) == 1
            if statement.whole:
                listed = [box for phrase in caption.phrases[1:] for box in phrase.boxes]
                assert sorted(listed) == sorted(caption.phrases[0].boxes)


def test_captions_use_the_whole_vocabulary(images):
    said = {word for image in images for caption in image.captions for word in bare(caption.text)}
    assert said == VOCABULARY and len(VOCABULARY) == 54


def test_every_form_of_statement_occurs(images):
    statements = [parse_caption(caption.text) for image in images if len(image.scene.shapes) > 1 for caption in image.captions]
    kinds = {
        "one phrase": lambda s: len(s.phrases) == 1 and not s.whole and not s.quality,
        "whole": lambda s: s.whole,
        "list": lambda s: len(s.phrases) > 1 and not s.relations and not s.whole,
        "long list": lambda s: len(s.phrases) > 3,
        "relation": lambda s: s.relations,
        "two": lambda s: len(s.relations) == 2,
        "quality": lambda s: s.quality,
        "number": lambda s: not s.phrases[0].singular,
        "the": lambda s: s.phrases[0].determiner == "the",
    }
    for name, which in kinds.items():
        assert sum(map(bool, map(which, statements))) > 0.01 * len(statements), name


@given(seeds)
def test_every_wording_of_a_statement_parses_to_that_statement(seed):
    rng = Random(seed)
    for _ in range(20):
        statement = sample_statement(sample_scene(rng, 32, (1, 4)), rng)
        for meant in filter(None, (statement, perturb(statement, rng))):
            ways = {" ".join(realise(meant, rng).words) for _ in range(6)}
            assert {parse_caption(way) for way in ways} == {meant}, ways


@given(seeds, splits)
def test_false_captions_parse_and_are_false(seed, split):
    for image in generate(2, seed, split=split):
        texts = false_captions(image.scene, 99, Random(seed))
        assert len(set(texts)) == 99 and texts == false_captions(image.scene, 99, Random(seed))
        for statement in map(parse_caption, texts):
            assert statement is not None and not any(is_true(statement, image.scene, margin) for margin in (None, 0))
            assert image.scene.novel or not statement.names_held_out()


def test_false_captions_use_the_vocabulary_of_true_ones(images):
    said = {word for image in images[::40] for text in false_captions(image.scene, 99, Random(1)) for word in bare(text)}
    assert said == VOCABULARY


def test_half_of_the_false_captions_are_hard_negatives():
    """Hard negatives mention at least two colours or kinds, at most one of which is not in the image; few others do."""
    hard = number = 0
    for image in generate(40, 1, shapes=(2, 4)):
        there = {name for shape in image.scene.shapes for name in shape.combination}
        for statement in map(parse_caption, false_captions(image.scene, 40, Random(1))):
            looks = [phrase.looks for phrase in statement.phrases] + [statement.quality] * bool(statement.quality)
            mentioned = [name for look in looks for name in (look.colour, look.kind) if name]
            hard += len(mentioned) > 1 >= sum(name not in there for name in mentioned)
            number += 1
    assert 0.5 < hard / number < 0.7


@given(seeds)
def test_opposite_relations_are_false(seed):
    """A relation in a true caption excludes its opposite."""
    for image in generate(20, seed, shapes=(2, 4)):
        for statement in (parse_caption(caption.text) for caption in image.captions):
            if statement.relations:
                turned = tuple(OPPOSITE[relation] for relation in statement.relations)
                assert not is_true(statement._replace(relations=turned), image.scene)
