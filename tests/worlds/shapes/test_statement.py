"""Statements: which captions are true or false of a scene, and which are not captions."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.worlds.shapes import VOCABULARY, Scene, Shape, is_true, parse_caption
from regard.worlds.shapes.caption import realise

SCENE = Scene(
    64,
    (
        Shape("circle", "red", "striped", "large", (4, 2, 30, 28)),  # top left
        Shape("square", "green", "dotted", "small", (40, 10, 58, 28)),  # top right, its centre 4 pixels lower
        Shape("square", "green", "plain", "small", (2, 34, 20, 52)),  # bottom left
        Shape("ring", "blue", "plain", "large", (36, 36, 62, 62)),  # bottom right, its centre 6 pixels lower
    ),
    shade=200,
    noise=0,
)

TRUE = """
a circle
a red circle
there is a large striped red circle
A picture of a big red striped circle.
one red circle
a square
two squares
there are two small green squares
we see two little green shapes
there are four shapes
a spotted square
the dotted square is green
the red shape is a large circle
the circle is striped and red
the circle is red and big
a circle and a ring
a square and a square
a ring, a square and a circle
two squares, a circle and one ring
four shapes: two squares, a circle and a ring
two large shapes: a circle and a blue ring
two plain shapes: a ring and one square
there is one dotted shape: a green square
a red circle above a blue ring
a square above a square
a green square right of a green square
a circle left of a blue ring
the ring is to the right of the circle
below the circle is the ring
under a red circle there is a plain square
a plain square is left of the ring and below a circle
there is a circle over a square
this picture shows a circle to the left of a dotted square
two squares
"""
FALSE = """
a blue circle
a small circle
a plain circle
a star
two circles
three squares
one square
the square is green
the ring is red
the ring is a circle
the ring is blue and small
a circle and a circle
a ring and a ring
a circle and a red shape
two green squares and a square
three shapes: a circle, a ring and a square
four shapes: two squares and a ring
two shapes: a circle and a ring
two large shapes: a circle and a square
two shapes: a circle and two squares
there are three shapes
the circle is above the dotted square
the plain square is above the ring
a circle below a ring
a ring left of a square
two squares left of a ring
a circle above a ring and right of a square
the circle is left of the square
a circle above a circle
"""
NOT_CAPTIONS = """
circle
red circle
a
a red
a circles
two circle
a orange circle
an red circle
a red blue circle
a red red circle
a small little circle
there are a circle
there is two circles
the circle are red
a circle is red
two circles are red
the circle is the ring
the circle is a red shape
a circle above
a circle above and below a ring
a circle above a ring and a square
a circle above a ring, below a square
a circle above a ring above a square
a circle left a ring
a circle and
and a circle
a circle, a ring
a circle, and a ring
a circle a ring
a circle, , a square and a ring
shapes: a circle
a shape: a circle
two shapes:
two shapes: two shapes: a circle
to left of a ring is a circle
left of a ring is
left of a ring are a circle
left of a ring a circle
the circle is
the circle is red and
the circle is red blue
the circle is red and green
there is
this picture shows
a picture of there is a circle
there is a circle is above a ring
a dog
5 circles
a circle!
a circle..
a circle. a ring
ein roter Kreis
is is is
"""


@pytest.mark.parametrize("caption", TRUE.strip().splitlines())
def test_true_captions(caption):
    assert is_true(parse_caption(caption), SCENE)


@pytest.mark.parametrize("caption", FALSE.strip().splitlines())
def test_false_captions(caption):
    assert not is_true(parse_caption(caption), SCENE)


@pytest.mark.parametrize("caption", ["", " ", ".", ":", *NOT_CAPTIONS.strip().splitlines()])
def test_texts_outside_the_grammar_are_not_captions(caption):
    assert parse_caption(caption) is None


def test_adjectives_may_come_in_any_order():
    orders = {
        parse_caption(f"a {' '.join(words)} circle")
        for words in (("big", "red", "striped"), ("striped", "large", "red"), ("red", "striped", "big"))
    }
    assert len(orders) == 1 and is_true(orders.pop(), SCENE)


@pytest.mark.parametrize(
    "caption, novel",
    [
        ("a red star", True),
        ("two small red stars", True),
        ("the star is red", True),
        ("the red shape is a plain star", True),
        ("two red shapes: a circle and a star", True),
        ("a ring above a red star", True),
        ("a red circle and a star", False),
        ("a star above a red shape", False),
        ("a yellow star", False),
        ("the red shape is small", False),
    ],
)
def test_held_out_combinations_are_found_in_every_wording(caption, novel):
    assert parse_caption(caption).names_held_out() == novel


def test_relation_margin_is_three_sixteenths_by_default():
    for lower in range(20):
        scene = Scene(
            64,
            (
                Shape("ring", "red", "plain", "small", (2, 2, 20, 20)),
                Shape("star", "red", "plain", "small", (30, 2 + lower, 48, 20 + lower)),
            ),
            200,
            0,
        )
        above = parse_caption("a ring above a star")
        assert is_true(above, scene) == (lower >= 12) and is_true(above, scene, margin=5) == (lower >= 5)


@given(st.lists(st.sampled_from([*sorted(VOCABULARY), ",", ":"]), max_size=12))
def test_any_words_parse_to_a_statement_or_none(words):
    statement = parse_caption(" ".join(words))
    if statement:
        assert parse_caption(" ".join(realise(statement, Random(1)).words)) == statement


@given(st.text(max_size=40))
def test_any_text_can_be_parsed(text):
    assert parse_caption(text) is None or text
