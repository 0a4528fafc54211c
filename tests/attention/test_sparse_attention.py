"""Sparse attention equals attention under the mask: packed documents and local windows change nothing but the work."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention import core
from regard.attention.core import attend, attend_with_weights
from regard.attention.masks import Mask
from regard.attention.sparse_attention import (
    local_attention,
    local_attention_pairs,
    local_block_size,
    locate_documents,
)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"))]


@st.composite
def document_numbers(draw, rows=3):
    """Rows of short documents, one after another; or document numbers in any order."""
    T = draw(st.integers(6, 24))
    number = st.lists(st.integers(-2, 7), min_size=T, max_size=T)
    return torch.tensor([sorted(found) if draw(st.booleans()) else found for found in (draw(number) for _ in range(rows))])


@given(document_numbers(), st.booleans(), st.sampled_from([(4, 4), (4, 2)]))
def test_attend_documents_equals_the_written_out_equation(documents, causal, heads):
    rows, T = documents.shape
    q, k, v = (
        torch.randn(rows, h, T, width, dtype=torch.float64, requires_grad=True)
        for h, width in ((heads[0], 6), (heads[1], 6), (heads[1], 5))
    )
    mask = Mask(causal=causal, documents=documents)
    plain = attend_with_weights(q, k, v, mask=mask)[0]
    packed = core.attend_documents(q, k, v, mask.packed_documents, causal=causal)
    seed = torch.randn_like(plain)
    for one, other in zip(
        (packed, *torch.autograd.grad((packed * seed).sum(), (q, k, v))),
        (plain, *torch.autograd.grad((plain * seed).sum(), (q, k, v))),
    ):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    "mask, bias, expected",
    [
        (Mask(documents=torch.arange(32)[None] // 4), False, 1),
        (Mask(causal=True, documents=torch.arange(32)[None] // 4), False, 1),
        (Mask(documents=torch.arange(32)[None] // 30), False, 0),
        (Mask(window=3, documents=torch.arange(32)[None] // 4), False, 0),
        (Mask(documents=torch.arange(32)[None] // 4), True, 0),
    ],
    ids=["short", "causal", "long", "window", "bias"],
)
def test_mask_structure_selects_document_attention_without_changing_the_result(mask, bias, expected, monkeypatch):
    calls, attend_documents = [], core.attend_documents
    monkeypatch.setattr(
        core, "attend_documents", lambda *given, **options: calls.append(1) or attend_documents(*given, **options)
    )
    q, k, v = (torch.randn(1, 2, 32, 4, dtype=torch.float64) for _ in range(3))
    added = torch.randn(2, 32, 32, dtype=torch.float64) if bias else None
    torch.testing.assert_close(
        attend(q, k, v, mask=mask, bias=added), attend_with_weights(q, k, v, mask=mask, bias=added)[0], atol=1e-10, rtol=0
    )
    assert len(calls) == expected


@given(document_numbers())
def test_positions_are_counted_within_documents(documents):
    found = locate_documents(documents)
    for row, positions in zip(documents.tolist(), found.positions.tolist()):
        assert positions == [row[:i].count(number) for i, number in enumerate(row)]
    assert found.offsets[-1] == documents.numel() and found.max_length == int(found.offsets.diff().max())


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
def test_local_attention_equals_the_written_out_equation(rows, groups, per, T, window, J, scale, seed):
    random = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(rows, heads, T, width, generator=random, dtype=torch.float64, requires_grad=True)
        for heads, width in ((groups * per, 4), (groups, 4), (groups, J))
    )
    blocks = local_attention(q, k, v, window, scale=scale)
    plain = attend_with_weights(q, k, v, mask=Mask(window=window), scale=scale)[0]
    torch.testing.assert_close(blocks, plain, atol=1e-10, rtol=0)
    mine, theirs = (torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (blocks, plain))
    for one, other in zip(mine, theirs):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_window_mask_uses_local_attention_with_finite_gradients(device, dtype):
    q, k, v = (torch.randn(2, 2, 300, 16, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    mixed = attend(q, k, v, mask=Mask(window=9))
    torch.testing.assert_close(mixed, local_attention(q, k, v, 9), atol=0, rtol=0)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(mixed, attend_with_weights(q, k, v, mask=Mask(window=9))[0], atol=tolerance, rtol=tolerance)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(mixed.float().sum(), (q, k, v)))


@pytest.mark.parametrize(
    "condition", [dict(causal=True), dict(lengths=torch.tensor([200, 70])), dict(starts=torch.tensor([0, 70]))]
)
@pytest.mark.parametrize("bias", [None, torch.linspace(-2, 2, 200, dtype=torch.float64)])
def test_window_combined_with_other_conditions(condition, bias):
    """The sequence is long enough for blocks if the mask has only a window."""
    q, k, v = (torch.randn(2, 2, 200, 4, dtype=torch.float64) for _ in range(3))
    assert local_attention_pairs(200, 5) < 200**2
    for mask in (Mask(window=5), Mask(window=5, **condition)):
        plain = attend_with_weights(q, k, v, mask=mask, bias=bias)[0]
        torch.testing.assert_close(attend(q, k, v, mask=mask, bias=bias), plain, atol=1e-10, rtol=0)


def test_window_mask_with_a_kv_cache():
    q, k, v = (torch.randn(1, 2, T, 4, dtype=torch.float64) for T in (3, 200, 200))
    plain = attend_with_weights(q, k, v, mask=Mask(window=5))[0]
    torch.testing.assert_close(attend(q, k, v, mask=Mask(window=5)), plain, atol=1e-10, rtol=0)


def test_padding_of_the_last_block_sees_some_key(monkeypatch):
    """GPU kernels may give NaN for a row without visible keys, which would spoil all gradients."""
    masks = []

    def spy(q, k, v, *, attn_mask, **options):
        masks.append(attn_mask)
        return q

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    local_attention(*(torch.randn(2, 1, 300, 4) for _ in range(3)), 9)
    assert masks[0].any(-1).all()


@given(n=st.integers(1, 5000), window=st.integers(1, 64))
def test_local_attention_scores_at_most_all_pairs_and_grows_linearly(n, window):
    assert local_attention_pairs(n, window) <= n * n
    blocks, block = 1000, local_block_size(window)
    assert 2 * local_attention_pairs(blocks * block, window) == local_attention_pairs(2 * blocks * block, window)
    assert local_attention_pairs(blocks * block, window) <= blocks * block * max(2 * (2 * window - 1), 32 + 2 * window)


@pytest.mark.parametrize("documents", [[[0, 0, 1, 1, 1], [2, 2, 2, 0, 0]], [[3, 1, 1, 0, 0], [0, 0, 0, 0, 0]]])
def test_documents_in_one_piece_follow_each_other_in_memory(documents):
    """Whatever their numbers are, offsets and positions say where each token lies: what kernels for various lengths need."""
    found = locate_documents(torch.tensor(documents))
    assert found.in_order
    assert torch.equal(found.offsets[found.index] + found.positions, torch.arange(10).view(2, 5))
    assert not locate_documents(torch.tensor([[0, 1, 0]])).in_order
