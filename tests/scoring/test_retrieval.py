"""Recall in both directions, compared with a sorted list."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.scoring import retrieval_ranks, retrieval_scores


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 99))
def test_recall_equals_that_of_a_sorted_list(number, most, seed):
    chance = np.random.default_rng(seed)
    owners = [i for i in range(number) for _ in range(chance.integers(1, most + 1))]
    images, texts = chance.normal(size=(number, 6)), chance.normal(size=(len(owners), 6))
    scores = retrieval_scores(images, texts, owners, samples=20)
    for k in (1, 5, 10):
        by_image = [any(owners[j] == i for j in np.argsort(-texts @ image)[:k]) for i, image in enumerate(images)]
        by_text = [owners[j] in np.argsort(-images @ text)[:k] for j, text in enumerate(texts)]
        for name, right in (("image_to_text", by_image), ("text_to_image", by_text)):
            score = scores[f"{name}_r{k}"]
            assert score.score == pytest.approx(100 * np.mean(right)) and score.low <= score.score <= score.high
            assert f"images:{number}|texts:{len(owners)}|ties:against" in score.signature


def test_constant_vectors_retrieve_nothing():
    ranks = retrieval_ranks(np.ones((12, 3)), np.ones((24, 3)), [i // 2 for i in range(24)])
    assert (ranks[0] == 22).all() and (ranks[1] == 11).all()


def test_interval_draws_images_with_all_their_texts():
    """Five equal texts of an image give the same interval as one."""
    chance = np.random.default_rng(1)
    images = np.eye(40)
    found = chance.random(40) < 0.5
    one = np.where(found[:, None], images, np.roll(images, 1, axis=0))
    single = retrieval_scores(images, one, range(40))["text_to_image_r1"]
    five = retrieval_scores(images, np.repeat(one, 5, axis=0), np.repeat(np.arange(40), 5).tolist())["text_to_image_r1"]
    assert (five.score, five.low, five.high) == pytest.approx((single.score, single.low, single.high))


@pytest.mark.parametrize("owners", [[], [0], [0, 0], [0, 2], [0, 1, 1]])
def test_texts_without_an_image_are_refused(owners):
    with pytest.raises(UserError, match="every text needs an image"):
        retrieval_scores(np.ones((2, 3)), np.ones((2, 3)), owners)
