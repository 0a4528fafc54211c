"""ROUGE by its definition: equal texts score 100, and order matters for the subsequence only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.scoring import compare_rouge, rouge_scores
from regard.scoring.word_overlap import lcs_length

WORDS = st.lists(st.sampled_from("abcd"), max_size=12)


def table(a, b):
    """The longest common subsequence by the textbook table."""
    rows = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            rows[i + 1][j + 1] = rows[i][j] + 1 if x == y else max(rows[i][j + 1], rows[i + 1][j])
    return rows[-1][-1]


@given(WORDS, WORDS)
def test_lcs_length_equals_dynamic_programming(a, b):
    assert lcs_length(a, b) == table(a, b) == lcs_length(b, a)


def test_rouge_of_lins_example():
    """Lin 2004, sec. 3: the reference "police killed the gunman", and two candidates with the same words in another order."""
    first = rouge_scores(["police kill the gunman"], ["Police killed the gunman."], samples=2)
    second = rouge_scores(["the gunman kill police"], ["police killed the gunman"], samples=2)
    assert first["rougel"].score == pytest.approx(75) and second["rougel"].score == pytest.approx(50)
    assert first["rouge1"].score == second["rouge1"].score == pytest.approx(75)
    assert first["rouge2"].score == second["rouge2"].score == pytest.approx(100 / 3)


def test_rouge_is_the_mean_over_texts_within_its_interval():
    scores = rouge_scores(["a b c d", "x y", "", "Straße ÜBER 漢字"], ["a b c d", "y x", "a", "straße über 漢字"])
    assert scores["rouge1"].score == pytest.approx(75) and scores["rougel"].score == pytest.approx((100 + 50 + 0 + 100) / 4)
    assert scores["rouge2"].score == pytest.approx(50)
    assert all(score.low <= score.score <= score.high and f"metric:{name}" in score.signature for name, score in scores.items())
    with pytest.raises(UserError, match="2 summaries but 1 references"):
        rouge_scores(["a", "b"], ["a"])


def test_paired_bootstrap_finds_only_real_differences():
    references = [f"word{i} and a few more {i}" for i in range(60)]
    worse = [f"other{i} and a few more" for i in range(60)]
    rows = compare_rouge({"base": worse, "same": worse, "better": references}, references, samples=200)
    by_name = {(row["system"], row["metric"]): row["p_value"] for row in rows}
    assert by_name["base", "rouge1"] is None and by_name["same", "rougel"] == 1.0 and by_name["better", "rouge2"] < 0.05
