"""The best next tokens, found without computing the masked probabilities of all tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding import next_token_kernel
from regard.decoding.protocol import best_next_tokens, fast_topk, next_log_probabilities
from regard.hardware import HAS_TRITON, TRITON_INTERPRETED
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SPECIAL_TOKENS = [
    SpecialTokens(),
    SpecialTokens(eos=NO_TOKEN),
    SpecialTokens(suppressed=()),
    SpecialTokens(eos=0, suppressed=(0, 1)),
]
with_kernels = pytest.mark.skipif(
    not (HAS_TRITON and (torch.cuda.is_available() or TRITON_INTERPRETED)), reason="neither a GPU nor Triton's interpreter"
)


@given(st.integers(1, 4), st.sampled_from([3, 64, 4095, 4096, 5000, 10_007]), st.integers(1, 9), st.integers(0, 1000))
def test_fast_topk_equals_topk(rows, size, number, seed):
    x = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))
    number = min(number, size)
    best, indices = fast_topk(x, number)
    expected = x.topk(number)
    assert torch.equal(best, expected.values) and torch.equal(indices, expected.indices)


def test_fast_topk_finds_values_in_one_group_in_the_tail_and_among_minus_infinity():
    """All in one group, in the tail after the last whole group, and among -inf."""
    for places in ([0, 70, 140], [4480, 4499, 4490], [0, 4499, 2]):
        x = torch.full((2, 4500), -torch.inf)
        x[:, places] = torch.tensor([1.0, 2.0, 3.0])
        best, indices = fast_topk(x, 3)
        assert best.tolist() == [[3.0, 2.0, 1.0]] * 2 and indices.tolist() == [places[::-1]] * 2


@given(
    st.integers(1, 4),
    st.sampled_from([5, 13, 5000]),
    st.integers(1, 8),
    st.integers(0, 1000),
    st.sampled_from(SPECIAL_TOKENS),
)
def test_best_next_tokens_equal_topk_of_all_log_probabilities(rows, size, number, seed, special_tokens):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, size, generator=generator, dtype=torch.float64) * 3
    ends_now = torch.randint(0, 2, (rows,), generator=generator).bool()
    log_p, tokens = best_next_tokens(logits.clone(), ends_now, number, special_tokens)
    whole = next_log_probabilities(logits, ends_now, special_tokens)
    expected = whole.topk(min(number, size))
    possible = expected.values > -torch.inf
    torch.testing.assert_close(log_p, expected.values)
    assert torch.equal(tokens[possible], expected.indices[possible])


@with_kernels
@pytest.mark.parametrize("special_tokens", SPECIAL_TOKENS)
@pytest.mark.parametrize("size, number", [(5, 3), (100, 8), (5000, 1), (5000, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_equals_topk_of_all_log_probabilities(special_tokens, size, number, dtype):
    """Of padded rows, and with one `ends_now` for two rows."""
    torch.manual_seed(size)
    logits = (torch.randn(4, size + 3, device=DEVICE) * 3).to(dtype)[:, :size]
    ends_now = torch.tensor([False, True], device=DEVICE)
    whole = next_log_probabilities(logits, ends_now.repeat_interleave(2), special_tokens)
    expected = whole.sort(dim=-1, descending=True, stable=True)
    with torch.inference_mode():
        assert next_token_kernel.can_run(logits, number, special_tokens.suppressed)
        log_p, tokens = best_next_tokens(logits, ends_now, number, special_tokens)
    possible = expected.values[:, :number] > -torch.inf
    torch.testing.assert_close(log_p, expected.values[:, :number], atol=1e-5, rtol=1e-5)
    assert torch.equal(tokens[possible], expected.indices[:, :number][possible]), "of equals, the lowest id first"


@with_kernels
def test_kernel_gives_nan_and_valid_ids_where_the_model_gives_nan():
    logits = torch.randn(2, 3000, device=DEVICE)
    logits[1] = torch.nan
    with torch.inference_mode():
        log_p, tokens = best_next_tokens(logits, torch.tensor([False, False], device=DEVICE), 4)
    assert log_p[0].isfinite().all() and log_p[1].isnan().all() and (tokens < 3000).all()
