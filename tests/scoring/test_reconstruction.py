"""Reconstruction metrics against their definitions."""

import numpy as np
import pytest

from regard.errors import UserError
from regard.scoring import reconstruction_scores


def test_reconstruction_scores_by_hand():
    codes = np.array([[[0, 0], [1, 1]], [[2, 2], [3, 3]]])
    scores = reconstruction_scores(np.array([0.01, 0.03]), codes, 8)
    assert scores["mse"].score == pytest.approx(0.02) and scores["psnr"].score == pytest.approx(-10 * np.log10(0.02))
    assert scores["codes_used"].score == 50 and scores["code_perplexity"].score == pytest.approx(4)
    for score in scores.values():
        assert score.low <= score.score <= score.high and "n:2" in score.signature


def test_perfect_reconstruction_is_finite_and_an_empty_set_is_refused():
    assert reconstruction_scores(np.zeros(3), np.zeros((3, 2, 2), int), 4)["psnr"].score == 100
    assert reconstruction_scores(np.zeros(3), np.zeros((3, 2, 2), int), 4)["code_perplexity"].score == 1
    with pytest.raises(UserError, match="the set is empty"):
        reconstruction_scores(np.zeros(0), np.zeros((0, 2, 2), int), 4)
