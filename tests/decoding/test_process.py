"""Logits changed before a token is chosen."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.logits import apply_repetition_penalty


@given(st.integers(1, 4), st.integers(0, 6), st.floats(0.3, 3.0), st.integers(0, 1000))
def test_repeats_are_penalized_as_in_transformers(rows, length, penalty, seed):
    from transformers import RepetitionPenaltyLogitsProcessor

    torch.manual_seed(seed)
    logits, written = torch.randn(rows, 9), torch.randint(9, (rows, length))
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(written, logits.clone())
    assert torch.equal(apply_repetition_penalty(logits, written, penalty), theirs)
    filled = torch.cat([torch.full((rows, 3), -1), written], dim=1)
    assert torch.equal(apply_repetition_penalty(logits, filled, penalty), theirs), "places that are filled up hold no token"


def test_a_repeat_is_penalized_once_and_never_helped():
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.0]])
    assert apply_repetition_penalty(logits, torch.tensor([[0, 1, 0, 0, 3]]), 2.0).tolist() == [[1.0, -4.0, 1.0, 0.0]]
