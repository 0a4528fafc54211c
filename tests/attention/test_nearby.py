"""Laws of restricted attention: blocks change nothing but the work."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.core import attend
from regard.attention.masks import Mask
from regard.attention.sparse_attention import local_attention, local_attention_pairs, local_block_size

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"))]


@given(
    rows=st.integers(1, 2),
    groups=st.integers(1, 2),
    per=st.integers(1, 2),
    T=st.integers(1, 110),
    window=st.integers(1, 24),
    J=st.integers(1, 5),
    scale=st.sampled_from([None, 0.3]),
    seed=st.integers(0, 1000),
)
def test_blocks_equal_the_written_out_equation(rows, groups, per, T, window, J, scale, seed):
    random = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(rows, heads, T, width, generator=random, dtype=torch.float64, requires_grad=True)
        for heads, width in ((groups * per, 4), (groups, 4), (groups, J))
    )
    blocks = local_attention(q, k, v, window, scale=scale)
    plain = attend(q, k, v, mask=Mask(window=window), scale=scale, weights=True)[0]
    torch.testing.assert_close(blocks, plain, atol=1e-10, rtol=0)
    mine, theirs = (torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (blocks, plain))
    for one, other in zip(mine, theirs):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_window_alone_goes_through_blocks_with_finite_gradients(device, dtype):
    q, k, v = (torch.randn(2, 2, 300, 16, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    mixed = attend(q, k, v, mask=Mask(window=9))
    torch.testing.assert_close(mixed, local_attention(q, k, v, 9), atol=0, rtol=0)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(mixed, attend(q, k, v, mask=Mask(window=9), weights=True)[0], atol=tolerance, rtol=tolerance)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(mixed.float().sum(), (q, k, v)))


@pytest.mark.parametrize(
    "condition", [dict(causal=True), dict(lengths=torch.tensor([200, 70])), dict(starts=torch.tensor([0, 70]))]
)
@pytest.mark.parametrize("bias", [None, torch.linspace(-2, 2, 200, dtype=torch.float64)])
def test_what_else_a_mask_says_still_holds(condition, bias):
    """Long enough for blocks, were the window alone."""
    q, k, v = (torch.randn(2, 2, 200, 4, dtype=torch.float64) for _ in range(3))
    assert local_attention_pairs(200, 5) < 200**2
    for mask in (Mask(window=5), Mask(window=5, **condition)):
        plain = attend(q, k, v, mask=mask, bias=bias, weights=True)[0]
        torch.testing.assert_close(attend(q, k, v, mask=mask, bias=bias), plain, atol=1e-10, rtol=0)


def test_one_new_query_after_a_cache_looks_back():
    q, k, v = (torch.randn(1, 2, T, 4, dtype=torch.float64) for T in (3, 200, 200))
    plain = attend(q, k, v, mask=Mask(window=5), weights=True)[0]
    torch.testing.assert_close(attend(q, k, v, mask=Mask(window=5)), plain, atol=1e-10, rtol=0)


def test_nothing_is_blind_not_even_what_fills_the_last_block(monkeypatch):
    """Kernels on a GPU may give a blind row NaN, which would spoil the gradients of all."""
    masks = []

    def spy(q, k, v, *, attn_mask, **options):
        masks.append(attn_mask)
        return q

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    local_attention(*(torch.randn(2, 1, 300, 4) for _ in range(3)), 9)
    assert masks[0].any(-1).all()


@given(n=st.integers(1, 5000), window=st.integers(1, 64))
def test_the_work_is_never_more_than_all_pairs_and_grows_with_n_alone(n, window):
    assert local_attention_pairs(n, window) <= n * n
    blocks, block = 1000, local_block_size(window)
    assert 2 * local_attention_pairs(blocks * block, window) == local_attention_pairs(2 * blocks * block, window)
    assert local_attention_pairs(blocks * block, window) <= blocks * block * max(2 * (2 * window - 1), 32 + 2 * window)
