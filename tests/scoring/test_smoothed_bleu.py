"""Laws of the smoothed BLEU of single sentences."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

from regard.scoring import ReferenceNgrams

sentences = st.lists(st.sampled_from("abcde"), min_size=1, max_size=9)


@given(sentences, st.lists(sentences, min_size=1, max_size=4))
def test_smoothed_bleu_is_that_of_sacrebleu_but_for_the_brevity_penalty(words, references):
    """sacreBLEU's add-k smoothing with k = 1 is BLEU+1; the brevity penalty is for the mean length of the references."""
    expected = BLEU(smooth_method="add-k", smooth_value=1, tokenize="none", force=True).sentence_score(
        " ".join(words), [" ".join(reference) for reference in references]
    )
    penalty = min(1.0, math.exp(1 - sum(map(len, references)) / len(references) / len(words)))
    assert 100 * ReferenceNgrams(references).bleu(words) == pytest.approx(expected.score / expected.bp * penalty, abs=1e-6)


def test_smoothed_bleu_of_an_empty_hypothesis_is_zero():
    assert ReferenceNgrams([["a"]]).bleu([]) == 0
