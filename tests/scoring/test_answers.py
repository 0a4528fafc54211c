"""Exact match and F1 equal those of SQuAD's own script."""

import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.scoring.word_overlap import answer_scores, normalize_answer, score_answer

TEXTS = st.text(st.sampled_from("aAn theX.,'-\u00a0ÄéB9 "), max_size=12)


def squad_script(predicted, golds):
    """What evaluate-v2.0.py does with one question."""

    def normalize_answer(s):
        s = "".join(ch for ch in s.lower() if ch not in set(string.punctuation))
        return " ".join(re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", s).split())

    def compute_f1(a_gold, a_pred):
        gold_toks, pred_toks = normalize_answer(a_gold).split(), normalize_answer(a_pred).split()
        num_same = sum((Counter(gold_toks) & Counter(pred_toks)).values())
        if len(gold_toks) == 0 or len(pred_toks) == 0:
            return int(gold_toks == pred_toks)
        if num_same == 0:
            return 0
        precision, recall = num_same / len(pred_toks), num_same / len(gold_toks)
        return (2 * precision * recall) / (precision + recall)

    golds = [a for a in golds if normalize_answer(a)] or [""]
    return max(int(normalize_answer(a) == normalize_answer(predicted)) for a in golds), max(
        compute_f1(a, predicted) for a in golds
    )


@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_answer_score_equals_squads_script(predicted, golds):
    assert score_answer(predicted, golds) == pytest.approx(squad_script(predicted, golds))


@pytest.mark.parametrize(
    "predicted, golds, exact, f1",
    [
        ("The Denver Broncos!", ["Denver Broncos", "Broncos"], 1, 1.0),
        ("the red dog", ["a dog"], 0, 2 / 3),
        ("dog dog", ["dog"], 0, 2 / 3),
        ("", [], 1, 1.0),
        ("dog", [], 0, 0.0),
        ("", ["dog"], 0, 0.0),
        ("the", ["a."], 1, 1.0),
        ("", ["the", "dog"], 0, 0.0),
    ],
)
def test_answer_scores_by_hand(predicted, golds, exact, f1):
    assert score_answer(predicted, golds) == (exact, pytest.approx(f1))


def test_answer_scores_are_means_within_their_intervals():
    predicted, golds = ["the dog", "a cat", "x", ""] * 25, [["Dog."], ["the cat sleeps"], ["y"], []] * 25
    found = answer_scores(predicted, golds)
    assert found["exact_match"].score == 50 and found["f1"].score == pytest.approx(100 * (1 + 2 / 3 + 0 + 1) / 4)
    for score in found.values():
        assert score.low < score.score < score.high and "norm:squad|bs:1000|seed:12345|n:100" in score.signature
    assert normalize_answer(" The  U.S.A., an ally") == "usa ally"
    with pytest.raises(UserError, match="equally many of both"):
        answer_scores(["a"], [])
