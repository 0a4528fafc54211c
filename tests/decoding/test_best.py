"""The best next tokens, found without writing the probabilities of all of them down."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.protocol import best_next_tokens, fast_topk, next_log_probabilities
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens


@given(st.integers(1, 4), st.sampled_from([3, 64, 4095, 4096, 5000, 10_007]), st.integers(1, 9), st.integers(0, 1000))
def test_the_largest_by_way_of_maxima_are_the_largest(rows, size, number, seed):
    x = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))
    number = min(number, size)
    best, where = fast_topk(x, number)
    expected = x.topk(number)
    assert torch.equal(best, expected.values) and torch.equal(where, expected.indices)


def test_the_largest_in_a_corner_are_found():
    """All of them in one stride, in the tail behind the last whole stride, and among -inf."""
    for places in ([0, 70, 140], [4480, 4499, 4490], [0, 4499, 2]):
        x = torch.full((2, 4500), -torch.inf)
        x[:, places] = torch.tensor([1.0, 2.0, 3.0])
        best, where = fast_topk(x, 3)
        assert best.tolist() == [[3.0, 2.0, 1.0]] * 2 and where.tolist() == [places[::-1]] * 2


@given(
    st.integers(1, 4),
    st.sampled_from([5, 13, 5000]),
    st.integers(1, 8),
    st.integers(0, 1000),
    st.sampled_from(
        [SpecialTokens(), SpecialTokens(eos=NO_TOKEN), SpecialTokens(suppressed=()), SpecialTokens(eos=0, suppressed=(0, 1))]
    ),
)
def test_the_best_are_those_of_all_log_probabilities(rows, size, number, seed, special_tokens):
    chance = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, size, generator=chance, dtype=torch.float64) * 3
    ends_now = torch.randint(0, 2, (rows,), generator=chance).bool()
    log_p, tokens = best_next_tokens(logits.clone(), ends_now, number, special_tokens)
    whole = next_log_probabilities(logits, ends_now, special_tokens)
    expected = whole.topk(min(number, size))
    possible = expected.values > -torch.inf
    torch.testing.assert_close(log_p, expected.values)
    assert torch.equal(tokens[possible], expected.indices[possible])
