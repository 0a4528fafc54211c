"""Every verb of every run: one input gives the result that a list of it gives first."""

from pathlib import Path

import numpy as np
import pytest

from regard.tasks.base import Run

TEXT_VERBS = [
    ("en-de", "translate", "The dog sleeps.", {}),
    ("en-de", "embed", "The dog sleeps.", {"pool": "words"}),
    ("gpt", "generate", "Der", {"max_tokens": 5}),
    ("gpt", "generate", "Der", {"max_tokens": 5, "temperature": 1.0, "number": 2}),
    ("masked", "fill", "the [MASK] sleeps", {"number": 3}),
    ("classify", "classify", "the dog sleeps", {}),
    ("tag", "tag", "the dog sleeps", {}),
    ("draw", "draw", "a red circle", {}),
    ("draw", "draw", "a red circle", {"number": 2}),
    ("clip", "embed", "a red circle", {}),
]
IMAGE_VERBS = [
    ("kinds", "classify", {}),
    ("kinds", "embed", {}),
    ("clip", "match", {"labels": ["a red circle", "a star"]}),
    ("clip", "similarity", {"texts": "a red circle"}),
    ("caption", "caption", {}),
    ("caption", "caption", {"number": 2}),
    ("caption", "align", {}),
    ("caption", "embed", {}),
]


def assert_equal(one, other):
    if hasattr(one, "__dataclass_fields__"):
        assert type(one) is type(other)
        for name in one.__dataclass_fields__:
            assert_equal(getattr(one, name), getattr(other, name))
    elif isinstance(one, list | tuple):
        assert type(one) is type(other) and len(one) == len(other)
        for pair in zip(one, other):
            assert_equal(*pair)
    elif isinstance(one, str | Path | None):
        assert one == other
    else:
        np.testing.assert_allclose(one, other, atol=1e-4)


def check(run: Run, verb: str, given: object, options: dict[str, object]) -> None:
    one, several = getattr(run, verb)(given, **options), getattr(run, verb)([given, given], **options)
    assert len(several) == 2
    assert_equal(one, several[0])


@pytest.mark.parametrize(("name", "verb", "text", "options"), TEXT_VERBS)
def test_one_text_gives_what_a_list_gives_first(runs, name, verb, text, options):
    check(runs[name], verb, text, options)


@pytest.mark.parametrize(("name", "verb", "options"), IMAGE_VERBS)
def test_one_image_gives_what_a_list_gives_first(runs, image, name, verb, options):
    check(runs[name], verb, image, options)


def test_one_image_has_one_grid_of_codes(runs, image):
    codes = runs["draw"]._codes_run
    assert_equal(codes.encode(image), codes.encode([image])[0])
    assert_equal(codes.decode(codes.encode(image)), codes.decode(codes.encode([image]))[0])
