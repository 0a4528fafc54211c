"""BLEU of captions against any number of references, and attention against boxes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from regard.scoring import attention_in_boxes, caption_scores, grounding_scores, sentence_bleu

CAPTIONS = ["A red circle is above a star", "two blue rings", "there is a cross"]
REFERENCES = [
    ["a red circle is above a green star", "a star is below a circle"],
    ["two rings", "there are two blue rings"],
    ["there is a small cross"],
]


def test_caption_bleu_equals_sacrebleu_with_missing_references():
    streams = [[few[0] for few in REFERENCES], [few[1] if len(few) > 1 else None for few in REFERENCES]]
    found = caption_scores(CAPTIONS, REFERENCES, samples=50)
    assert list(found) == ["bleu_1", "bleu_2", "bleu_3", "bleu_4"]
    for order, score in enumerate(found.values(), start=1):
        theirs = BLEU(lowercase=True, max_ngram_order=order).corpus_score(CAPTIONS, streams)
        assert score.score == pytest.approx(theirs.score)
        assert score.low <= score.score <= score.high and score.signature.startswith(f"order:{order}|nrefs:var|")
    assert found["bleu_1"].score > found["bleu_2"].score > found["bleu_4"].score


def test_caption_bleu_ignores_case_and_is_100_for_a_reference():
    scores = caption_scores(["A RED circle is above a green Star"], REFERENCES[:1], samples=2)
    assert scores["bleu_4"].score == pytest.approx(100)
    assert sentence_bleu("Two Rings", REFERENCES[1]) == pytest.approx(100) and sentence_bleu("no", REFERENCES[1]) == 0


@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_uniform_attention_in_boxes_equals_their_area(rows, columns, data):
    height, width = 13, 17
    x0, y0 = data.draw(st.integers(0, width - 2)), data.draw(st.integers(0, height - 2))
    box = (x0, y0, data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height)))
    inside, uniform = attention_in_boxes(np.full((3, rows, columns), 1 / (rows * columns)), [box], (height, width))
    assert uniform == pytest.approx((box[2] - box[0]) * (box[3] - box[1]) / (height * width))
    assert inside == pytest.approx(uniform)


def test_grid_cells_count_by_their_overlap_with_boxes():
    weights = np.zeros((1, 2, 2))
    weights[0, 0, 1] = 1  # the upper right of 8 × 8 pixels
    assert attention_in_boxes(weights, [(4, 0, 8, 4)], (8, 8)) == (1.0, 0.25)
    assert attention_in_boxes(weights, [(0, 0, 4, 8)], (8, 8)) == (0.0, 0.5)
    assert attention_in_boxes(weights, [(6, 0, 8, 4), (6, 0, 8, 4)], (8, 8)) == (0.5, 0.125), "boxes that overlap count once"


def test_grounding_scores_are_means_over_phrases():
    scores = grounding_scores([[(1.0, 0.2), (0.0, 0.2)], [(0.8, 0.5)]], samples=20)
    assert scores["attention_inside"].score == pytest.approx(60) and scores["inside_by_chance"].score == pytest.approx(30)
