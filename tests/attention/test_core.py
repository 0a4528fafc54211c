"""Laws of attend: the fused path equals the written-out equation, rows that see no key give zeros, groups share keys."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.core import (
    attend,
    attend_with_weights,
    attention_weights,
    context_attention,
    key_value_attention,
    self_attention,
)
from regard.attention.masks import Mask

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def written_out(q, k, v, allowed=None, bias=None, scale=None):
    """softmax(q kᵀ · scale + bias) v, row by row, in plain Python order."""
    B, H, T, _ = q.shape
    out = q.new_zeros(B, H, T, v.size(-1))
    for b in range(B):
        for h in range(H):
            g = h * k.size(1) // H
            for t in range(T):
                scores = k[b, g] @ q[b, h, t] * (q.size(-1) ** -0.5 if scale is None else scale)
                if bias is not None:
                    scores = scores + bias.expand(B, H, T, -1)[b, h, t]
                if allowed is not None:
                    visible = allowed.expand(B, H, T, -1)[b, h, t]
                    if not visible.any():
                        continue
                    scores = scores.masked_fill(~visible, -math.inf)
                w = (scores - scores.max()).exp()
                out[b, h, t] = (w / w.sum()) @ v[b, g]
    return out


@st.composite
def problems(draw):
    B, groups, per, T, extra, K, J = (draw(st.integers(1, n)) for n in (3, 2, 3, 5, 4, 6, 7))
    S = T + extra if draw(st.booleans()) else T
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def integers(largest, *shape):
        return torch.randint(0, largest + 1, shape, generator=generator)

    fields = dict(
        causal=draw(st.booleans()),
        lengths=integers(S, B) if draw(st.booleans()) else None,
        starts=integers(S, B) if draw(st.booleans()) else None,
        documents=integers(2, B, S) if draw(st.booleans()) else None,
        window=draw(st.integers(1, S)) if draw(st.booleans()) else None,
        allowed=integers(1, B, 1, T, S).bool() if draw(st.booleans()) else None,
    )
    if fields["causal"] and draw(st.booleans()):
        fields["prefix"] = integers(S, B)
    bias = random(groups * per, T, S) if draw(st.booleans()) else None
    scale = draw(st.sampled_from([None, 0.3]))
    return random(B, groups * per, T, K), random(B, groups, S, K), random(B, groups, S, J), Mask(**fields), bias, scale


@given(problems())
def test_fused_and_unfused_attention_equal_the_equation(problem):
    q, k, v, mask, bias, scale = problem
    expected = written_out(q, k, v, mask.dense(q.size(2), k.size(2)), bias, scale)
    torch.testing.assert_close(attend(q, k, v, mask=mask, bias=bias, scale=scale), expected, atol=1e-10, rtol=0)
    mixed, weights = attend_with_weights(q, k, v, mask=mask, bias=bias, scale=scale)
    torch.testing.assert_close(mixed, expected, atol=1e-10, rtol=0)
    sums = weights.sum(-1)
    assert torch.all((sums - 1).abs().lt(1e-12) | sums.eq(0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", ["fused", "written out"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("value_width", [8, 16])
def test_rows_without_visible_keys_give_zeros_in_value_and_gradient(dtype, path, with_bias, value_width):
    q, k, v = (torch.randn(2, 2, 4, width, dtype=dtype, requires_grad=True) for width in (8, 8, value_width))
    allowed = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    allowed[0, :, 1] = False
    allowed[1] = False
    bias = torch.randn(2, 4, 4, dtype=dtype) if with_bias else None
    mask = Mask(allowed=allowed)
    out = attend(q, k, v, mask=mask, bias=bias) if path == "fused" else attend_with_weights(q, k, v, mask=mask, bias=bias)[0]
    assert out[0, :, 1].eq(0).all() and out[1].eq(0).all() and out[0, :, 0].ne(0).any()
    gradients = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert gradients[0][0, :, 1].eq(0).all() and all(gradient[1].eq(0).all() for gradient in gradients)


def test_gradients_of_fused_and_unfused_attention_agree():
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = Mask(causal=True, lengths=torch.tensor([5, 3]))
    fused = torch.autograd.grad(attend(q, k, v, mask=mask).square().sum(), (q, k, v))
    plain = torch.autograd.grad(attend_with_weights(q, k, v, mask=mask)[0].square().sum(), (q, k, v))
    for one, other in zip(fused, plain):
        torch.testing.assert_close(one, other)


def test_custom_score_function():
    """Any score goes through the same mask, softmax and mix: equal scores give the mean of the visible values."""
    q, k, v = (torch.randn(1, 1, 3, 4) for _ in range(3))
    out = attend(q, k, v, score=lambda q, k: q.new_zeros(1, 1, 3, 3), mask=Mask(causal=True))
    torch.testing.assert_close(out[0, 0, 2], v[0, 0].mean(0))
    torch.testing.assert_close(out[0, 0, 0], v[0, 0, 0])


def test_scaling_by_head_width_keeps_the_softmax_soft():
    """Scores 112 and 96 of 64-wide heads become 14 and 12: 0.88 and 0.12 instead of 1 and 0 (sec. 3.2.1)."""
    q, k = torch.ones(1, 1, 1, 64), torch.stack([torch.full((64,), 112 / 64), torch.full((64,), 96 / 64)])[None, None]
    torch.testing.assert_close(attention_weights(q, k)[0, 0, 0], torch.tensor([14.0, 12.0]).softmax(-1))
    assert attention_weights(q, k, scale=1.0)[0, 0, 0, 1] < 1e-6


def test_attention_dropout_keeps_the_mean():
    q, k, v = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 50, 8), torch.ones(1, 1, 50, 1)
    samples = torch.stack([attend_with_weights(q, k, v, dropout=0.3)[0] for _ in range(2000)])
    assert samples.std() > 0.01
    assert abs(samples.mean() - 1) < 0.03


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 4))
def test_functions_without_heads_equal_their_equations(T, S, D):
    x, context = torch.randn(2, T, D), torch.randn(2, S, D)
    torch.testing.assert_close(self_attention(x), (x @ x.mT).softmax(-1) @ x)
    torch.testing.assert_close(context_attention(x, context), (x @ context.mT).softmax(-1) @ context)
    k, v = torch.randn(2, S, D), torch.randn(2, S, D + 2)
    torch.testing.assert_close(key_value_attention(x, k, v), (x @ k.mT / D**0.5).softmax(-1) @ v)
    wide = torch.randn(D, D + 3)
    mixed = key_value_attention(x, torch.randn(2, S, D + 3), v, score=lambda q, k: q @ wide @ k.mT)
    assert mixed.shape == (2, T, D + 2)


def test_self_attention_without_positions_is_permutation_equivariant():
    x = torch.randn(1, 6, 4)
    order = torch.randperm(6)
    torch.testing.assert_close(self_attention(x)[:, order], self_attention(x[:, order]))
    torch.testing.assert_close(self_attention(x, mask=Mask(causal=True))[:, 0], x[:, 0])
